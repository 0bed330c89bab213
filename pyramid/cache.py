"""The `CompressedCache` that transformers sees, and the groups of rows in it.

State belongs to the cache of one call and never to the model. transformers' attention layers call `update`,
which only hands the new keys and values through; the engine's attention function puts them into the stores,
because only there every group of rows can have its own length. The reported sequence length is the logical
one, so positions stay true however little is stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from pyramid.selection import Lengths, is_full, padding, valid
from pyramid.store import SLACK, LayerStore
from pyramid.types import Held

if TYPE_CHECKING:
    from pyramid.method import Method
    from pyramid.rotary import Rotation

MERGED_PADDING = 512  # entries of padding that are worth one group less in each decoding step


class Phase(Flag):
    """When a method looks: after the prompt, after a later turn's text, after tokens that only continue what
    is there.
    """

    PROMPT = auto()
    TURN = auto()
    STEP = auto()


@dataclass
class Group:
    """Rows that one method manages.

    stores: one a layer, filled bottom up; tokens: real tokens each row has seen; prompt: the same when its latest
        prompt or turn ended; bottom: what each held in the lowest layer before this forward pass.
    budgets: each row's own, once rows of methods that differ in nothing else were merged.
    acting: whether the method looks at the forward pass under way.
    """

    method: Method
    stores: list[LayerStore] = field(default_factory=list)
    tokens: Lengths = ()
    prompt: Lengths = ()
    bottom: Lengths = ()
    budgets: tuple[Any, ...] | None = None
    acting: bool = False

    def held(self, row: int) -> Held:
        """What one row holds now."""
        return Held(
            tokens=tuple(store.lengths[row] for store in self.stores),
            bytes=sum(store.row_bytes(row) for store in self.stores),
        )

    def compressed(self, row: int) -> bool:
        return any(store.lengths[row] < self.tokens[row] for store in self.stores)

    @staticmethod
    def joined(method: Method, groups: Sequence[Group]) -> Group:
        """A new group of `method` with the rows of all, which give their stores up for it: no more than one layer lies
        there twice."""
        stores = []
        for _ in range(len(groups[0].stores)):
            stores.append(LayerStore.stacked([group.stores.pop(0) for group in groups]))
        return Group(
            method,
            stores,
            tuple(tokens for group in groups for tokens in group.tokens),
            tuple(prompt for group in groups for prompt in group.prompt),
        )

    def select_rows(self, rows: Sequence[int]) -> Group:
        """A new group with only these rows."""

        def chosen(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(values[row] for row in rows)

        return Group(
            self.method,
            [store.select_rows(rows) for store in self.stores],
            chosen(self.tokens),
            chosen(self.prompt),
            budgets=None if self.budgets is None else chosen(self.budgets),
        )


@dataclass
class Stream:
    """The hidden states that travel up the layers during one forward pass.

    lengths: real tokens of each row in the stream; index: (rows, tokens) where they stood in the input, None
        while all are there;
    mask: (rows, tokens) bool of real tokens or None; work: sum over the layers passed of each row's tokens.
    """

    lengths: Lengths
    index: Tensor | None = None
    narrowed: tuple[Tensor, Lengths] | None = None
    work: list[int] = field(default_factory=list)


class CompressedCache(Cache):
    """What transformers holds as the cache of one batch.

    Rows lie group after group. While the prompt is prefilled all groups share the same rows: each layer's
    observation is shown to every method, each gets a store of its own, and the batch has one row a prompt.
    Afterwards it has one row a prompt and method.

    Args:
        methods: one group each.
        num_layers: decoder layers of the model.
        heads: `kv` stores key/value heads; `query` repeats them per query head before anything is scored, as
            published code did.
    """

    def __init__(self, methods: Sequence[Method], num_layers: int, heads: str = "kv") -> None:
        super().__init__(layers=[])
        assert heads in ("kv", "query"), heads
        self.groups = [Group(method) for method in methods]
        self.num_layers, self.heads = num_layers, heads
        self.width = 0  # columns of the attention mask so far, padding included
        self.phase = Phase.PROMPT  # of the forward pass under way
        self.next_phase: Phase | None = None  # of the next one, where it differs from what its shape suggests
        self.stream = Stream(())
        self.compression_seconds = 0.0
        self.full_entry_bytes = (
            0  # what one token takes in all layers of an uncompressed key/value-head cache
        )
        self.rotation: Rotation | None = None
        self._masks: dict[Any, Tensor] = {}
        self._paddings: dict[Any, Tensor] = {}

    @property
    def shared(self) -> bool:
        """Whether the forward pass under way, or the next one, is the prompt's."""
        return any(len(group.stores) < self.num_layers for group in self.groups)

    @property
    def rows(self) -> int:
        return sum(len(group.tokens) for group in self.groups)

    def begin(self, new: int, mask: Tensor | None, rows: int, phase: Phase) -> None:
        """Note what arrives with this forward pass.

        Args: new: tokens a row, padding included; mask: (rows, width + new) or None.
        """
        if mask is None or (new == 1 and self.width):
            arriving = (new,) * rows
        else:
            arriving = _arriving(mask[:, -new:])
        self.width += new
        self.phase, self.stream, self._masks = phase, Stream(arriving, work=[0] * rows), {}
        taken = 0
        for group in self.groups:
            if self.shared:
                group.tokens = arriving
            else:
                mine = arriving[taken : taken + len(group.tokens)]
                taken += len(mine)
                group.tokens = tuple(a + b for a, b in zip(group.tokens, mine, strict=True))
                group.bottom = group.stores[0].lengths
            if phase is not Phase.STEP:
                assert group.budgets is None, "merged rows are for decoding"
                group.prompt = group.tokens
            group.acting = bool(phase & group.method.phases)

    def attention_mask(self, lengths: Lengths, entries: int, new: int, device: torch.device) -> Tensor | None:
        """(rows, 1, new, entries) bool of what each new token sees, or None where the kernel's own causal
        rule says the same.
        """
        if is_full(lengths, entries) and new in (1, entries):
            return None
        key = (lengths, entries, new, device)
        if key not in self._masks:
            if new == 1:
                mask = valid(lengths, entries, device)[:, None, None, :]
            else:
                mask = torch.ones(new, entries, dtype=torch.bool, device=device).tril(entries - new)
                if not is_full(lengths, entries):
                    itself = torch.eye(entries, dtype=torch.bool, device=device)[entries - new :]
                    mask = (mask & valid(lengths, entries, device)[:, None, None, :]) | itself
            self._masks[key] = mask.expand(len(lengths), 1, new, entries)
        return self._masks[key]

    def hidden_padding(self, lengths: Lengths, entries: int, like: Tensor) -> Tensor:
        """What hides padding from one new token, to add to its logits. As long as entries only arrive, one such tensor
        with some room serves many steps.

        Returns: (rows, 1, 1, entries) of `like`'s type, 0 or minus infinity."""
        key = (tuple(entries - length for length in lengths), like.dtype, like.device)
        found = self._paddings.get(key)
        if found is None or found.shape[3] < entries:
            wide = entries + SLACK
            outside = padding([length + SLACK for length in lengths], wide, like.device)[:, None, None, :]
            found = like.new_zeros(outside.shape).masked_fill_(outside, -math.inf)
            self._paddings[key] = found
        return found[..., :entries]

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Let all other rows go.

        Args: rows: ascending indices over all groups. A group without rows goes too.
        """
        start, groups = 0, []
        for group in self.groups:
            mine = [row - start for row in rows if start <= row < start + len(group.tokens)]
            start += len(group.tokens)
            if len(mine) == len(group.tokens):
                groups.append(group)
            elif mine:
                groups.append(group.select_rows(mine))
        self.groups, self._paddings = groups, {}

    def merge(self) -> list[int]:
        """Put rows together that decode alike, so that a step visits fewer groups: rows of methods that only read, and
        rows of methods that act at each step and differ in their budget only. Where shorter rows would need much
        padding for it, they make a group of their own.

        Returns: for each row, in its new place, where it stood before."""
        starts, start = [], 0
        for group in self.groups:
            starts.append(range(start, start + len(group.tokens)))
            start += len(group.tokens)
        kinds: dict[Any, list[int]] = {}
        for number, group in enumerate(self.groups):
            kinds.setdefault(group.method.decoding_kind, []).append(number)
        together = [numbers for alike in kinds.values() for numbers in self._of_like_length(alike)]
        order = [row for numbers in together for number in numbers for row in starts[number]]
        self.groups = [_merged([self.groups[number] for number in numbers]) for numbers in together]
        return order

    def _of_like_length(self, numbers: list[int]) -> list[list[int]]:
        """Groups, from long to short, cut where the padding of one more would cost more than a group of its own."""
        length = {n: sum(store.entries for store in self.groups[n].stores) / self.num_layers for n in numbers}
        cut: list[list[int]] = []
        for number in sorted(numbers, key=length.__getitem__, reverse=True):
            padding = (
                len(self.groups[number].tokens) * (length[cut[-1][0]] - length[number]) if cut else math.inf
            )
            if padding <= MERGED_PADDING:
                cut[-1].append(number)
            else:
                cut.append([number])
        return cut

    def drop_last(self) -> None:
        """Forget the newest token of every row, so that it can be fed again."""
        for group in self.groups:
            group.tokens = tuple(tokens - 1 for tokens in group.tokens)
            for store in group.stores:
                store.drop_last()
        self.width -= 1

    # What transformers asks of a cache.

    @property
    def is_compileable(self) -> bool:
        return False

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.width

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.width

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:
        new = query_length if isinstance(query_length, int) else query_length.shape[0]
        return self.width + new, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return -1

    def reorder_cache(self, beam_idx: Tensor) -> None:
        raise ValueError("a compressed cache cannot follow beam search: use num_beams=1")

    def __len__(self) -> int:
        return self.num_layers


def _merged(groups: list[Group]) -> Group:
    if len(groups) == 1:
        return groups[0]
    merged = Group.joined(groups[0].method, groups)
    merged.budgets = tuple(getattr(g.method, "budget", None) for g in groups for _ in g.tokens)
    return merged


def _arriving(mask: Tensor) -> Lengths:
    """Real tokens of each row.

    Args: mask: (rows, new). Errors: ValueError if padding stands anywhere but on the left.
    """
    mask = mask.bool().cpu()
    lengths = mask.sum(-1)
    left_padded = torch.arange(mask.shape[1]) >= (mask.shape[1] - lengths)[:, None]
    if not bool((mask == left_padded).all()):
        raise ValueError("compressed attention needs padding on the left: set tokenizer.padding_side='left'")
    return tuple(lengths.tolist())
