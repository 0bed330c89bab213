"""Where keys and values live: one `LayerStore` per layer and group of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from pyramid import selection
from pyramid.selection import Lengths, is_full, take, take_each

SLACK = 64  # entries of free room when a buffer grows, so that a decoding step copies one entry and not all


class LayerStore:
    """The entries one layer holds for some rows.

    keys, values: (rows, heads, entries, head size), right-aligned per row; see `pyramid.selection`.
    lengths: entries of each row.
    columns: further tensors (rows, heads, entries) that belong to the entries and are evicted with them, such
        as H2O's mass.
    fixed: further tensors (rows, ...) that belong to the rows as a whole; marks: host integers, one a row.
    """

    def __init__(self, keys: Tensor, values: Tensor, lengths: Sequence[int]) -> None:
        self._keys, self._values = keys, values
        self._start, self.entries = 0, keys.shape[2]
        self.lengths: Lengths = tuple(lengths)
        self.columns: dict[str, Tensor] = {}
        self.fixed: dict[str, Tensor] = {}
        self.marks: dict[str, Lengths] = {}

    @property
    def heads(self) -> int:
        return self._keys.shape[1]

    @property
    def keys(self) -> Tensor:
        return self._keys.narrow(2, self._start, self.entries)

    @property
    def values(self) -> Tensor:
        return self._values.narrow(2, self._start, self.entries)

    def append(self, keys: Tensor, values: Tensor, arriving: Sequence[int]) -> None:
        """Add new entries at the end.

        Args: keys, values: (rows, heads, new, size); arriving: how many of them each row really has.
        """
        start, new = self.entries, keys.shape[2]
        if self._start + start + new > self._keys.shape[2]:
            self._keys, self._values, self._start = _grown(self.keys, new), _grown(self.values, new), 0
        self._keys.narrow(2, self._start + start, new).copy_(keys)
        self._values.narrow(2, self._start + start, new).copy_(values)
        self.entries = start + new
        self.columns = {name: F.pad(column, (0, new)) for name, column in self.columns.items()}
        before = self.lengths
        self.lengths = tuple(a + b for a, b in zip(before, arriving, strict=True))
        if not is_full(arriving, new):
            self._close_gaps(before, arriving, start, new)

    def _close_gaps(self, before: Lengths, arriving: Sequence[int], start: int, new: int) -> None:
        """Rows whose new entries are padded on the left move that padding before their older entries."""
        device = self._keys.device
        slots = torch.arange(self.entries, device=device).repeat(len(before), 1)
        for row, (old, fresh) in enumerate(zip(before, arriving, strict=True)):
            real = torch.cat(
                [torch.arange(start - old, start), torch.arange(start + new - fresh, start + new)]
            )
            slots[row, self.entries - old - fresh :] = real.to(device)
        index = slots[:, None].expand(-1, self._keys.shape[1], -1)
        self._gather(index)

    def kept(self, index: Tensor, lengths: Sequence[int], room: int = 0) -> LayerStore:
        """A new store with only the entries of `index`.

        Args: index: (rows, heads, kept), right-aligned; lengths: how many each row keeps; room: free entries behind
        them, so that as many can be appended without another copy."""
        columns = {name: take(column, index) for name, column in self.columns.items()}
        keys, values = take_each((self.keys, self.values), F.pad(index, (0, room)) if room else index)
        store = self._with(keys, values, lengths, columns)
        store.entries = index.shape[2]
        return store

    def drop_after(self, oldest: int, *, keys: bool = True) -> None:
        """Forget the entry that follows each row's `oldest` first ones, in place: only these are moved.

        keys: False leaves out theirs, which somebody else then has to write."""
        columns = [column[..., None] for column in self.columns.values()]
        for tensor in ([self.keys] if keys else []) + [self.values, *columns]:
            matrix, places, step = self.oldest(tensor, oldest)
            matrix.index_copy_(0, places + step, matrix.index_select(0, places))
        self._start, self.entries = self._start + 1, self.entries - 1
        self.lengths = tuple(length - 1 for length in self.lengths)
        self.columns = {name: column[:, :, 1:] for name, column in self.columns.items()}

    def oldest(self, tensor: Tensor, count: int) -> tuple[Tensor, Tensor, int]:
        """Where each row's `count` oldest entries are in a tensor of this store.

        Args: tensor: (rows, heads, entries, size). Returns: a view (places, size) of it, which of these places they
        are, (rows * heads * count,), and how far it is from a place to the next entry's."""
        found = selection.pieces(tensor)
        assert found is not None, "a store that is written to keeps an entry's numbers together"
        matrix, steps = found
        shape = (self.lengths, self.entries, count, self.heads, steps)
        return matrix, selection.oldest_places(*shape, tensor.device), steps[2]

    def copy(self) -> LayerStore:
        """The same entries in tensors of their own."""
        columns = {name: column.clone() for name, column in self.columns.items()}
        return self._with(self.keys.clone(), self.values.clone(), self.lengths, columns)

    def _with(
        self, keys: Tensor, values: Tensor, lengths: Sequence[int], columns: dict[str, Tensor]
    ) -> LayerStore:
        store = LayerStore(keys, values, lengths)
        store.columns, store.fixed, store.marks = columns, dict(self.fixed), dict(self.marks)
        return store

    def remembering(
        self, columns: Mapping[str, Tensor], fixed: Mapping[str, Tensor], marks: Mapping[str, Lengths]
    ) -> LayerStore:
        """The same entries in the same tensors, with these things remembered on top of the others."""
        store = self._with(self._keys, self._values, self.lengths, {**self.columns, **columns})
        store._start, store.entries = self._start, self.entries
        store.fixed.update(fixed)
        store.marks.update(marks)
        return store

    def drop_last(self) -> None:
        """Forget the newest entry of every row."""
        self.entries -= 1
        self.lengths = tuple(length - 1 for length in self.lengths)
        self.columns = {name: column[:, :, :-1] for name, column in self.columns.items()}

    @staticmethod
    def stacked(stores: Sequence[LayerStore]) -> LayerStore:
        """A new store with the rows of all, which have the same columns. What some have never had to remember of their
        rows, because nothing of them was evicted yet, is zero for them."""
        entries = max(store.entries for store in stores)

        def stack(tensors: list[Tensor], room: int = 0) -> Tensor:
            rows = sum(tensor.shape[0] for tensor in tensors)
            stacked = tensors[0].new_empty(rows, tensors[0].shape[1], entries + room, *tensors[0].shape[3:])
            start = 0
            for tensor in tensors:
                stop, padding = start + tensor.shape[0], entries - tensor.shape[2]
                stacked[start:stop, :, :padding] = 0
                stacked[start:stop, :, padding:entries] = tensor
                start = stop
            return stacked

        lengths = tuple(length for store in stores for length in store.lengths)
        store = LayerStore(
            stack([s.keys for s in stores], SLACK), stack([s.values for s in stores], SLACK), lengths
        )
        store.entries = entries
        store.columns = {name: stack([s.columns[name] for s in stores]) for name in stores[0].columns}
        for name in dict.fromkeys(name for s in stores for name in s.fixed):
            like = next(s.fixed[name] for s in stores if name in s.fixed)
            blank = [like.new_zeros(len(s.lengths), *like.shape[1:]) for s in stores]
            store.fixed[name] = torch.cat(
                [s.fixed.get(name, zeros) for s, zeros in zip(stores, blank, strict=True)]
            )
        for name in dict.fromkeys(name for s in stores for name in s.marks):
            store.marks[name] = tuple(v for s in stores for v in s.marks.get(name, (0,) * len(s.lengths)))
        return store

    def select_rows(self, rows: Sequence[int]) -> LayerStore:
        """A new store with only these rows, without padding that none of them needs."""
        lengths = tuple(self.lengths[row] for row in rows)
        skip = self.entries - max(lengths)
        index = torch.tensor(list(rows), device=self._keys.device)
        store = LayerStore(self.keys[index, :, skip:], self.values[index, :, skip:], lengths)
        store.columns = {name: column[index, :, skip:] for name, column in self.columns.items()}
        store.fixed = {name: tensor[index] for name, tensor in self.fixed.items()}
        store.marks = {name: tuple(values[row] for row in rows) for name, values in self.marks.items()}
        return store

    def row_bytes(self, row: int) -> int:
        """Bytes that one row's entries hold, padding and free room not counted, side data included.

        What a row holds of `fixed` tensors, which are as wide as the batch needs, stands in the mark `bytes`."""
        per_entry = sum(t.shape[1] * t.shape[3] * t.element_size() for t in (self._keys, self._values))
        per_entry += sum(c.shape[1] * c.element_size() for c in self.columns.values())
        return self.lengths[row] * per_entry + (self.marks["bytes"][row] if "bytes" in self.marks else 0)

    def _gather(self, index: Tensor) -> None:
        (self._keys, self._values), self._start = take_each((self.keys, self.values), index), 0
        self.columns = {name: take(column, index) for name, column in self.columns.items()}


def _grown(tensor: Tensor, new: int) -> Tensor:
    """The same entries in a buffer with room for `new` and some more."""
    rows, heads, entries, size = tensor.shape
    grown = tensor.new_empty(rows, heads, entries + new + SLACK, size)
    grown[:, :, :entries] = tensor
    return grown
