"""Turn runs into tables, figures and a page: python -m scripts.report tables

Or figures, page, frame, pack, which writes the finished runs into one file, or show, which prints the tables.

runs: the folder that holds runs/, or a packed file. out: where to write. mix: what may differ within a table,
for example protocol or samples. figures: for the page, a folder of figures that scripts.funnel wrote.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from evaluation import archive, mixture
from evaluation.comparison import comparisons
from evaluation.frame import Result, results_of, write_frames
from evaluation.report import sheets
from evaluation.results import load_runs
from evaluation.sheet import print_sheet, write_sheet
from evaluation.table_rows import groups
from scripts.settings import listed, run

RESULTS = "results"
DEFAULTS = {"runs": RESULTS, "out": "", "mix": ""}


def read_results(folder: str, family: str = "") -> list[Result]:
    """The runs of a results folder, of its folder `runs` or of a packed file, of one family of tasks or of all;
    says on stderr which runs are in no table. Errors: ValueError if there is none."""
    root = archive.folder_of(Path(folder))
    runs = load_runs(root) or (load_runs(root.parent) if root.name == "runs" else [])
    results = [result for result in results_of(runs) if family in ("", result.family)]
    if not results:
        kind = f"finished {family} runs" if family else "finished runs"
        raise ValueError(f"there are no {kind} in {folder}; `python run.py` makes one")
    for each in runs:
        if each.summary is None:
            print(f"left out: {each.key} is {each.status}; its command goes on with it", file=sys.stderr)
    return results


def grouped(results: Sequence[Result], mix: Sequence[str]) -> dict[str, list[Result]]:
    """Runs by table. With `mix`, all of a family in one. Errors: ValueError for what must not be mixed."""
    if not mix:
        return groups(results)
    families = {result.family: [r for r in results if r.family == result.family] for result in results}
    for family in families.values():
        mixture.check(family, mix)
    return {f"{name}-mixed": family for name, family in families.items()}


def write_tables(settings: Mapping[str, str]) -> None:
    mix = listed(settings["mix"])
    for name, results in grouped(read_results(settings["runs"]), mix).items():
        for sheet in [*sheets(results, mix), *comparisons(results, mix)]:
            _say(write_sheet(sheet, Path(settings["out"] or f"{RESULTS}/tables") / name))


def show_tables(settings: Mapping[str, str]) -> None:
    mix = listed(settings["mix"])
    for results in grouped(read_results(settings["runs"]), mix).values():
        for sheet in sheets(results, mix):
            print_sheet(sheet, sys.stdout)


def write_figures(settings: Mapping[str, str]) -> None:
    from evaluation import drawing, efficiency_figures, figures

    everything, target = read_results(settings["runs"]), Path(settings["out"] or f"{RESULTS}/figures")
    for name, results in grouped(everything, listed(settings["mix"])).items():
        folder = target / name
        for stem, figure in figures.figures(results).items():
            _say(drawing.save(figure, folder / stem))
        _say(heatmaps(results, folder))
    if (joined := efficiency_figures.quality_figure(everything)) is not None:
        _say(drawing.save(joined, target / "quality_by_measured_bytes"))


def heatmaps(results: Sequence[Result], folder: Path) -> list[Path]:
    """The needle test's own figure for every run that has one."""
    from needle import heatmap

    files = []
    for result in results:
        if result.family == "needle":
            place = folder / result.run.key.removeprefix("needle-")
            place.mkdir(parents=True, exist_ok=True)
            files += heatmap.draw(result.answered, place, title=result.label)
    return files


def pictures(found: Mapping[str, Sequence[Result]]) -> dict[str, dict[str, bytes]]:
    """Each group's heat maps, by caption."""
    with tempfile.TemporaryDirectory() as folder:
        return {
            name: {
                f"{result.label}: score by depth and length.": file.read_bytes()
                for result in results
                for file in heatmaps([result], Path(folder) / name)
                if file.suffix == ".png"
            }
            for name, results in found.items()
        }


def write_page(settings: Mapping[str, str]) -> None:
    from evaluation import funnel, page

    results = read_results(settings["runs"])
    measured = Path(settings["figures"]) / "funnel.json"
    extra = funnel.figures(funnel.Funnel.load(measured)) if measured.exists() else {}
    target = Path(settings["out"] or f"{RESULTS}/report.html")
    target.parent.mkdir(parents=True, exist_ok=True)
    found = groups(results)
    target.write_text(page.page(found, extra, pictures(found)), encoding="utf-8")
    _say([target])


def write_frame(settings: Mapping[str, str]) -> None:
    _say(write_frames(read_results(settings["runs"]), Path(settings["out"] or f"{RESULTS}/frame")))


def write_archive(settings: Mapping[str, str]) -> None:
    target = Path(settings["out"] or f"{RESULTS}/archive/runs.zip")
    archive.pack([result.run for result in read_results(settings["runs"])], target)
    _say([target])


def _say(files: Sequence[Path]) -> None:
    for file in files:
        print(file)


COMMANDS = {
    "show": (show_tables, {"runs": RESULTS, "mix": ""}),
    "tables": (write_tables, DEFAULTS),
    "figures": (write_figures, DEFAULTS),
    "page": (write_page, {"runs": RESULTS, "out": "", "figures": f"{RESULTS}/figures/funnel"}),
    "pack": (write_archive, {"runs": RESULTS, "out": ""}),
    "frame": (write_frame, {"runs": RESULTS, "out": ""}),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if everything was written, 2 for bad input."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if not given or given[0] not in COMMANDS:
        wants_help = given[:1] in (["--help"], ["-h"])
        print((__doc__ or "").strip(), file=sys.stdout if wants_help else sys.stderr)
        return 0 if wants_help else 2
    command, defaults = COMMANDS[given[0]]
    return run(command, given[1:], defaults, __doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
