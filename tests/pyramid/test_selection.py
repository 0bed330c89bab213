"""Selection: stable, right-aligned, blind to padding."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from pyramid.selection import best, is_full, rank, take, take_tokens, valid


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


def test_valid_marks_the_last_entries_of_each_row() -> None:
    assert valid((3, 1), 3, torch.device("cpu")).tolist() == [[True] * 3, [False, False, True]]
    assert is_full((3, 3), 3)
    assert not is_full((3, 1), 3)


def test_take_gathers_entries_of_any_trailing_shape() -> None:
    tensor = torch.arange(2 * 1 * 4 * 3).view(2, 1, 4, 3)
    index = torch.tensor([[[0, 3]], [[1, 2]]])
    assert torch.equal(take(tensor, index), torch.stack([tensor[0][:, [0, 3]], tensor[1][:, [1, 2]]]))
    assert torch.equal(take(tensor[..., 0], index), take(tensor, index)[..., 0])
    assert torch.equal(take_tokens(tensor[:1, 0], index[:, 0])[1], tensor[0, 0, [1, 2]])
