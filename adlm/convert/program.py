"""A network as a program that needs nothing of this package: one of torch.export, or ONNX.

Tokens [B, L] -> logits [B, L, V] at every position; those of the anchor stage come first where there is one. What is
derived from weights is computed once, and the file holds only what a pass reads.
"""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind

from adlm.errors import ConfigError, ModelError, optional_module
from adlm.models.io import TOKENIZER, ModelConfig
from adlm.models.language_model import LanguageModel
from adlm.text_model import TextModel

Form = Literal["torch-export", "onnx"]
PROGRAMS: dict[Form, str] = {"torch-export": "model.pt2", "onnx": "model.onnx"}
DESCRIPTION = "program.json"


def export_program(model: TextModel, out: Path, to: Form = "torch-export", *, force: bool = False) -> None:
    """Write a folder with the program, `tokenizer.json`, and in `program.json` what else a caller has to know.

    The program is for a CPU and float32, and takes any number of rows of any length that the model reads. A model that
    reads blocks, or masked rows shifted by one, is exported as it reads from left to right, because the operations of
    its other readings depend on which tokens are masked.

    Args:
        force: replace a program that is there.
    """
    asked = f"cannot export a model to {out}"
    _check_free(out, force=force, asked=asked)
    if to == "onnx":
        for name in ("onnx", "onnxscript"):
            optional_module(name, extra="onnx", purpose="exporting a model to ONNX")
    if not model.config.network.stacks:
        raise ConfigError(
            f"{asked}: {type(model.network).__name__} is a network of another library; export it with that library",
            subject="network",
        )
    if model.network.reads_blocks and 1 not in model.block_sizes:
        raise ConfigError(
            f"{asked}: of a model with blocks or shifted rows only the reading from left to right can be exported, and "
            "this one was not trained for it",
            subject="block_size",
        )
    network = model.config.build().eval()
    network.load_state_dict(model.network.state_dict())  # whole, on the CPU, neither compiled nor in 8 bits
    network = network.in_blocks(1) if network.reads_blocks else network
    program = _program(network, model.config)
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as name:
        new = Path(name)
        if to == "onnx":
            _save_onnx(program, network, new / PROGRAMS[to])
        else:
            torch.export.save(program, new / PROGRAMS[to])
        model.tokenizer.save(new)
        (new / TOKENIZER[1]).unlink()  # the description says that too
        (new / DESCRIPTION).write_text(json.dumps(_description(model, network, PROGRAMS[to]), indent=2) + "\n")
        out.mkdir(exist_ok=True)
        for old in (DESCRIPTION, *PROGRAMS.values()):
            (out / old).unlink(missing_ok=True)
        for file in sorted(new.iterdir(), key=lambda file: file.name == DESCRIPTION):
            file.replace(out / file.name)


class _Forward(nn.Module):
    """The whole way from tokens to logits, as one call."""

    def __init__(self, network: LanguageModel) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor, t: Tensor | None = None) -> tuple[Tensor, ...]:
        features = self.network.features(tokens, t)
        logits = self.network.logits(features.final)
        return (logits,) if features.anchor is None else (self.network.anchor_logits(features.anchor), logits)


def _program(network: LanguageModel, config: ModelConfig) -> ExportedProgram:
    forward, most = _Forward(network), getattr(config.network, "positions", 0)
    example = [torch.zeros(2, min(8, most or 8), dtype=torch.long)]
    if network.time_conditioned:
        example.append(torch.full((2,), 0.5))
    with network.inference_weights():
        forward(*example)  # what is derived has to be there as numbers before it is traced
        shapes = _shapes(network, most)
        program = torch.export.export(forward, tuple(example), dynamic_shapes=shapes, strict=False)
    return _trimmed(program)


def _shapes(network: LanguageModel, most: int) -> dict[str, dict[int, Any]]:
    """Which sizes are open."""
    rows = Dim("rows", min=1)
    length = Dim("length", min=_shortest(network), **({"max": most} if most else {}))
    return {"tokens": {0: rows, 1: length}, **({"t": {0: rows}} if network.time_conditioned else {})}


def _shortest(network: LanguageModel) -> int:
    # The shift of left-to-right models is traced for rows that keep two tokens or more.
    return 3 if network.causal else 1


def _trimmed(program: ExportedProgram) -> ExportedProgram:
    """Without the weights that no operation reads, since others were derived from them."""
    idle = {node.name: node for node in program.graph.nodes if node.op == "placeholder" and not node.users}
    specs = program.graph_signature.input_specs
    for spec in [spec for spec in specs if spec.arg.name in idle and spec.kind is not InputKind.USER_INPUT]:
        assert spec.target is not None
        program.graph.erase_node(idle[spec.arg.name])
        specs.remove(spec)
        program.state_dict.pop(spec.target, None)
        program.constants.pop(spec.target, None)
    program.graph_module.recompile()
    for name, value in program.constants.items():
        if isinstance(value, Tensor):
            program.constants[name] = value.detach().clone()  # a view would be saved with all that it is a view of
    return program


def _save_onnx(program: ExportedProgram, network: LanguageModel, path: Path) -> None:
    # An axis is named once; the times' is that of the rows.
    names: dict[str, Any] = {
        "tokens": {0: "rows", 1: "length"},
        **({"t": {0: None}} if network.time_conditioned else {}),
    }
    with _quiet():
        made = torch.onnx.export(
            program,
            dynamo=True,
            input_names=_inputs(network),
            output_names=_outputs(network),
            dynamic_shapes=names,
            verbose=False,
        )
        assert made is not None
        made.save(path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter says of its own insides and of libraries that are not asked for."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)


def _inputs(network: LanguageModel) -> list[str]:
    return ["tokens", "t"] if network.time_conditioned else ["tokens"]


def _outputs(network: LanguageModel) -> list[str]:
    return ["logits"] if network.anchor_head is None else ["anchor_logits", "logits"]


def _description(model: TextModel, network: LanguageModel, program: str) -> dict[str, Any]:
    """What a sampler has to know: ids, how rows of training looked, what the program takes and gives."""
    rows, roles = model.config.packing, model.tokenizer.roles
    before, after = rows.frame(roles)
    return {
        "program": program,
        "inputs": _inputs(network),
        "outputs": _outputs(network),
        "left_to_right": network.causal,
        "shortest_row": _shortest(network),
        "row_length": rows.length,
        "rows_are_full": not network.causal and (rows.padding_counts or not rows.pads),
        "vocab_size": roles.vocab_size,
        "mask_id": roles.mask_id,
        "eos_id": roles.eos_id,
        "pad_id": roles.pad_id,
        "before_text": before,
        "after_text": after,
    }


def _check_free(out: Path, *, force: bool, asked: str) -> None:
    """Refuse to write where something is, before any work is done."""
    if out.is_dir() and (out / DESCRIPTION).is_file():
        if not force:
            fix = "name another folder, or replace it with --force"
            raise ModelError(f"{asked}: {out} holds a program already; {fix}", subject="force")
    elif out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ModelError(f"{asked}: it exists and holds no program; name a new folder", subject=str(out))
