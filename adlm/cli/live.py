"""The canvas in a terminal while it fills in."""

import time
from types import TracebackType

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text
from torch import Tensor

from adlm.pieces import Pieces, anchor_rule, anchors_by
from adlm.pieces import harmless as harmless
from adlm.samplers.state import StepEvent
from adlm.text_model import TextModel

_PAUSE = 1 / 15  # seconds between two pictures, at least
_SHARE = 10  # of the time, one part in so many goes into pictures, at most
_BLANK, _TAKEN_BACK, _ANCHOR, _SPECIAL = "dim", "red", "bold cyan", "dim"
_FRESH = "reverse"


class LiveView:
    """A step callback that shows the canvas: `with LiveView(model, console) as view: model.generate(on_step=view)`.

    Args:
        limit: how many tokens after the prompt are written, if not all.
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

    def __call__(self, event: StepEvent) -> None:
        fresh, taken = event.fresh.cpu(), event.remasked.cpu()
        self.written += count_written(event, self.causal)
        if event.step == 0:  # another canvas: what this step has not written was given
            self.given = (event.tokens.cpu() != self.mask_id) & ~fresh
            self.fresh, self.taken = torch.zeros_like(fresh), torch.zeros_like(taken)
        # What happened in steps that were not shown is shown with the next one.
        self.fresh |= fresh
        self.taken = (self.taken | taken) & ~fresh
        now = time.perf_counter()
        if now < self.due and event.step:
            return
        self.live.update(self.picture(event), refresh=True)
        self.due = time.perf_counter() + max(_PAUSE, (_SHARE - 1) * (time.perf_counter() - now))
        self.fresh, self.taken = torch.zeros_like(fresh), torch.zeros_like(taken)

    def picture(self, event: StepEvent) -> Group:
        tokens = event.tokens.cpu()
        shown = self._positions(tokens)
        open_ = shown & ~self.given
        revealed = 1 - int((open_ & (tokens == self.mask_id)).sum()) / max(1, int(open_.sum()))
        speed = self.written / max(time.perf_counter() - self.began, 1e-9)
        steps = f"/{event.steps:,}" if event.steps is not None and event.step < event.steps else ""
        head = f"step {event.step + 1:,}{steps}  {revealed:.0%} revealed  {speed:,.0f} tokens/s"
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
        return anchors_by(self.rule, tokens, (tokens != self.mask_id) & ~torch.isin(tokens, self.special))

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


def count_written(event: StepEvent, causal: bool) -> int:
    """Tokens that a step has written, less those it masked again. From left to right it is one per row: what follows an
    end token is filled up, not written."""
    return int(event.fresh.any(-1).sum()) if causal else int(event.fresh.sum()) - int(event.remasked.sum())
