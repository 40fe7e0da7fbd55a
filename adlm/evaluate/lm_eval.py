"""A model for lm-evaluation-harness, under the name `adlm`. Importing this module registers it.

The log-likelihoods are exact for left-to-right models. For masked models they are lower bounds: minus the bound of the
continuation given the context (`continuations.py`).
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple, TypeVar

import torch

from adlm.data.tokenizer import Tokenizer
from adlm.distributed import device_for
from adlm.errors import ConfigError, OutOfRange, optional_module
from adlm.evaluate.continuations import Continuation, Scorer, joined_tokens, windows
from adlm.resumable import weights_checksum
from adlm.samplers.sampler import Sampler
from adlm.samplers.stopping import cut_at
from adlm.text_model import load

T = TypeVar("T")

_PURPOSE = "lm-evaluation-harness"
_LM: Any = optional_module("lm_eval.api.model", extra="lm-eval", purpose=_PURPOSE).LM
_registry: Any = optional_module("lm_eval.api.registry", extra="lm-eval", purpose=_PURPOSE)
_log = logging.getLogger("lm_eval.adlm")  # among the lines of the harness

_AUTO_BATCH = 16
_LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


class HarnessModel(_LM):  # type: ignore[misc] # the harness has no types
    """A model of this package with the interface of the harness.

    Args:
        pretrained: the folder or the name.
        draws: mask counts for each log-likelihood of a masked model. A continuation of n tokens that has at most so
            many ways to be masked, 2^n - 1, is looked at in all of them instead.
        seed: of the masks and of what is written.
        max_length: tokens per row, at most; those of the model by default.
        max_gen_toks: to write, where a task does not say.
        sampler, steps, temperature, block_size: of what is written, whatever the task says. Without them, a task that
            asks for greedy writing gets the likeliest token at each step, one at a time; others the model's plain
            sampler. A model that reads blocks is scored in blocks of `block_size` too.
        full_rows: see `Scorer`.
        revision: a branch, tag or commit, on the Hub.
        device: if it is not there, what is there is used.
        max_batch_size: passed by the harness and not used.
    """

    def __init__(
        self,
        pretrained: str,
        *,
        draws: int = 32,
        seed: int = 0,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        sampler: str | None = None,
        steps: int | None = None,
        temperature: float | None = None,
        block_size: int | None = None,
        full_rows: bool = True,
        revision: str | None = None,
    ) -> None:
        super().__init__()
        self._device = _available(device)
        self.model = load(pretrained, revision=revision)
        self.model.network.eval().to(self._device)
        if block_size is not None and self.model.network.reads_blocks:
            self.model, block_size = self.model.in_blocks(block_size), None
        packing = self.model.config.packing
        self.scorer = Scorer(
            self.model.network,
            packing,
            self.model.tokenizer.roles,
            length=packing.length if max_length is None else max_length,
            draws=draws,
            seed=seed,
            batch=_batch_size(batch_size),
            full_rows=full_rows,
        )
        self.max_gen_toks = max_gen_toks
        self.options = {"sampler": sampler, "steps": steps, "temperature": temperature, "block_size": block_size}
        if not self.model.network.causal:
            _log.info("log-likelihoods are lower bounds, from %d mask counts each (draws)", draws)

    @property
    def tokenizer_name(self) -> str:
        """Names the requests that the harness keeps."""
        return self.model.tokenizer.fingerprint

    def get_model_info(self) -> dict[str, Any]:
        """The information that the harness stores with its figures."""
        causal = self.model.network.causal
        return {
            "adlm_version": version("adlm"),
            "model_sha": weights_checksum(self.model.network),
            "loglikelihood": "exact" if causal else "lower bound",
            "draws": 0 if causal else self.scorer.draws,
            "block_size": self.model.network.block_size,
            "model_seed": self.scorer.seed,
            "max_length": self.scorer.length,
            "full_rows": self.scorer.full_rows,
        }

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """log p(continuation | context) of each request, and whether greedy decoding gives the continuation."""
        tokenizer = self.model.tokenizer
        items = [joined_tokens(context, after, tokenizer) for context, after in (each.args for each in requests)]
        fitting = [item.cut_to(self.scorer.room) for item in items]
        self._warn_of_cuts(sum(a != b for a, b in zip(items, fitting, strict=True)), len(items))
        with _bar(len(items), "Running loglikelihood requests", disable_tqdm) as bar:
            found = [(-nats, greedy) for nats, greedy in self.scorer(fitting, progress=bar.update)]
        for request, answer in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, answer)
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """log p of whole texts, in windows where they are longer than the model's rows."""
        texts = self.model.tokenizer.encode_batch([request.args[0] for request in requests])
        causal, room = self.model.network.causal, self.scorer.room
        pieces: list[list[Continuation]] = [windows(ids.tolist(), room, causal=causal) for ids in texts]
        flat = [piece for text in pieces for piece in text]
        with _bar(len(flat), "Running loglikelihood_rolling requests", disable_tqdm) as bar:
            scored = iter(self.scorer(flat, greedy=False, progress=bar.update))
        found = [-sum((next(scored).nats for _ in text), 0.0) for text in pieces]
        for request, answer in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, answer)
        return found

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The continuation of each context, up to the first of the strings in `until` or the end token.

        A request that occurs k times gets k different samples.
        """
        found: dict[int, str] = {}
        with _bar(len(requests), "Running generate_until requests", disable_tqdm) as bar:
            for alike in _groups(range(len(requests)), lambda i: repr(requests[i].args[1])):
                task = _Writing.read(requests[alike[0]].args[1], self.max_gen_toks)
                for job in self._jobs({i: requests[i].args[0] for i in alike}, task.limit):
                    found |= zip(job.numbers, self._written(job, task), strict=True)
                    bar.update(len(job.numbers))
        for i, request in enumerate(requests):
            self.cache_hook.add_partial("generate_until", request.args, found[i])
        return [found[i] for i in range(len(requests))]

    def _jobs(self, contexts: Mapping[int, str], limit: int) -> Iterator["_Job"]:
        """The contexts by number, so many at a time as are to be written on from in one call."""
        numbers: dict[str, list[int]] = {}
        for i, context in contexts.items():
            numbers.setdefault(context, []).append(i)
        plans = self._plans(list(numbers), limit)
        for alike in _groups(numbers, lambda context: (len(numbers[context]), *plans[context][1:])):
            for start in range(0, len(alike), self.scorer.batch):
                part = alike[start : start + self.scorer.batch]
                positions = [i for context in part for i in numbers[context]]
                yield _Job(positions, [plans[context].context for context in part], plans[part[0]])

    def _plans(self, contexts: Sequence[str], limit: int) -> dict[str, "_Plan"]:
        """A left-to-right model keeps half of its row for the context, if need be. A masked one continues in blocks."""
        tokenizer, room, causal = self.model.tokenizer, self.scorer.room, self.model.network.causal
        most = max(room - limit, room // 2)
        shown = [_last_tokens(context, most, tokenizer) if causal else context for context in contexts]
        left = [room - len(ids) for ids in tokenizer.encode_batch(shown)]
        self._warn_of_cuts(sum(a != b for a, b in zip(contexts, shown, strict=True)), len(contexts))
        if short := sum(each < limit for each in left):
            how = "it ends with the row" if causal else "it continues in blocks"
            _log.warning("no room for %d tokens after %d of %d contexts: %s", limit, short, len(contexts), how)
        return {
            context: _Plan(cut, min(limit, room_left) if causal else limit, not causal and room_left < limit)
            for context, cut, room_left in zip(contexts, shown, left, strict=True)
        }

    def _written(self, job: "_Job", task: "_Writing") -> list[str]:
        """A continuation for each number of the job."""
        tokenizer = self.model.tokenizer
        texts = self.model.generate(
            job.contexts,
            n=(n := len(job.numbers) // len(job.contexts)),
            seed=self.scorer.seed,
            max_new_tokens=job.plan.limit,
            sampler=self._sampler(task, longer=job.plan.longer),
        )
        # What the tokenizer does not know of a context is not in the text either.
        begins = [len(tokenizer.decode(ids)) for ids in tokenizer.encode_batch(job.contexts) for _ in range(n)]
        return [cut_at(text[begin:], task.until)[0] for text, begin in zip(texts, begins, strict=True)]

    def _sampler(self, task: "_Writing", *, longer: bool) -> Sampler:
        """From the task's settings and the model's own, which come first."""
        own = {name: value for name, value in self.options.items() if value is not None}
        chosen = {**task.options, "temperature": task.temperature, **own}
        name = chosen.pop("sampler", None)
        if not self.model.network.causal:
            if name is None and chosen["temperature"] == 0:
                name = "confidence"
                if "steps" not in chosen:
                    chosen["tokens_per_step"] = 1
            if longer and not self.model.network.reads_blocks:
                chosen.setdefault("block_size", self.scorer.length // 2)
        return self.model.sampler(name, **chosen)

    def _warn_of_cuts(self, cut: int, among: int) -> None:
        if cut:
            _log.warning("%d of %d contexts are longer than the model's rows: cut from the left", cut, among)


class _Plan(NamedTuple):
    """What of a context is shown, how many tokens are written, and whether they end beyond the model's rows."""

    context: str
    limit: int
    longer: bool


class _Job(NamedTuple):
    """Requests by number, as many for each context, whose plans are alike."""

    numbers: list[int]
    contexts: list[str]
    plan: _Plan


class _Writing(NamedTuple):
    """What a task asks for: where to end, how much at most, how warm, and further options of samplers."""

    until: tuple[str, ...]
    limit: int
    temperature: float
    options: dict[str, Any]

    @classmethod
    def read(cls, settings: Mapping[str, Any], limit: int) -> "_Writing":
        given = dict(settings)
        until = given.pop("until", None) or ()
        until = (until,) if isinstance(until, str) else tuple(stop for stop in until if stop)
        limits = [given.pop(name) for name in _LIMITS if given.get(name) is not None]
        # As elsewhere in the harness: greedy, unless a temperature or do_sample says otherwise.
        warmth = given.pop("temperature", None)
        sampling = given.pop("do_sample", None)
        if sampling is None:
            sampling = bool(warmth)
        temperature = (1.0 if warmth is None else float(warmth)) if sampling else 0.0
        return cls(until, int(limits[0]) if limits else limit, temperature, given)


def _available(device: str | None) -> torch.device:
    """The given device, or what there is: the harness names cuda:0 on every machine unless told otherwise."""
    try:
        return device_for(device or "auto")
    except ConfigError as error:
        chosen = device_for("auto")
        _log.warning("%s: using %s", error, chosen)
        return chosen


def _batch_size(asked: int | str | None) -> int:
    if asked is None or str(asked).startswith("auto"):
        return _AUTO_BATCH
    try:
        return int(asked)
    except ValueError as error:
        raise OutOfRange("batch_size", asked, "a whole number, or auto") from error


def _groups(items: Iterable[T], key: Callable[[T], Any]) -> list[list[T]]:
    """Those with the same key together."""
    found: dict[Any, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return list(found.values())


def _last_tokens(text: str, most: int, tokenizer: Tokenizer) -> str:
    """The end of a text that has at most so many tokens."""
    while len(tokenizer.encode(text)) > most:
        text = text[max(1, tokenizer.offsets(text)[-most][0]) :]
    return text


def _bar(total: int, title: str, hidden: bool) -> Any:
    return optional_module("tqdm", extra="lm-eval", purpose=_PURPOSE).tqdm(total=total, desc=title, disable=hidden)


# It is there already where the harness has read the package's entry point and is just loading it.
if "adlm" not in _registry.MODEL_REGISTRY:
    _registry.register_model("adlm")(HarnessModel)
