"""What block diffusion keeps of finished blocks, exactly, so that a pass computes the current block alone.

Position l of a row has slot l. The current block, still noisy, takes the slots after the finished positions for the
time of a pass; once it is finished its positions are read again, clean, and stay. Rows may be at different blocks.

Shapes: B rows, R rows of a pass, K slots, H heads, D width; a pass has noisy sites and then clean ones.
"""

import torch
from torch import Tensor, nn


class Slots:
    """The slots that the sites of a pass write to, and how many slots its rows read.

    Args:
        start: the slot of the first noisy site of each row.
        stored: how many positions of each row the cache has; those up to `start` are read now, clean.
        noisy: noisy sites per row.
        width: slots that the rows look at.
        rows: numbers of the rows in the cache; None for all.

    index: [R|1, S] the slot of each site. Rows with fewer clean positions to read than others read the first of the
        block as well, which is never seen: the noisy site is stored after it, in the same slot.
    """

    def __init__(
        self,
        start: list[int],
        stored: list[int],
        noisy: int,
        width: int,
        rows: list[int] | None,
        device: torch.device,
    ) -> None:
        self.noisy, self.width = noisy, width
        self.clean = max(first - known for first, known in zip(start, stored, strict=True))
        # Rows that stand at the same position write slices; others each their own slots.
        self.at = start[0] if len(set(start)) == 1 and len(set(stored)) == 1 else None
        # Rows side by side are seen without a copy.
        self.rows: slice | Tensor | None = None
        if rows is not None:
            beside = rows == list(range(rows[0], rows[0] + len(rows)))
            self.rows = slice(rows[0], rows[0] + len(rows)) if beside else torch.tensor(rows, device=device)
        from_zero = torch.cat([torch.arange(noisy, device=device), torch.arange(self.clean, device=device)])
        if self.at is not None:
            from_zero[:noisy] += start[0]
            from_zero[noisy:] += stored[0]
            self.index = from_zero[None]
        else:
            first, known = (torch.tensor(each, device=device)[:, None] for each in (start, stored))
            index = from_zero.expand(len(start), -1).clone()
            index[:, :noisy] += first
            index[:, noisy:] = torch.minimum(index[:, noisy:] + known, first)
            self.index = index


class SlotMemory:
    """The slots of one block of a network: keys and values [B, H, K, D/H], and inputs of its convolution [B, K, D].

    Args:
        room: K.
    """

    def __init__(self, rows: int, room: int) -> None:
        self.num_rows, self.room = rows, room
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.inputs: Tensor | None = None
        self.slots: Slots | None = None  # of the pass that is being computed

    def place(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store those of a pass [R, H, S, D/H]; returns what its rows look at [R, H, width, D/H]."""
        keys, values = self.allocated(k, v)
        return self._placed(keys, k, 2), self._placed(values, v, 2)

    def allocated(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values [B, H, K, D/H], of the type and on the device of new ones."""
        if self.keys is None or self.values is None:
            # Zeros, since slots that are never written are masked in scores but multiplied as values.
            self.keys, self.values = (x.new_zeros(self.num_rows, x.shape[1], self.room, x.shape[-1]) for x in (k, v))
        return self.keys, self.values

    def place_inputs(self, x: Tensor) -> Tensor:
        """Store the inputs of the convolution [R, S, D]; returns what the rows of the pass read."""
        return self._placed(self.allocated_inputs(x), x, 1)

    def allocated_inputs(self, x: Tensor) -> Tensor:
        """All inputs of the convolution [B, K, D], of the type and on the device of new ones."""
        if self.inputs is None:
            self.inputs = x.new_zeros(self.num_rows, self.room, x.shape[-1])
        return self.inputs

    def _placed(self, stored: Tensor, new: Tensor, dim: int) -> Tensor:
        slots = self.slots
        assert slots is not None
        noisy, clean = new.split([slots.noisy, slots.clean], dim)
        if slots.at is not None:
            rows = slice(None) if slots.rows is None else slots.rows
            for first, part in ((slots.at - slots.clean, clean), (slots.at, noisy)):
                where = (rows, *[slice(None)] * (dim - 1), slice(first, first + part.shape[dim]))
                stored[where] = part
        else:
            rows_at = slots.rows
            if not isinstance(rows_at, Tensor):
                first_row = 0 if rows_at is None else rows_at.start
                rows_at = torch.arange(first_row, first_row + len(new), device=new.device)
            for index, part in ((slots.index[:, slots.noisy :], clean), (slots.index[:, : slots.noisy], noisy)):
                # [R, S, ...]: rows and slots first
                stored.movedim(dim, 1)[rows_at[:, None], index] = part.movedim(dim, 1)
        seen = stored.narrow(dim, 0, slots.width)
        return seen if slots.rows is None else seen[slots.rows]


class FinishedBlocks:
    """The cache of block diffusion: the slots of all blocks of a network.

    Args:
        rows: B.
        room: slots of a row: its length, and one more for shifted models.

    lengths: how many positions of each row are stored; on the host, where passes are planned.
    """

    def __init__(self, rows: int, room: int) -> None:
        self.num_rows, self.room = rows, room
        self.lengths = [0] * rows
        self._memories: dict[nn.Module, SlotMemory] = {}
        self._slots: Slots | None = None

    def of(self, block: nn.Module) -> SlotMemory:
        """The slots of one block of the network, ready for the pass that was begun."""
        if block not in self._memories:
            self._memories[block] = SlotMemory(self.num_rows, self.room)
        memory = self._memories[block]
        memory.slots = self._slots
        return memory

    def begin(self, slots: Slots) -> None:
        """Begin a pass."""
        self._slots = slots
