"""The canvas in a terminal while it fills in."""

import time
from types import TracebackType
from typing import NamedTuple

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text
from torch import Tensor

from adlm.pieces import Pieces, anchor_rule, anchors_by, joined
from adlm.samplers.blocks import BlockLayout
from adlm.samplers.state import StepEvent
from adlm.text_model import TextModel

_PAUSE = 1 / 15  # seconds between two pictures, at least
_PICTURES = 10  # at most one part in so many of the time goes into pictures
_BLANK, _TAKEN_BACK, _ANCHOR, _SPECIAL = "dim", "red", "bold cyan", "dim"
_FRESH, _IN_BLOCK, _OPEN_BLOCK, _FINISHED = "reverse", "underline", "yellow", "green"


class LiveView:
    """A step callback that shows the canvas: `with LiveView(model, console) as view: model.generate(on_step=view)`.

    Args:
        limit: how many tokens after the prompt are written, if not all.
        layout: the blocks that are written one after another, if there are any.
    """

    def __init__(
        self, model: TextModel, console: Console, *, limit: int | None = None, layout: BlockLayout | None = None
    ) -> None:
        self.mask_id, self.limit, self.console = model.tokenizer.mask_id, limit, console
        self.end, self.anchored = model.tokenizer.roles.eos_id, model.network.stages > 1
        self.layout = layout if layout is not None and layout.size > 1 else None
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
        self.written += count_written(event, self.end)
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
        self.due = time.perf_counter() + max(_PAUSE, (_PICTURES - 1) * (time.perf_counter() - now))
        self.fresh, self.taken = torch.zeros_like(fresh), torch.zeros_like(taken)

    def picture(self, event: StepEvent) -> Group:
        tokens = event.tokens.cpu()
        shown = self._positions(tokens)
        open_ = shown & ~self.given
        revealed = 1 - int((open_ & (tokens == self.mask_id)).sum()) / max(1, int(open_.sum()))
        speed = self.written / max(time.perf_counter() - self.began, 1e-9)
        steps = f"/{event.steps:,}" if event.steps is not None and event.step < event.steps else ""
        head = f"step {event.step + 1:,}{steps}  {revealed:.0%} revealed  {speed:,.0f} tokens/s"
        blocks = [self._blocks(tokens[row], row, shown[row]) for row in range(len(tokens))]
        if len(blocks) == 1 and blocks[0] is not None:
            head += f"  {blocks[0]}"
        anchors = self._anchors(tokens)
        lines, last = self._lines(head), self._legend()
        room = max(1, self.console.height - len(lines) - len(last) - 1)
        count = 0
        for row in range(len(tokens)):
            text = self._row(tokens[row], row, shown[row], anchors[row], blocks[row]).wrap(self.console, self._width)
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
        parts = [("░░░ blank", _BLANK), ("fresh", _FRESH), ("░░░ taken back", _TAKEN_BACK)]
        if self.anchored:
            parts.append(("anchor", _ANCHOR))
        if self.layout is not None:
            parts += [("░░░ block being written", _OPEN_BLOCK), ("block finished │", _FINISHED)]
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
        """[B, L] bool: anchors among what was written so far, if the model has an anchor stage."""
        if not self.anchored:
            return torch.zeros_like(tokens, dtype=torch.bool)
        return anchors_by(self.rule, tokens, (tokens != self.mask_id) & ~torch.isin(tokens, self.special))

    def _blocks(self, tokens: Tensor, row: int, shown: Tensor) -> "_Blocks | None":
        open_ = (shown & ~self.given[row]).nonzero()[:, 0].tolist()
        if self.layout is None or not open_:
            return None
        blank = next((i for i in open_ if int(tokens[i]) == self.mask_id), None)
        first, size = self.layout.first(open_[0]), self.layout.size
        numbers = [(i - first) // size for i in (open_[0], open_[-1])]
        now = numbers[1] + 1 if blank is None else (blank - first) // size
        return _Blocks(size, first, numbers[0], numbers[1], now)

    def _row(self, tokens: Tensor, row: int, shown: Tensor, anchors: Tensor, blocks: "_Blocks | None") -> Text:
        text = Text()
        given, fresh, taken = self.given[row].tolist(), self.fresh[row].tolist(), self.taken[row].tolist()
        special, marks = torch.isin(tokens, self.special).tolist(), anchors.tolist()
        ids = tokens.tolist()
        pieces = joined(
            [None if t == self.mask_id else "·" if special[i] else self.pieces[t] for i, t in enumerate(ids)]
        )
        for i in shown.nonzero()[:, 0].tolist():
            current = blocks is not None and blocks.number(i) == blocks.now and not given[i]
            if blocks is not None and blocks.closes_before(i):
                text.append("│", _FINISHED)
            if (piece := pieces[i]) is None:
                text.append(self.pieces.blank, _TAKEN_BACK if taken[i] else _OPEN_BLOCK if current else _BLANK)
                continue
            style = "" if given[i] else _SPECIAL if special[i] else _ANCHOR if marks[i] else ""
            style = f"{style} {_IN_BLOCK}".strip() if current else style
            word = piece.lstrip(" ")
            text.append(" " * (len(piece) - len(word))).append(word, f"{style} {_FRESH}" if fresh[i] else style)
        return text


class _Blocks(NamedTuple):
    """The blocks of a row while it is written, numbered from `first`: those with blanks go from `base` to `last`."""

    size: int
    first: int
    base: int
    last: int
    now: int

    def number(self, position: int) -> int:
        return (position - self.first) // self.size

    def closes_before(self, position: int) -> bool:
        """Whether a finished block ends before this position."""
        number = self.number(position)
        return self.base < number <= self.now and number != self.number(position - 1)

    def __str__(self) -> str:
        count = self.last - self.base + 1
        return f"block {min(self.now - self.base + 1, count)} of {count}"


def count_written(event: StepEvent, end: int) -> int:
    """Tokens that a step has written, less those it masked again. What follows the token `end` is filled up, not
    written."""
    ends = event.fresh & (event.tokens == end)
    filled = ends & (ends.cumsum(-1) > 1)
    return int((event.fresh & ~filled).sum()) - int(event.remasked.sum())
