"""Texts that a left-to-right model samples from itself, kept on disk.

At temperature 1 they follow the model's own law, so that its own likelihood is the least that any model can reach on
them. Empty texts, which teach nothing, are left out. Texts are made in parts: an interrupted job resumes after the last
whole one, and a larger number begins with the same texts. One text in twenty is held out.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from adlm.data.packing import Padded
from adlm.data.prompts import Prompts
from adlm.errors import ConfigError, OutOfRange
from adlm.files import write_atomically
from adlm.randomness import Noise
from adlm.resumable import weights_checksum
from adlm.text_model import TextModel

TRAIN, VALID = "train.jsonl", "valid.jsonl"
_PART, _EVERY = 64, 20
_BEYOND = 16  # tokens: a text that has not ended is as long as a row even if it is encoded in fewer tokens
_MADE_OF = "made_of.json"


def sample_self(
    model: TextModel,
    folder: Path,
    count: int,
    *,
    length: int,
    seed: int = 0,
    log: Callable[[str], None] | None = None,
) -> None:
    """Write `count` texts of at most about `length` tokens to `folder`, or what is missing of them."""
    if count < _EVERY:
        raise OutOfRange("data", f"self:{count}", f"at least self:{_EVERY}, since one text in {_EVERY} is held out")
    folder.mkdir(parents=True, exist_ok=True)
    _check_same(folder, {"weights": weights_checksum(model.network), "length": length, "seed": seed})
    furthest = model.network.learned_positions or length + _BEYOND
    limit = min(length + _BEYOND, furthest - len(model.rows.begin))
    for part in range(-(-count // _PART)):
        path = _part(folder, part)
        if not path.exists():
            texts = model.generate(
                n=_PART, seed=Noise(seed).fork("self", part).seed, max_new_tokens=limit, sampler="left-to-right"
            )
            write_atomically(path, "".join(json.dumps({"prompt": "", "response": text}) + "\n" for text in texts))
            if log is not None:
                log(f"sampled {min((part + 1) * _PART, count):,} of {count:,} texts")
    lines = [line for line in _lines(folder, count) if json.loads(line)["response"]]
    held_out = {VALID: lines[_EVERY - 1 :: _EVERY], TRAIN: [x for i, x in enumerate(lines) if (i + 1) % _EVERY]}
    for name, some in held_out.items():
        write_atomically(folder / name, "".join(some))


def self_data(folder: Path, tokenizer: str, packing: Padded) -> Prompts:
    """The sampled texts as data: a text each row, from its beginning."""
    return Prompts(
        str(folder / TRAIN),
        tokenizer,
        packing.length,
        valid=str(folder / VALID),
        begin=packing.begin,
        end=packing.end,
        padding=packing.predict_padding,
        too_long="cut",
    )


def self_texts(folder: Path) -> Iterator[str]:
    """All sampled texts, including the held-out ones."""
    for name in (TRAIN, VALID):
        for line in (folder / name).read_text(encoding="utf-8").splitlines():
            yield json.loads(line)["response"]


def _part(folder: Path, number: int) -> Path:
    return folder / f"part-{number:06d}.jsonl"


def _lines(folder: Path, count: int) -> list[str]:
    parts = (_part(folder, part).read_text(encoding="utf-8") for part in range(-(-count // _PART)))
    return [line for part in parts for line in part.splitlines(keepends=True)][:count]


def _check_same(folder: Path, made_of: dict[str, object]) -> None:
    """Refuse to continue with texts of another model or length."""
    path = folder / _MADE_OF
    if not path.exists():
        write_atomically(path, json.dumps(made_of) + "\n")
    elif (before := json.loads(path.read_text())) != made_of:
        different = ", ".join(name for name in made_of if before.get(name) != made_of[name])
        raise ConfigError(
            f"{folder} has texts of other {different}", fix="name another folder",
            subject=str(folder),
        )  # fmt: skip
