"""`adlm doctor`: what this machine and this installation can do, and what would fail."""

import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from adlm import __version__
from adlm.registry import PLUGINS

# Extras for users, and what does not work without them.
EXTRAS = {
    "kjv": "the corpus kjv",
    "eval": "judges of transformers and MAUVE (`adlm evaluate generation`), pictures of frontiers",
    "hf": "models of transformers (`adlm reason --base gpt2`, `adlm.hf`)",
    "lm-eval": "`adlm lm-eval`",
    "lora": "finetuning with LoRA (docs: training)",
    "onnx": "models as ONNX (`adlm export --to onnx`)",
    "plot": "pictures of curves while training",
    "serve": "`adlm serve` and `adlm studio`",
    "track": "TensorBoard (`adlm train --track tensorboard`)",
    "trackio": "Trackio (`adlm train --track trackio`)",
    "wandb": "Weights & Biases (`adlm train --track wandb`)",
}
_PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "huggingface_hub", "datasets", "pyarrow", "rich", "tyro")


def command() -> None:
    """Print versions, devices, number formats, extras and what would fail. Include the output in a question."""
    failing = []
    parts = {
        "versions": _versions(),
        "machine": _machine(),
        "torch": _torch(),
        "training the demo": _training(),
        "files": _files(),
    }
    for title, lines in parts.items():
        print(f"{title}\n" + "\n".join(f"  {name:<18}{value}" for name, value in lines))
    print("plugins\n" + "\n".join(f"  {entry.name:<18}{entry.value}" for entry in metadata.entry_points(group=PLUGINS)))
    print("extras")
    for extra, missing in missing_by_extra().items():
        print(f"  {extra:<18}{'complete' if not missing else 'missing: ' + ', '.join(missing)}")
        if missing:
            failing.append(f"{EXTRAS[extra]}: pip install 'adlm[{extra}]'")
    failing += _failing()
    print("would fail" + ("\n" + "\n".join(f"  {line}" for line in failing) if failing else ": no known problems"))


def missing_by_extra() -> Mapping[str, list[str]]:
    """The requirements of every extra that are not met, with the installed versions."""
    from packaging.requirements import Requirement

    found: dict[str, list[str]] = {extra: [] for extra in EXTRAS}
    for requirement in map(Requirement, metadata.requires("adlm") or ()):
        for extra in EXTRAS:
            if requirement.marker is None or not requirement.marker.evaluate({"extra": extra}):
                continue
            try:
                version = metadata.version(requirement.name)
            except metadata.PackageNotFoundError:
                found[extra].append(requirement.name)
                continue
            if not requirement.specifier.contains(version, prereleases=True):
                found[extra].append(f"{requirement.name}{requirement.specifier}, {version} is installed")
    return found


def _versions() -> Iterator[tuple[str, str]]:
    yield "adlm", __version__
    yield "python", f"{platform.python_version()} ({platform.python_implementation()})"
    for name in _PACKAGES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            yield name, "missing"


def _machine() -> Iterator[tuple[str, str]]:
    yield "system", f"{platform.system()} {platform.release()}, {platform.machine()}"
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield "cores", f"{usable} usable of {os.cpu_count()}"
    information = Path("/proc/meminfo")
    if information.exists() and (found := re.search(r"MemTotal:\s+(\d+)", information.read_text())):
        yield "memory", f"{int(found[1]) / 2**20:.1f} GiB"


def _torch() -> Iterator[tuple[str, str]]:
    import torch

    from adlm.train.execution import cpu_multiplies_bf16

    yield "cpu", f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    for i in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(i)
        yield f"cuda:{i}", f"{device.name}, {device.total_memory / 2**30:.0f} GiB"
    if torch.backends.mps.is_available():
        yield "mps", "there"
    if torch.cuda.is_available():
        yield "bfloat16", "in hardware" if torch.cuda.is_bf16_supported(including_emulation=False) else "emulated: slow"
    else:
        yield "bfloat16", "in hardware" if cpu_multiplies_bf16() else "emulated: slower than float32"
    engines = [name for name in torch.backends.quantized.supported_engines if name != "none"]
    yield "int8", ", ".join(engines) or "none"
    available = torch.distributed.is_available()
    backends = [name for name in ("gloo", "nccl", "mpi") if available and torch.distributed.is_backend_available(name)]
    yield "several processes", ", ".join(backends) or "no backend"
    yield "compiler", _compiler() or "none: --compile would fail on a CPU"


def _training() -> Iterator[tuple[str, str]]:
    """What the demo's network would be trained with here."""
    from adlm.distributed import device_for
    from adlm.models.hand_gradients import attention_by
    from adlm.recipes.named import recipe
    from adlm.train.plan import plan

    demo = plan(recipe("demo-adlm"), device=device_for("auto"))
    found = demo.execution
    yield "products", f"{found.precision}: {found.why}"
    yield "library", f"{found.library}: {found.why_library}"
    yield "attention", attention_by(found.device, demo.summary.length)
    yield "threads", f"{found.threads}: {found.why_threads}"


def _compiler() -> str | None:
    return next((path for name in ("c++", "g++", "clang++", "cl") if (path := shutil.which(name))), None)


def _files() -> Iterator[tuple[str, str]]:
    from adlm.data.prepare import default_cache

    for name, path in (("prepared data", default_cache()), ("working folder", Path.cwd())):
        there = next(parent for parent in (path, *path.parents) if parent.exists())
        yield name, f"{path}, {shutil.disk_usage(there).free / 2**30:.1f} GiB free"
    yield "$ADLM_DATA", os.environ.get("ADLM_DATA", "not set")
    yield "hub", "offline by $HF_HUB_OFFLINE" if os.environ.get("HF_HUB_OFFLINE") == "1" else "contacted when needed"


def _failing() -> Iterator[str]:
    if not (3, 10) <= sys.version_info[:2] < (3, 14):
        yield f"Python {platform.python_version()} is not tested: use 3.10 to 3.13"
    folder = os.environ.get("ADLM_DATA")
    if folder and not Path(folder).is_dir():
        yield f"corpora by name: $ADLM_DATA is {folder}, which is not a folder"
    if not os.access(Path.cwd(), os.W_OK):
        yield "anything that writes to runs/: the working folder cannot be written to"
