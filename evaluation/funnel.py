"""The picture behind the pyramid: how attention narrows from layer to layer, and what of a prompt is kept.

`scripts.funnel` measures one real prompt; this file holds what it measured and draws it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from evaluation import files
from evaluation.drawing import finish_with, nested, panels_of, style, write_title
from evaluation.palette import INK, QUIET, look, place

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = "viridis"  # reads with every kind of colour vision, and in grey
FLOOR, TOP = 1e-4, 0.1  # shares of a token's attention below and above which all is one colour


@dataclass(frozen=True, kw_only=True)
class Funnel:
    """One prompt as one model reads it.

    spans: part of the prompt to its first token and the one after its last.
    maps: layer, counted from 1, to a square of attention: row i, column j is the share of its attention that
        a token of the i-th part of the prompt pays to a token of the j-th, a mean over heads and tokens.
    concentration: for each layer, the share of all tokens that a head needs for `mass` of the attention which
        the last `window` tokens pay; a mean over heads and tokens.
    attention: for each layer, span to the share of that attention which goes to the span.
    kept: method to span to the share of the span's tokens that are kept, a mean over heads, for each layer.
    """

    model: str
    prompt: str
    tokens: int
    budget: int
    window: int
    mass: float
    spans: Mapping[str, tuple[int, int]]
    maps: Mapping[str, Sequence[Sequence[float]]]
    concentration: Sequence[float]
    attention: Sequence[Mapping[str, float]]
    kept: Mapping[str, Mapping[str, Sequence[float]]]

    def save(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), separators=(",", ":")) + "\n", encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: Path) -> Funnel:
        """Errors: ValueError if there is no such file, or if it is unreadable."""
        if not path.exists():
            raise ValueError(f"{path} is not there; `python -m scripts.funnel` makes it")
        values = files.read_json(path)
        return cls(**{**values, "spans": {name: (a, b) for name, (a, b) in values["spans"].items()}})


def figures(funnel: Funnel) -> dict[str, Figure]:
    """Name to figure."""
    return {
        "attention_by_layer": map_figure(funnel),
        "concentration_by_layer": concentration_figure(funnel),
        "kept_by_span": span_figure(funnel),
    }


def map_figure(funnel: Funnel) -> Figure:
    """Who attends to whom, one panel a layer."""
    from matplotlib.colors import LogNorm

    across = 3
    figure, panels = panels_of(len(funnel.maps), (2.9, 2.35), across=across)
    size = funnel.tokens
    with style():
        for number, (axes, (layer, rows)) in enumerate(zip(panels, funnel.maps.items(), strict=True)):
            grid = [
                [max(value, FLOOR) if j <= i else math.nan for j, value in enumerate(row)]
                for i, row in enumerate(rows)
            ]
            image = axes.imshow(grid, norm=LogNorm(FLOOR, TOP), cmap=COLOURS, extent=(0, size, size, 0))
            axes.set_title(f"layer {layer}")
            axes.grid(visible=False)
            if number + across >= len(panels):
                axes.set_xlabel("attended token")
            if number % across == 0:
                axes.set_ylabel("attending token")
            if number == len(panels) - 1:
                bar = figure.colorbar(image, ax=panels, shrink=0.85, aspect=30, extend="both")
                bar.set_label("share of attention, per token", fontsize=9)
        write_title(figure, _title("Attention by layer", funnel))
    return figure


def concentration_figure(funnel: Funnel) -> Figure:
    """How many tokens carry nearly all attention, and which span it goes to, layer by layer."""
    figure, (left, right) = panels_of(2, (4.6, 3.2))
    layers = range(1, len(funnel.concentration) + 1)
    with style():
        needed = [100 * share for share in funnel.concentration]
        left.plot(layers, needed, color=INK, linewidth=1.8, marker="o", markersize=4)
        left.set(xlabel="layer, from the input up", ylabel="share of the prompt (%)")
        left.set_title(f"tokens that carry {funnel.mass:.0%} of the attention")
        left.set_ylim(bottom=0)
        shares = [[100 * layer[span] for layer in funnel.attention] for span in funnel.spans]
        right.stackplot(layers, shares, labels=list(funnel.spans), colors=_SPAN_COLOURS, linewidth=0)
        right.set(xlabel="layer, from the input up", ylabel="share of the attention (%)", ylim=(0, 100))
        right.set_title("where the attention goes")
        right.margins(x=0)
        figure.legend(loc="outside lower center", ncols=3, fontsize=8.5)
        title = _title(f"Attention of the last {funnel.window} tokens", funnel)
        write_title(figure, title)
    return figure


def span_figure(funnel: Funnel) -> Figure:
    """What share of each span every method keeps: over all layers, and of the needle layer by layer."""
    figure, (left, right) = panels_of(2, (4.6, 3.4))
    methods = sorted(funnel.kept, key=place)
    with style():
        _span_panel(left, funnel, methods)
        last = "needle" if "needle" in funnel.spans else list(funnel.spans)[-1]
        lines = {method: [100 * share for share in funnel.kept[method][last]] for method in methods}
        for method, drawn in nested(lines).items():
            right.plot(range(1, len(lines[method]) + 1), lines[method], **drawn)
        right.set(xlabel="layer, from the input up", ylabel="kept (% of the span's tokens)")
        right.set_ylim(bottom=0)
        right.set_title(f"{last}, layer by layer")
        finish_with(figure, _title(f"What is kept at budget {funnel.budget}", funnel), methods)
    return figure


# for spans, not for methods: greys for the template, blues for the text, one accent for the needle
_SPAN_COLOURS = ("#c9ccd1", "#9ecae1", "#d95f0e", "#3182bd", "#08306b", "#7f858d")


def _span_panel(axes: Axes, funnel: Funnel, methods: Sequence[str]) -> None:
    height = 0.8 / len(methods)
    spans = list(funnel.spans)
    for number, method in enumerate(methods):
        shares = [100 * fmean(funnel.kept[method][span]) for span in spans]
        places = [position + (number + 0.5) * height - 0.4 for position in range(len(spans))]
        axes.barh(places, shares, height=height * 0.9, color=look(method).colour)
    sizes = [end - start for start, end in funnel.spans.values()]
    axes.set_yticks(range(len(spans)), [f"{span}\n({size})" for span, size in zip(spans, sizes, strict=True)])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.set(xlabel="kept (% of the span's tokens)", xlim=(0, 104))
    axes.set_title("spans with their tokens, mean over layers")
    axes.spines["left"].set_color(QUIET)


def _title(what: str, funnel: Funnel) -> str:
    return f"{what}: {funnel.model}, {funnel.prompt}, {funnel.tokens:,} tokens"
