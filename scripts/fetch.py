"""Bring a benchmark's data into the user's cache, once: python -m scripts.fetch longbench"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from evaluation.datasets import SOURCES, fetch


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if the data is there, 2 if it could not be had."""
    parser = argparse.ArgumentParser(prog="python -m scripts.fetch", description=__doc__)
    parser.add_argument("name", choices=SOURCES, help="the benchmark")
    source = SOURCES[parser.parse_args(arguments).name]
    try:
        for file in fetch(source):
            print(file)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
