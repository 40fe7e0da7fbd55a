"""What tests share: fake models small enough to reason about, a tiny corpus, and the optional reference data."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch import Tensor

from adlm.data.source import Piece, Source
from adlm.models.language_model import LanguageModel
from adlm.models.network import Vocabulary
from adlm.types import Batch, Features
from tests import browser

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# A busy machine may take a second for what takes a millisecond.
settings.register_profile("adlm", deadline=None)
settings.load_profile("adlm")


@dataclass(frozen=True)
class Texts(Source):
    """Documents given in the test."""

    texts: tuple[str, ...]
    name: str = "texts"
    licence: str = "none"

    @property
    def splits(self) -> tuple[str, ...]:
        return ("train",)

    def pieces(self, split: str) -> Iterator[Piece]:
        return (Piece(text) for text in self.texts)

    def fingerprint(self, split: str) -> dict[str, Any]:
        return {"texts": list(self.texts)}


class TableModel(LanguageModel):
    """Logits at every position from a function of the tokens: features are the logits themselves."""

    def __init__(self, vocabulary: Vocabulary, table: Any) -> None:
        super().__init__()
        self.vocabulary, self.table, self.calls = vocabulary, table, 0

    def _features(
        self, tokens: Tensor, t: Tensor | None, segments: Tensor | None, output_mask: Tensor | None
    ) -> Features:
        self.calls += 1
        final = self.table(tokens)
        return Features(final if output_mask is None else final[output_mask])

    def logits(self, final: Tensor) -> Tensor:
        return final.index_fill(-1, torch.tensor([self.vocabulary.mask_id]), -torch.inf)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real corpora, models and official figures, beside the repository where there are any."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("no folder `shared` with reference data beside the repository")
    return folder


@pytest.fixture(scope="module")
def context_with():
    """Contexts of a headless Chromium, by their options. Skipped, saying so, where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = browser.installed()
    if program is None:
        pytest.skip(f"no browser is installed; to install one: {browser.COMMAND}")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=browser.FLAGS)
        contexts = {}

        def context_with(**options):  # making one takes longer than most tests
            key = tuple(sorted(options.items()))
            contexts[key] = contexts.get(key) or chromium.new_context(**options)
            return contexts[key]

        yield context_with
        chromium.close()


def batch_of(tokens: list[list[int]] | Tensor, valid: Tensor | None = None) -> Batch:
    tokens = torch.as_tensor(tokens)
    rows = torch.arange(len(tokens))
    return Batch(tokens, torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid, rows, rows)
