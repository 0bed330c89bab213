"""How methods look: the same name, colour, marker and place in every table, figure and page.

The colours are those of Okabe and Ito (https://jfly.uni-koeln.de/color/), which people with any kind of
colour vision can tell apart; the markers do the same in grey.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

INK, QUIET, GRID = "#22252b", "#6b7078", "#e3e5e8"


@dataclass(frozen=True, kw_only=True)
class Look:
    """label: as people write the method's name; colour: #rrggbb; marker: matplotlib's letter for a shape."""

    label: str
    colour: str
    marker: str


STOCK = "stock"  # no method: transformers' own generate(), which the efficiency suite measures beside FullKV

# in the order of tables and legends
METHODS = {
    "fullkv": Look(label="FullKV", colour="#000000", marker="s"),
    "pyramidkv": Look(label="PyramidKV", colour="#d55e00", marker="^"),
    "snapkv": Look(label="SnapKV", colour="#0072b2", marker="o"),
    "h2o": Look(label="H2O", colour="#009e73", marker="D"),
    "streamingllm": Look(label="StreamingLLM", colour="#e69f00", marker="v"),
    "pyramidinfer": Look(label="PyramidInfer", colour="#cc79a7", marker="P"),
    "truncated": Look(label="Truncated prompt", colour="#56b4e9", marker="X"),
    "random": Look(label="Random eviction", colour="#8c8c8c", marker="*"),
    STOCK: Look(label="transformers generate()", colour="#6b4c2a", marker="h"),
}
# for methods that are not among them; from Paul Tol's muted scheme, none of the colours above
SPARE_COLOURS = ("#332288", "#882255", "#999933", "#117733", "#661100", "#44aa99")
SPARE_MARKERS = ("<", ">", "p", "h", "d", "8")


def look(method: str) -> Look:
    """How `method` looks. An unknown one gets a spare look that depends on its name alone."""
    if method in METHODS:
        return METHODS[method]
    number = int.from_bytes(hashlib.sha256(method.encode()).digest()[:4], "big") % len(SPARE_COLOURS)
    return Look(label=method, colour=SPARE_COLOURS[number], marker=SPARE_MARKERS[number])


def place(method: str) -> tuple[int, str]:
    """What to sort methods by: FullKV first, unknown methods last by name."""
    known = list(METHODS)
    return (known.index(method) if method in known else len(known), method)
