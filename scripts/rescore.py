"""Score LongBench predictions again, without a model: python -m scripts.rescore PATH"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from evaluation.longbench_rescoring import SetScore, rescore
from evaluation.longbench_scoring import Average, averages, plain_average
from evaluation.longbench_table import BUCKETS, EXTENDED
from evaluation.metrics import CODE_SIMILARITIES

SENTENCES = 5  # on one file; more of them say no more
TABLE_WIDTH = 200  # columns: wider than any table here, so that no terminal's width cuts a number


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every row was scored, 1 if some could not be, 2 if there was nothing to score."""
    options = _parser().parse_args(arguments)
    try:
        groups = rescore(
            options.path,
            code_similarity=options.code_similarity,
            data=options.data,
            extended=options.extended,
        )
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        lines = {name: {score.label: score.official for score in group} for name, group in groups.items()}
        print(json.dumps(next(iter(lines.values())) if len(lines) == 1 else lines))
    else:
        for name, group in groups.items():
            _print_group(name, group)
    scores = [score for group in groups.values() for score in group]
    for score in scores:
        _print_sentences("not scored", score.problems)
        _print_sentences("note", score.remarks)
    return 1 if any(score.problems for score in scores) else 0


def _print_sentences(kind: str, sentences: Sequence[str]) -> None:
    for sentence in sentences[:SENTENCES]:
        print(f"{kind}: {sentence}", file=sys.stderr)
    if len(sentences) > SENTENCES:
        print(f"{kind}: {len(sentences) - SENTENCES} more of this file", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.rescore", description=__doc__)
    parser.add_argument("path", type=Path, help="a file or folder of predictions, or of this harness's runs")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON line, from set to score, and no table"
    )
    parser.add_argument(
        "--code-similarity",
        choices=CODE_SIMILARITIES,
        help="what compares code; else what the run used, or difflib, which gives the official numbers",
    )
    parser.add_argument("--data", type=Path, help="published rows that the predictions must belong to")
    parser.add_argument(
        "--extended",
        action="store_true",
        help="these are LongBench-E predictions; clear without this in a folder pred_e, and of files SET_e",
    )
    return parser


def _print_group(name: str, scores: Sequence[SetScore]) -> None:
    if name:
        print(name)
    extended = [score for score in scores if score.row and score.row.extended]
    plain = [score for score in scores if score not in extended]
    if plain:
        _print_table({"score": [score.score for score in plain]}, plain)
        for average in averages(_known(plain, [score.score for score in plain]), _in_part(plain)):
            _print_average(average)
    if extended:
        columns = {name: [(score.buckets or {}).get(name) for score in extended] for name in BUCKETS}
        _print_table(columns, extended)
        for name, values in columns.items():
            known = _known(extended, values)
            _print_average(plain_average(f"extended_13 {name}", EXTENDED, known, _in_part(extended)))
    print()


def _known(scores: Sequence[SetScore], values: Sequence[float | None]) -> dict[str, float]:
    pairs = zip(scores, values, strict=True)
    return {score.row.name: value for score, value in pairs if score.row and value is not None}


def _in_part(scores: Sequence[SetScore]) -> set[str]:
    return {score.row.name for score in scores if score.row and score.in_part}


def _print_table(columns: Mapping[str, Sequence[float | None]], scores: Sequence[SetScore]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table("set", "metric", box=box.SIMPLE)
    for head in (*columns, "rows", "zeros by\nscorer error"):
        table.add_column(head, justify="right")
    for score, *values in zip(scores, *columns.values(), strict=True):
        numbers = ["-" if value is None else f"{value:.2f}" for value in values]
        rows = f"{score.rows} of {score.row.rows}" if score.row and score.in_part else str(score.rows)
        table.add_row(score.label, score.metric or "unknown set", *numbers, rows, str(score.scorer_errors))
    Console(file=sys.stdout, highlight=False, markup=False, width=TABLE_WIDTH).print(table)


def _print_average(average: Average) -> None:
    if average.value is not None:
        print(f"  {average.name:<18} {average.value:6.2f}  {average.note}".rstrip())


if __name__ == "__main__":
    sys.exit(main())
