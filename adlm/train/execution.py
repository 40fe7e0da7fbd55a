"""How a run is computed on a machine: type and library of matrix products, number of threads, by what is faster.

A CPU that multiplies bfloat16 in hardware may still be slower with it: narrow networks and short rows spend their time
elsewhere. So both are measured, on one layer per stage, and the answer is kept in the user's cache. Threads are
measured when a run starts, since they depend on what else the machine is doing.
"""

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from adlm.config import to_json
from adlm.data.prepare import default_cache
from adlm.files import write_atomically
from adlm.models.matrix_products import Library, faster_library, keeps_float32, multiplied_by
from adlm.models.network import NetworkConfig, Vocabulary
from adlm.objectives.objective import costs

Precision = Literal["auto", "float32", "bfloat16"]
EXECUTION = "execution.json"
_TOKENS = 1024  # of the pass that is measured
_ROUNDS = 3
_ASKED, _BY_ENVIRONMENT = "by train.precision", "by OMP_NUM_THREADS"
_GAIN = 1.1  # how much faster several threads have to be


class Execution(NamedTuple):
    """How a run is computed: stored in its folder, so that a resumed run continues the same way.

    Args:
        device: its type: cpu, cuda or mps.
        precision: of matrix products: float32 or bfloat16.
        why: the reason for the precision.
        library: of products in float32.
    """

    device: str
    precision: str
    why: str
    threads: int
    why_threads: str
    library: Library = "default"
    why_library: str = ""

    @property
    def bf16(self) -> bool:
        """Whether matrix products are in bfloat16."""
        return self.precision == "bfloat16"

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, this process computes with this number of threads and this library."""
        before = torch.get_num_threads()
        with ExitStack() as stack:
            if self.threads != before:
                torch.set_num_threads(self.threads)
                stack.callback(torch.set_num_threads, before)
            stack.enter_context(multiplied_by(self.library))
            yield


def choose(
    requested: Precision,
    network: NetworkConfig,
    vocabulary: Vocabulary,
    length: int,
    device: torch.device,
    alone: bool,
    *,
    folder: Path | None = None,
) -> Execution:
    """The faster way to compute for this network on this machine.

    Args:
        length: tokens per row.
        alone: whether the process may take all cores; those of torchrun have a number of threads already.
        folder: of a run that is resumed: it continues to compute as it began, if that still works.
    """
    before = None if folder is None else stored(folder)
    if before is not None and (kept := resumed(before, requested, device)) is not None:
        return kept
    threads, why_threads = _threads(device, alone)
    precision, why = requested, _ASKED
    if requested == "auto":
        precision, why = _precision(network, vocabulary, length, device)
    library: tuple[Library, str] = ("default", f"as PyTorch has it on {device.type}")
    if device.type == "cpu":
        library = faster_library()
    return Execution(device.type, precision, why, threads, why_threads, *library)


def resumed(before: Execution, requested: Precision, device: torch.device) -> Execution | None:
    """The stored way to compute, if it still works on this machine; None if it has to be chosen again.

    What the user sets now takes precedence: `train.precision` and OMP_NUM_THREADS.
    """
    if before.device != device.type or (requested == "auto" and before.why == _ASKED):
        return None
    if requested != "auto":
        before = before._replace(precision=requested, why=_ASKED)
    if before.library != "default" and not keeps_float32(before.library):  # begun on another processor
        before = before._replace(library="default", why_library=f"{before.library} would round float32 here")
    if "OMP_NUM_THREADS" in os.environ:
        before = before._replace(threads=torch.get_num_threads(), why_threads=_BY_ENVIRONMENT)
    return before


def stored(folder: Path) -> Execution | None:
    """The choice stored in `folder`, if any."""
    try:
        return Execution(**json.loads((folder / EXECUTION).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def store(folder: Path, execution: Execution) -> None:
    """Keep what was chosen in the folder of the run."""
    write_atomically(folder / EXECUTION, json.dumps(execution._asdict(), indent=2) + "\n")


def _precision(
    network: NetworkConfig, vocabulary: Vocabulary, length: int, device: torch.device
) -> tuple[Literal["float32", "bfloat16"], str]:
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bfloat16", "the GPU multiplies it in hardware"
        return "float32", "the GPU has no bfloat16"
    if device.type != "cpu":
        return "float32", f"bfloat16 was never measured on {device.type}"
    if not cpu_multiplies_bf16():
        return "float32", "the CPU has no bfloat16 instructions: emulated, it is a hundred times slower"
    if not network.stacks:
        return "float32", f"{type(network).__name__} is not measured"
    seconds = _measured(network, vocabulary, length)
    ratio = seconds["float32"] / seconds["bfloat16"]
    if ratio > 1:
        return "bfloat16", f"{ratio:.1f} times as fast as float32 at this size (measured)"
    return "float32", f"{1 / ratio:.1f} times as fast as bfloat16 at this size (measured)"


def cpu_multiplies_bf16() -> bool:
    """Whether the CPU has instructions for it, which does not mean that it is faster."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


@lru_cache(maxsize=64)
def _measured(network: NetworkConfig, vocabulary: Vocabulary, length: int) -> dict[str, float]:
    """Seconds in each precision, from the cache on disk or by measurement."""
    proxy = network.variant(layers=(1,) * len(network.stacks), input_reinjection=0, dropout=0.0)
    shape = json.dumps([to_json(proxy), vocabulary.size, length], sort_keys=True)
    library = faster_library()[0]
    key = f"{processor()}, torch {torch.__version__}, {torch.get_num_threads()} threads, {library} library"
    folder = default_cache().parent / "precision" / hashlib.sha256(key.encode()).hexdigest()[:16]
    file = folder / f"{hashlib.sha256(shape.encode()).hexdigest()[:16]}.json"
    try:
        known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return {name: float(known["seconds"][name]) for name in ("float32", "bfloat16")}
    except (OSError, ValueError, KeyError, TypeError):
        pass
    with multiplied_by(library):
        seconds = measure(proxy, vocabulary, length)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = {"machine": key, "network": to_json(proxy), "length": length, "seconds": seconds}
        write_atomically(file, json.dumps(found, indent=2) + "\n")
    except OSError:
        pass  # measured again next time
    return seconds


def measure(network: NetworkConfig, vocabulary: Vocabulary, length: int) -> dict[str, float]:
    """Seconds of a forward and backward pass in float32 and in bfloat16: the fastest of some, in turn."""
    with torch.random.fork_rng([]):
        model = network.build(vocabulary).train()
        tokens = torch.randint(vocabulary.size, (max(1, _TOKENS // length), length))
    masked = torch.arange(length).expand_as(tokens) % 2 == 0
    t = torch.full((len(tokens),), 0.5)

    def step(precision: str) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            final = model.features(tokens, t, output_mask=masked).final
            loss = costs(model, final, tokens[masked], torch.ones(len(final))).total
        loss.backward()
        model.zero_grad(set_to_none=True)

    for name in ("float32", "bfloat16"):
        step(name)
    times = [{name: _seconds(partial(step, name)) for name in ("float32", "bfloat16")} for _ in range(_ROUNDS)]
    return {name: min(each[name] for each in times) for name in ("float32", "bfloat16")}


def _threads(device: torch.device, alone: bool) -> tuple[int, str]:
    every = torch.get_num_threads()
    if "OMP_NUM_THREADS" in os.environ:
        return every, _BY_ENVIRONMENT
    if device.type != "cpu" or not alone or every == 1:
        return every, "as PyTorch has it"
    ratio = thread_gain(every)
    if ratio >= _GAIN:
        return every, f"{ratio:.1f} times as fast as one (measured)"
    return 1, f"{every} are {ratio:.1f} times as fast (measured): the machine is busy"


def thread_gain(threads: int) -> float:
    """The speed-up of this many threads over one for a small network, on this machine under its present load."""
    before = torch.get_num_threads()
    x, weight = torch.ones(1024, 128), torch.ones(128, 512)

    def work() -> None:
        for _ in range(4):
            (torch.nn.functional.gelu(x @ weight) @ weight.mT).sum()

    times: dict[int, list[float]] = {1: [], threads: []}
    try:
        for _ in range(_ROUNDS + 1):
            for count in times:
                torch.set_num_threads(count)
                times[count].append(_seconds(work))
    finally:
        torch.set_num_threads(before)
    return min(times[1][1:]) / min(times[threads][1:])


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def processor() -> str:
    """The name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
