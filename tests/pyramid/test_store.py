"""The stores against rows of plain lists: what is appended, chosen, dropped and stacked is where it belongs."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyramid.store import LayerStore

HEADS, SIZE = 2, 3
Rows = list[list[list[int]]]  # [row][head][entry]: the entry's number


def tensors_of(rows: Rows, padding: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys, values and a column in which every entry shows its number; what is no entry shows -1."""
    entries = padding + max(len(row[0]) for row in rows)
    column = torch.full((len(rows), HEADS, entries), -1.0)
    for number, row in enumerate(rows):
        for head, content in enumerate(row):
            column[number, head, entries - len(content) :] = torch.tensor(content, dtype=torch.float)
    keys = column[..., None] + torch.arange(SIZE) / 4
    return keys, keys + 1000, column


def store_of(rows: Rows, padding: int) -> LayerStore:
    keys, values, column = tensors_of(rows, padding)
    store = LayerStore(keys, values, [len(row[0]) for row in rows])
    store.columns = {"number": column}
    return store


def check(store: LayerStore, rows: Rows) -> None:
    assert store.lengths == tuple(len(row[0]) for row in rows)
    keys, values, column = tensors_of(rows)
    for number, length in enumerate(store.lengths):
        assert torch.equal(store.keys[number, :, -length:], keys[number, :, -length:])
        assert torch.equal(store.values[number, :, -length:], values[number, :, -length:])
        assert torch.equal(store.columns["number"][number, :, -length:], column[number, :, -length:])


@settings(deadline=None)
@given(st.data())
def test_a_store_does_what_lists_do(data: st.DataObject) -> None:
    """Any sequence of steps on padded rows, whose heads hold different entries once something was evicted."""
    numbers = iter(range(10_000))
    rows: Rows = [
        [fresh for _ in range(HEADS)]
        for fresh in ([next(numbers) for _ in range(data.draw(st.integers(3, 6)))] for _ in range(3))
    ]
    store = store_of(rows, padding=data.draw(st.integers(0, 2)))
    for _ in range(data.draw(st.integers(1, 8))):
        match data.draw(st.sampled_from(["append", "keep", "drop after", "drop last", "select", "stack"])):
            case "append":
                new = [[next(numbers)] for _ in rows]
                keys, values, column = tensors_of([[fresh] * HEADS for fresh in new])
                store.append(keys, values, [1] * len(rows))
                assert not store.columns["number"][..., -1].any(), "a column starts at 0"
                store.columns["number"][..., -1:] = column
                rows = [[head + fresh for head in row] for row, fresh in zip(rows, new, strict=True)]
            case "keep":
                keep = [data.draw(st.integers(3, len(row[0]))) for row in rows]
                index = torch.zeros(len(rows), HEADS, max(keep), dtype=torch.long)
                for number, (row, kept) in enumerate(zip(rows, keep, strict=True)):
                    for head in range(HEADS):
                        chosen = sorted(data.draw(st.permutations(range(len(row[head]))))[:kept])
                        index[number, head, max(keep) - kept :] = torch.tensor(chosen)
                        row[head] = [row[head][place] for place in chosen]
                    index[number, :, max(keep) - kept :] += store.entries - store.lengths[number]
                before = store.keys.clone()
                observed, store = store, store.kept(index, keep, room=data.draw(st.integers(0, 1)))
                assert torch.equal(observed.keys, before)
            case "drop after" if min(store.lengths) > 3:
                oldest = data.draw(st.integers(0, 3))
                store.drop_after(oldest)
                rows = [[head[:oldest] + head[oldest + 1 :] for head in row] for row in rows]
            case "drop last" if min(store.lengths) > 3:
                store.drop_last()
                rows = [[head[:-1] for head in row] for row in rows]
            case "select":
                chosen = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1)))
                store, rows = store.select_rows(chosen), [rows[number] for number in chosen]
            case "stack" if len(rows) < 6:
                more = [[next(numbers) for _ in range(data.draw(st.integers(3, 6)))]]
                store = LayerStore.stacked([store, store_of([more * HEADS], 0)])
                rows = [*rows, more * HEADS]
            case _:
                pass
        rows = [[list(head) for head in row] for row in rows]
        check(store, rows)


def test_keys_left_out_of_a_drop_stay_in_their_place() -> None:
    """For a method that writes them itself: values move, keys do not."""
    store = store_of([[[0, 1, 2, 3, 4]] * HEADS], 0)
    store.drop_after(2, keys=False)
    assert store.keys[0, 0, :, 0].tolist() == [1, 2, 3, 4]
    assert store.values[0, 0, :, 0].tolist() == [1000, 1001, 1003, 1004]
