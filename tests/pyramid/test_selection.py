"""Selection: stable, right-aligned, blind to padding."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from pyramid.selection import all_but_worst, best, ends, is_full, rank, take, take_tokens, valid


@given(st.data())
def test_best_equals_a_plain_python_choice_row_by_row(data: st.DataObject) -> None:
    """Padded rows keep what each would keep alone: the highest scores, ties to the older entry, oldest first."""
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    entries = max(lengths)
    scores = torch.zeros(len(lengths), 2, entries)
    for row, length in enumerate(lengths):
        for head in range(2):
            values = data.draw(st.lists(st.integers(0, 3), min_size=length, max_size=length))
            scores[row, head, entries - length :] = torch.tensor(values, dtype=torch.float)
    keep = [data.draw(st.integers(1, length)) for length in lengths]
    index = best(rank(scores, lengths), keep)
    for row, (length, kept) in enumerate(zip(lengths, keep, strict=True)):
        for head in range(2):
            slots = range(entries - length, entries)
            expected = sorted(sorted(slots, key=lambda slot: (-float(scores[row, head, slot]), slot))[:kept])
            assert index[row, head, index.shape[-1] - kept :].tolist() == expected


@given(st.data())
def test_all_but_the_worst_equals_the_best_but_one(data: st.DataObject) -> None:
    """Few values, so that ties are common; some entries are sure to stay."""
    lengths = data.draw(st.lists(st.integers(2, 9), min_size=1, max_size=4))
    entries = max(lengths) + data.draw(st.integers(0, 2))
    values = st.sampled_from([0.0, 1.0, 2.0, float("inf")])
    scores = torch.tensor(
        [[data.draw(st.lists(values, min_size=entries, max_size=entries)) for _ in range(2)] for _ in lengths]
    )
    scores[:, :, -2] = 1.0
    expected = best(rank(scores, lengths), [length - 1 for length in lengths])
    index = all_but_worst(scores, lengths)
    assert index.shape == expected.shape and int(index.min()) >= 0 and int(index.max()) < entries
    for row, length in enumerate(lengths):
        assert torch.equal(index[row, :, 1 - length :], expected[row, :, 1 - length :])


def test_valid_marks_the_last_entries_of_each_row() -> None:
    assert valid((3, 1), 3, torch.device("cpu")).tolist() == [[True] * 3, [False, False, True]]
    assert is_full((3, 3), 3)
    assert not is_full((3, 1), 3)


def test_ends_are_each_rows_oldest_and_newest_entries() -> None:
    """Padding is neither; where both overlap an entry is marked once."""
    marked = ends((5, 3, 2), 5, 1, (2, 0, 3), torch.device("cpu"))
    assert marked.int().tolist() == [[1, 0, 0, 1, 1], [0, 0, 1, 0, 0], [0, 0, 1, 1, 1]]


def test_take_gathers_entries_of_any_trailing_shape() -> None:
    tensor = torch.arange(2 * 1 * 4 * 3).view(2, 1, 4, 3)
    index = torch.tensor([[[0, 3]], [[1, 2]]])
    assert torch.equal(take(tensor, index), torch.stack([tensor[0][:, [0, 3]], tensor[1][:, [1, 2]]]))
    assert torch.equal(take(tensor[..., 0], index), take(tensor, index)[..., 0])
    assert torch.equal(take_tokens(tensor[:1, 0], index[:, 0])[1], tensor[0, 0, [1, 2]])


def test_take_is_exact_whatever_the_layout_in_memory() -> None:
    """As attention layers give them: transposed; as stores hold them: a slice of a buffer; and neither."""
    whole = torch.arange(3 * 2 * 9 * 4, dtype=torch.float).view(3, 9, 2, 4)
    layouts = [
        whole.transpose(1, 2),
        whole.transpose(1, 2).contiguous()[:, :, 2:7],
        whole.view(3, 2, 9, 4)[1:],
    ]
    layouts += [whole.view(3, 2, 4, 9).transpose(2, 3), whole.view(3, 2, 9, 4)[..., :3]]
    for tensor in layouts:
        rows, heads, entries, _ = tensor.shape
        index = torch.randint(entries, (rows, heads, 5), generator=torch.Generator().manual_seed(0))
        taken = take(tensor, index)
        for row in range(rows):
            for head in range(heads):
                assert torch.equal(taken[row, head], tensor[row, head][index[row, head]])
