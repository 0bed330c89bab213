"""Our numbers beside published ones: python -m scripts.compare published=pyramidkv_table1 runs=results

published: a table of results/published. runs: the folder that holds runs/. mix: what may differ among the
runs, for example protocol. out: a folder for the comparison as .md, .csv and .tex; empty writes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from evaluation import comparison, published
from evaluation.sheet import print_sheet, write_sheet
from scripts.report import grouped, read_results
from scripts.settings import listed, run

DEFAULTS = {"published": "pyramidkv_table1", "runs": "results", "mix": "", "out": ""}


def compare(settings: Mapping[str, str]) -> None:
    """Print one comparison for every group of runs that may stand together and has a counterpart."""
    name, mix = settings["published"], listed(settings["mix"])
    theirs = published.load(name)
    results = read_results(settings["runs"])
    found, refusal = 0, None
    for group_name, group in grouped(results, mix).items():
        try:
            sheet = comparison.comparison_sheet(name, theirs, group, mix)
        except comparison.NoCounterpart as error:
            refusal = error
            continue
        found += 1
        print_sheet(sheet, sys.stdout)
        if settings["out"]:
            for file in write_sheet(sheet, Path(settings["out"]) / group_name):
                print(file)
    if not found and refusal:
        raise refusal


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if there was something to compare, 2 for bad input."""
    return run(compare, arguments, DEFAULTS, __doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
