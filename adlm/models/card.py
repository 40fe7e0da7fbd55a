"""The model card: a README.md with the Hub's metadata, stating what is known of a model and nothing else."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from adlm.data.packing import Packing
from adlm.models.language_model import LanguageModel
from adlm.models.network import NetworkConfig, Vocabulary
from adlm.models.stack import StackConfig
from adlm.types import Estimate

CARD = "README.md"
_MARK = re.compile(r"\n<!-- Written by adlm ([0-9a-f]{64})[^\n]*-->\s*\Z")


@dataclass(frozen=True)
class Facts:
    """Facts for a model card that the network does not show. Missing ones are left out.

    Args:
        licence: the Hub's short name, such as apache-2.0.
        language: the Hub's short name, such as en.
        data: what the model was trained on, in words.
        figures: what was measured -> the result; with its error if it has one.
        notes: anything else, in Markdown.
        use: what the model is for and what it is not for; by default what any such model can do.
    """

    licence: str | None = None
    language: str | None = None
    data: str = ""
    figures: Mapping[str, Estimate | float] = field(default_factory=dict, hash=False)
    notes: str = ""
    use: str = ""


def card_text(
    model: LanguageModel, network: NetworkConfig, vocabulary: Vocabulary, rows: Packing, facts: Facts | None = None
) -> str:
    """A card that ends with its own checksum, which tells a later save whether the card was edited."""
    facts = facts or Facts()
    stacks = [value for _, value in _walk(network) if isinstance(value, StackConfig)]
    layers = [value for name, value in _walk(network) if name.endswith("layers") and isinstance(value, int)]
    two = model.anchor_head is not None
    process = "left to right" if model.causal else "masked diffusion"
    kind = f"{'anchored, in two stages' if two else 'one stage'}, {process} (`{type(network).__name__}`)"
    table = [
        ("kind", kind),
        ("parameters", f"{sum(parameter.numel() for parameter in model.parameters()):,}"),
        ("layers", " + ".join(map(str, layers))),
        ("width", ", ".join(str(stack.width) for stack in stacks)),
        ("heads", ", ".join(str(stack.heads) for stack in stacks)),
        ("vocabulary", f"{vocabulary.size:,} tokens, including the mask"),
        ("row length", f"{rows.length:,} tokens (`{rows}`)"),
    ]
    parts = [
        f"---\n{_metadata(model, facts)}\n---",
        f"# A language model: {process}" + (", with anchors" if two else ""),
        _table(("network", ""), [row for row in table if row[1]]),
        f"## Intended use\n\n{facts.use.strip() or _use(model)}",
        "## How to sample\n\n"
        "```python\n"
        "import adlm\n\n"
        'model = adlm.load(".")  # this folder, or owner/name on the Hub\n'
        'print(model.generate("", n=2, seed=0))  # texts that continue a prompt\n'
        'print(model.infill("[MASK][MASK]"))  # each [MASK] becomes one token\n'
        'print(model.score("a text"))  # -log p in nats\n'
        "```\n"
        "```bash\n"
        "adlm sample . --n 2 --live  # watch texts appear; see also --sampler and --steps\n"
        "```\n\n"
        "Needs the Python package `adlm`. The folder holds numbers and JSON; nothing in it is executed.",
    ]
    if facts.data:
        parts.append(f"## Training data\n\n{facts.data.strip()}")
    if facts.figures:
        figures = [(_cell(name), *_figure(value)) for name, value in facts.figures.items()]
        parts.append("## Figures\n\n" + _table(("measured", "result", "draws"), figures))
    if facts.notes:
        parts.append(f"## Notes\n\n{facts.notes.strip()}")
    return _marked("\n\n".join(parts) + "\n")


def may_replace(card: Path) -> bool:
    """Whether there is no card yet, or an unedited one written by this package."""
    if not card.exists():
        return True
    try:
        text = card.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError):
        return False
    mark = _MARK.search(text)
    return mark is not None and mark.group(1) == _checksum(text[: mark.start()])


def _use(model: LanguageModel) -> str:
    able = "To write and score texts" if model.causal else "To write, fill in and score texts"
    research = "for research into models of its kind"
    return f"{able} like those it was trained on, and {research}. Nothing checks what it writes for truth or harm."


def _metadata(model: LanguageModel, facts: Facts) -> str:
    tags = ["adlm", "autoregressive" if model.causal else "masked-diffusion"]
    data = ModelCardData(
        language=facts.language,
        library_name="adlm",
        license=facts.licence,
        pipeline_tag="text-generation",
        tags=[*tags, "anchored"] if model.anchor_head is not None else tags,
    )
    return data.to_yaml()


def _marked(text: str) -> str:
    said = "saving again replaces this file while it is unchanged, and keeps it once it is edited"
    return f"{text}\n<!-- Written by adlm {_checksum(text)}: {said} -->\n"


def _checksum(text: str) -> str:
    return hashlib.sha256(text.strip().encode()).hexdigest()


def _figure(value: Estimate | float) -> tuple[str, str]:
    if not isinstance(value, Estimate):
        return f"{value:.6g}", ""
    error = f" ± {value.error:.2g}" if value.error else ""
    return f"{value.mean:.6g}{error}", f"{value.draws}" if value.draws else "exact"


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Every field of a configuration, and theirs, with its name."""
    for item in fields(value):
        inner = getattr(value, item.name)
        yield item.name, inner
        if is_dataclass(inner):
            yield from _walk(inner)
