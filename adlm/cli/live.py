"""The canvas in a terminal while it fills in."""

import time
from types import TracebackType

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text
from torch import Tensor

from adlm.anchors import RareInSequence
from adlm.errors import AdlmError
from adlm.pieces import Pieces, anchor_rule
from adlm.pieces import harmless as harmless
from adlm.samplers.state import StepEvent
from adlm.text_model import TextModel
from adlm.types import Batch

_PAUSE = 1 / 15  # seconds between two pictures, at least
_SHARE = 10  # of the time, one part in so many goes into pictures, at most
_BLANK, _TAKEN_BACK, _ANCHOR, _SPECIAL = "dim", "red", "bold cyan", "dim"
_FRESH = "reverse"


class LiveView:
    """A watcher of samplers that shows what they do. `with LiveView(model, console) as view: generate(watch=view)`.

    Args:
        limit: how many tokens after the prompt are to be written, where not all are.
    """

    def __init__(self, model: TextModel, console: Console, *, limit: int | None = None) -> None:
        self.mask_id, self.limit, self.console = model.tokenizer.mask_id, limit, console
        self.causal = model.network.causal
        self.rule, self.pieces = anchor_rule(model.config), Pieces(model.tokenizer)
        roles = model.tokenizer.roles
        self.special = torch.tensor([roles.eos_id, roles.bos_id, roles.pad_id])
        self.live = Live(console=console, transient=True, auto_refresh=False, vertical_overflow="crop")
        self.began, self.due, self.written = time.perf_counter(), 0.0, 0
        self.given = self.fresh = self.taken = torch.zeros(0, 0, dtype=torch.bool)

    def __enter__(self) -> "LiveView":
        self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    def __call__(self, view: StepEvent) -> None:
        fresh, taken = view.fresh.cpu(), view.remasked.cpu()
        self.written += count_written(view, self.causal)
        if view.step == 0:  # another canvas: what this step has not written was given
            self.given = (view.tokens.cpu() != self.mask_id) & ~fresh
            self.fresh, self.taken = torch.zeros_like(fresh), torch.zeros_like(taken)
        # What happened in steps that were not shown is shown with the next one.
        self.fresh |= fresh
        self.taken = (self.taken | taken) & ~fresh
        now = time.perf_counter()
        if now < self.due and view.step:
            return
        self.live.update(self.picture(view), refresh=True)
        self.due = time.perf_counter() + max(_PAUSE, (_SHARE - 1) * (time.perf_counter() - now))
        self.fresh, self.taken = torch.zeros_like(fresh), torch.zeros_like(taken)

    def picture(self, view: StepEvent) -> Group:
        tokens = view.tokens.cpu()
        shown = self._positions(tokens)
        open_ = shown & ~self.given
        revealed = 1 - int((open_ & (tokens == self.mask_id)).sum()) / max(1, int(open_.sum()))
        speed = self.written / max(time.perf_counter() - self.began, 1e-9)
        steps = f"/{view.steps:,}" if view.steps is not None and view.step < view.steps else ""
        head = f"step {view.step + 1:,}{steps}  {revealed:.0%} revealed  {speed:,.0f} tokens/s"
        anchors = self._anchors(tokens)
        lines, last = self._lines(head), self._legend()
        room = max(1, self.console.height - len(lines) - len(last) - 1)
        count = 0
        for row in range(len(tokens)):
            text = self._row(tokens[row], row, shown[row], anchors[row]).wrap(self.console, self._width)
            if len(text) > room and count:
                break
            lines, room, count = [*lines, *text[:room]], room - len(text) - 1, count + 1
            if room < 1:
                break
            lines.append(Text(""))
        if count < len(tokens):
            lines.append(Text(f"{count} of {len(tokens)} shown", style="dim", no_wrap=True, overflow="ellipsis"))
        return Group(*lines, *last)

    @property
    def _width(self) -> int:
        return max(2, self.console.width)  # a character may be two columns wide

    def _lines(self, line: str) -> list[Text]:
        return list(Text(line, style="bold").wrap(self.console, self._width))

    def _legend(self) -> list[Text]:
        parts = (("░░░ blank", _BLANK), ("fresh", _FRESH), ("anchor", _ANCHOR), ("░░░ taken back", _TAKEN_BACK))
        legend = Text()
        for name, style in parts:
            legend.append(name, style).append("  ")
        return list(legend.wrap(self.console, self._width))

    def _positions(self, tokens: Tensor) -> Tensor:
        """[B, L] bool: the positions worth showing, up to the last one that is given or is to be written."""
        length = tokens.shape[1]
        position = torch.arange(length)
        if self.limit is None:
            return torch.ones_like(tokens, dtype=torch.bool)
        first = (~self.given).int().argmax(-1)
        last_given = (self.given * position).amax(-1)
        return position < torch.maximum(first + self.limit, last_given + 1)[:, None]

    def _anchors(self, tokens: Tensor) -> Tensor:
        """[B, L] bool: anchors among what was written so far."""
        visible = (tokens != self.mask_id) & ~torch.isin(tokens, self.special)
        number = torch.arange(len(tokens))
        try:
            return self.rule.mark(Batch(tokens, visible, number, number))
        except AdlmError:  # a rule may need a table or marks that came with its data
            self.rule = RareInSequence()
            return self.rule.mark(Batch(tokens, visible, number, number))

    def _row(self, tokens: Tensor, row: int, shown: Tensor, anchors: Tensor) -> Text:
        text = Text()
        given, fresh, taken = self.given[row].tolist(), self.fresh[row].tolist(), self.taken[row].tolist()
        special, marks = torch.isin(tokens, self.special).tolist(), anchors.tolist()
        ids = tokens.tolist()
        for i in shown.nonzero()[:, 0].tolist():
            if ids[i] == self.mask_id:
                text.append(self.pieces.blank, _TAKEN_BACK if taken[i] else _BLANK)
                continue
            style = "" if given[i] else _SPECIAL if special[i] else _ANCHOR if marks[i] else ""
            piece = "·" if special[i] else self.pieces[ids[i]]
            word = piece.lstrip(" ")
            text.append(" " * (len(piece) - len(word))).append(word, f"{style} {_FRESH}" if fresh[i] else style)
        return text


def count_written(view: StepEvent, causal: bool) -> int:
    """Tokens that a step has written, less those it took back. From left to right it is one a row: what stands behind
    an end token is filled up, not written."""
    return int(view.fresh.any(-1).sum()) if causal else int(view.fresh.sum()) - int(view.remasked.sum())
