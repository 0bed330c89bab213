"""The report as one HTML page: tables that can be sorted, figures, and every sample with all its answers.

The page holds everything it shows and asks no network for anything; it forbids itself to.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean
from typing import TYPE_CHECKING, Any

from evaluation import drawing
from evaluation.comparison import comparisons
from evaluation.figures import figures
from evaluation.frame import BASELINE, Result
from evaluation.page_parts import SCRIPT, STYLE
from evaluation.palette import METHODS, look
from evaluation.report import sheets
from evaluation.sheet import MISSING, Cell, Sheet
from evaluation.summary import turns
from evaluation.table_rows import family_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLES_SHOWN = 200  # of a task, so that the page stays small enough to open
DOTS_PER_INCH = 130
BROAD = 8  # inches: wider figures get the page's width
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
CAPTIONS = {
    "score_by_tokens": "Score against tokens held, with 95 % intervals; dashed: the full cache.",
    "score_by_bytes": "Score against bytes held, with 95 % intervals; dashed: the full cache.",
    "memory": "What the cache holds by length of the prompt, and what the answer adds.",
    "time": "Where the time went.",
    "layers": "Tokens kept in each layer after the prompt.",
    "attention_by_layer": "Who attends to whom, layer by layer.",
    "concentration_by_layer": "How few tokens carry the attention, and where they lie.",
    "kept_by_span": "What of the prompt each method keeps.",
}


def page(
    groups: Mapping[str, Sequence[Result]],
    closing: Mapping[str, Figure],
    pictures: Mapping[str, Mapping[str, bytes]] | None = None,
) -> str:
    """The whole page.

    groups: name to runs that may stand together. closing: figures that belong to no group. pictures: for a
    group, caption to PNG."""
    named = {name: f"{family_title(results)}, {_what(results)}" for name, results in groups.items()}
    links = "".join(f'<a href="#{escape(name)}">{escape(title)}</a>' for name, title in named.items())
    parts = [
        _section(name, named[name], results, (pictures or {}).get(name, {}))
        for name, results in groups.items()
    ]
    if closing:
        parts.append(f'<h2 id="attention">How attention narrows</h2>{_figures(closing)}')
        links += '<a href="#attention">How attention narrows</a>'
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>KV-cache compression: what was run and what came of it</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>KV-cache compression: what was run and what came of it</h1>
<p class="lead">Scores in points from 0 to 100, perplexities as they are. A click on a column's head sorts by it.
What differs in model, protocol, code or samples stands in tables of its own.</p>
<nav>{links}</nav>
</header>
<main>
{"".join(parts)}
</main>
<script>{SCRIPT}</script>
</body>
</html>
"""


def _what(results: Sequence[Result]) -> str:
    spec = results[0].run.spec
    return f"{str(spec.model.get('id')).removeprefix('wheel:')}, protocol {spec.protocol.get('name')}"


def _section(name: str, title: str, results: Sequence[Result], pictures: Mapping[str, bytes]) -> str:
    first, *others = [*sheets(results), *comparisons(results)]
    folded = "".join(
        f"<details><summary>{escape(sheet.title)}</summary>{_table(sheet)}</details>" for sheet in others
    )
    more = "".join(_image(data, caption, caption) for caption, data in pictures.items())
    return f"""<h2 id="{escape(name)}">{escape(title)}</h2>
{_table(first)}
{folded}
{_figures(figures(results), more)}
<h3>Every sample</h3>
{_viewer(results)}
"""


def _table(sheet: Sheet) -> str:
    head = "".join(
        f'<th{_text_class(place, sheet)}><button type="button">{escape(name)}</button></th>'
        for place, name in enumerate(sheet.head)
    )
    bodies = "".join(
        f"<tbody>{''.join(f'<tr>{_cells(row, sheet)}</tr>' for row in rows)}</tbody>"
        for rows in sheet.parted()
    )
    notes = "".join(f"<li{_note_class(note)}>{escape(note)}</li>" for note in sheet.notes)
    table = f'<div class="wide"><table><thead><tr>{head}</tr></thead>{bodies}</table></div>'
    return f'{table}<details><summary>What this rests on</summary><ul class="notes">{notes}</ul></details>'


def _note_class(note: str) -> str:
    return ' class="warning"' if note.startswith("warning") else ""


def _text_class(place: int, sheet: Sheet) -> str:
    return ' class="text"' if place < sheet.labels else ""


def _cells(row: Sequence[Cell], sheet: Sheet) -> str:
    cells = []
    for place, cell in enumerate(row):
        classes = [*(["text"] if place < sheet.labels else []), *([cell.mark] if cell.mark else [])]
        attributes = f' class="{" ".join(classes)}"' if classes else ""
        attributes += f' data-value="{cell.value!r}"' if cell.value is not None else ""
        text = "–" if cell == MISSING else escape(cell.text)
        cells.append(f"<td{attributes}>{_swatch(cell.text) if place == 0 else ''}{text}</td>")
    return "".join(cells)


def _swatch(label: str) -> str:
    """The method's colour, where a cell begins with a method's name."""
    for each in METHODS.values():
        if label == each.label or label.startswith(f"{each.label} ("):
            return f'<span class="swatch" style="background:{each.colour}"></span>'
    return ""


def _figures(found: Mapping[str, Figure], more: str = "") -> str:
    images = "".join(
        _image(_png(figure), CAPTIONS[name], name, "broad" if figure.get_figwidth() > BROAD else "")
        for name, figure in found.items()
    )
    maps = f'<div class="figures small">{more}</div>' if more else ""
    return f'<div class="figures">{images}</div>{maps}'


def _png(figure: Figure) -> bytes:
    data = io.BytesIO()
    with drawing.style():
        figure.savefig(data, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return data.getvalue()


def _image(data: bytes, caption: str, name: str, kind: str = "") -> str:
    source = base64.b64encode(data).decode("ascii")
    image = f'<img alt="{escape(name.replace("_", " "))}" src="data:image/png;base64,{source}">'
    return f'<figure class="{kind}">{image}<figcaption>{escape(caption)}</figcaption></figure>'


def _viewer(results: Sequence[Result]) -> str:
    tasks: dict[str, list[dict[str, Any]]] = {}
    cut = []
    for task in dict.fromkeys(result.task for result in results):
        samples = _samples([result for result in results if result.task == task])
        tasks[task] = samples[:SAMPLES_SHOWN]
        if len(samples) > SAMPLES_SHOWN:
            cut.append(f"{task}: the first {SAMPLES_SHOWN} of {len(samples)} samples")
    said = f'<p class="notes">{escape("; ".join(cut))}</p>' if cut else ""
    data = json.dumps(tasks, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    return f"""<div class="viewer"><div class="bar">
<label>task <select></select></label>
<button type="button" class="back">previous</button> <span class="place"></span>
<button type="button" class="on">next</button>
<label><input type="checkbox"> only where a score differs from FullKV's</label></div>
<div class="shown"></div>{said}<script type="application/json">{data}</script></div>"""


def _samples(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Every sample of a task with the answers of all runs."""
    found: dict[str, dict[str, Any]] = {}
    for result in results:
        for record in result.run.records:
            sample = found.setdefault(
                record["id"],
                {
                    "id": record["id"],
                    "head": record["prompt_head"],
                    "tail": record["prompt_tail"],
                    "references": record["references"],
                    "prompt_tokens": record["prompt_tokens"],
                    "truncated": record["truncated"],
                    "answers": [],
                },
            )
            sample["answers"].append(_answer(result, record))
    return list(found.values())


def _answer(result: Result, record: Mapping[str, Any]) -> dict[str, Any]:
    score = record["scores"].get(result.metric)
    return {
        "label": result.label,
        "colour": look(result.method).colour,
        "full": result.method == BASELINE,
        "text": _text(record),
        "score": None if score is None else result.scale * score,
        "falling": result.lower_is_better,
        "kept": fmean(record["kept_tokens"]) if record["kept_tokens"] else None,
        "tokens": record["new_tokens"],
        "finish": record["finish"],
        "error": record["error"],
    }


def _text(record: Mapping[str, Any]) -> str:
    """What was answered, turn by turn if there are several."""
    texts = [turn["text"] for turn in turns(record)]
    if len(texts) == 1:
        return texts[0]
    return "\n\n".join(f"[turn {number}] {text}" for number, text in enumerate(texts, 1))
