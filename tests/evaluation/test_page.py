"""The report is one file that needs nothing else, shows answers as they are, and works in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from evaluation.frame import results_of
from evaluation.page import page
from evaluation.results import load_runs
from evaluation.table_rows import groups
from tests.evaluation.made_runs import make

COMMITTED = Path(__file__).resolve().parent.parent / "data" / "results"
EVIL = "</script><img src=x onerror=\"document.title='broken'\"> & <b>bold</b>"
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
QUIET = [
    f"--{option}"
    for option in (
        "headless",
        "no-sandbox",
        "disable-gpu",
        "disable-quic",
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
    )
]


@pytest.fixture(scope="module")
def report() -> str:
    return page(groups(results_of(load_runs(COMMITTED))), {})


def dump(html: str, script: str, folder: Path) -> str:
    """The page's document as the browser has it after `script` ran in it."""
    file = folder / "report.html"
    file.write_text(html.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    command = [str(BROWSER), *QUIET, f"--user-data-dir={folder / 'profile'}", "--dump-dom", file.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_nothing_is_loaded_from_elsewhere(report: str) -> None:
    class Sources(HTMLParser):
        found: list[str]

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found += [
                value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")
            ]

    parser = Sources()
    parser.found = []
    parser.feed(report)
    assert parser.found and all(source.startswith(("data:image/png", "#")) for source in parser.found)
    assert "default-src 'none'" in report and "@import" not in report and "url(" not in report


def test_every_sample_is_in_the_viewer_with_the_full_caches_answer(report: str) -> None:
    blocks = re.findall(r'<script type="application/json">(.*?)</script>', report, re.DOTALL)
    samples = [s for block in blocks for part in json.loads(block).values() for s in part]
    expected = {record["id"] for run in load_runs(COMMITTED) for record in run.records}
    assert {sample["id"] for sample in samples} == expected
    assert all(sum(answer["full"] for answer in sample["answers"]) == 1 for sample in samples)


def test_the_same_runs_give_the_same_page(tmp_path: Path) -> None:
    result = make(tmp_path, "snapkv", 64, [1.0, 0.0])
    assert page(groups([result]), {}) == page(groups(results_of(load_runs(tmp_path))), {})


def test_answers_are_text_and_never_markup(tmp_path: Path) -> None:
    result = make(tmp_path, "snapkv", 64, [1.0], text=EVIL)
    html = page(groups([result]), {})
    assert EVIL not in html and "<img src=x" not in html
    assert html.count("</script>") == 2, "the viewer's data and the page's own script"


def test_a_long_task_is_cut_and_says_so(tmp_path: Path) -> None:
    html = page(groups([make(tmp_path, "snapkv", 64, [1.0] * 201)]), {})
    assert "the first 200 of 201 samples" in html


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_in_a_browser_tables_sort_and_the_viewer_turns_pages(report: str, tmp_path: Path) -> None:
    script = """
    const table = [...document.querySelectorAll("table")].find((t) => t.innerText.includes("word_recall"));
    const head = [...table.querySelectorAll("th")].find((h) => h.innerText.includes("word_recall"));
    head.querySelector("button").click();
    const up = [...table.querySelectorAll("tbody tr")].map((r) => r.cells[head.cellIndex].dataset.value);
    head.querySelector("button").click();
    const down = [...table.querySelectorAll("tbody tr")].map((r) => r.cells[head.cellIndex].dataset.value);
    const viewer = [...document.querySelectorAll(".viewer")].at(-1);
    viewer.querySelector(".on").click();
    const first = viewer.querySelector(".sides .card h4").textContent;
    document.title = JSON.stringify({up, down, first, place: viewer.querySelector(".place").textContent,
      sort: head.getAttribute("aria-sort"), cards: viewer.querySelectorAll(".card").length});
    """
    title = re.search(r"<title>(.*?)</title>", dump(report, script, tmp_path), re.DOTALL)
    assert title is not None
    found = json.loads(title[1].replace("&amp;", "&"))
    up = [float(value) for value in found["up"]]
    assert up == sorted(up) and len(set(up)) > 3
    assert [float(value) for value in found["down"]] == sorted(up, reverse=True)
    assert (found["sort"], found["place"], found["first"]) == ("descending", "2 of 9", "FullKV")
    assert found["cards"] == 9


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_in_a_browser_an_answer_cannot_run_anything(tmp_path: Path) -> None:
    html = page(groups([make(tmp_path / "runs", "snapkv", 64, [1.0], text=EVIL)]), {})
    script = "document.title += ' ' + document.querySelector('.answer').textContent.length"
    title = re.search(r"<title>(.*?)</title>", dump(html, script, tmp_path))
    assert title is not None and title[1].endswith(f" {len(EVIL)}") and "broken" not in title[1]
