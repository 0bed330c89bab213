"""Tables lose no number on a narrow terminal, compare fairly, and say what they rest on."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from evaluation.results import Run, RunFolder, RunSpec
from evaluation.summary import summarize
from evaluation.table import json_line, print_table, write_table

PROTOCOL = {"name": "fair", "template": "chat", "question": "in_prompt", "max_prompt_tokens": None}


class Needle:
    name = "needle"
    metrics = ("recall", "hits")
    lower_is_better = ()

    def summarize(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return {m: sum(record["scores"][m] for record in records) / len(records) for m in self.metrics}


def record(number: int, recall: float, kept: int, error: str | None = None) -> dict[str, Any]:
    scores = {} if error else {"recall": recall, "hits": float(recall == 1)}
    return {
        "id": str(number),
        "error": error,
        "scores": scores,
        "prompt_tokens": 2000,
        "new_tokens": 12,
        "truncated": False,
        "compressed": kept < 2000,
        "kept_tokens": [kept] * 30,
        "kept_tokens_at_end": [kept + 12] * 30,
        "bytes_after_prompt": kept * 30 * 1536,
        "bytes_at_end": (kept + 12) * 30 * 1536,
        "full_bytes_after_prompt": 2000 * 30 * 1536,
        "prefill_work": 1.0,
        "seconds": {"prefill": 1.25, "decode": 0.5},
    }


def make(root: Path, name: str, budget: int | float | None, recalls: Sequence[float], **options: Any) -> Run:
    """A finished run with these scores, written and read back as any other."""
    task: Any = Needle()
    failed = options.pop("failed", 0)
    kept = 2000 if budget is None else options.pop("kept", 128)
    parts: dict[str, Any] = {
        "model": {"id": "SmolLM2-135M-Instruct", "dtype": "float32", "attention": "sdpa"},
        "method": {"name": name, "version": 1, "parameters": {"window": 8, "pooling": "max"}},
        "budget": budget,
        "protocol": PROTOCOL,
        "task": {"name": "needle", "version": 1},
        "subset": {"limit": None, "ids": None},
        "seed": 0,
        "engine": "1",
    }
    spec = RunSpec(**parts | options)
    records = [record(i, recall, kept) for i, recall in enumerate(recalls)]
    records += [record(len(recalls) + i, 0.0, kept, "out of memory") for i in range(failed)]
    with RunFolder(root, spec) as folder:
        folder.begin({"device": "cpu"})
        for line in records:
            folder.append(line)
        summary = summarize(records, spec=spec, task=task, environments=folder.environments)
        folder.finish(summary, [line["id"] for line in records])
        return folder.run


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> list[Run]:
    full, tmp_path = [1.0] * 40, tmp_path_factory.mktemp("sweep")
    return [
        make(tmp_path, "pyramidkv", 128, [0.5] * 8 + full[8:]),
        make(tmp_path, "streamingllm", 128, [1.0, 0.25, *full[2:]]),
        make(tmp_path, "truncatedprompt", 0.125, [0.25] * 37, failed=3),
        make(tmp_path, "fullkv", None, full),
    ]


def printed(runs: Sequence[Run]) -> str:
    file = io.StringIO()
    print_table(runs, file)
    return file.getvalue()


def cells(text: str, label: str) -> list[list[str]]:
    """The table rows that begin with `label`, in words."""
    return [line.split() for line in text.splitlines() if line.split()[: len(label.split())] == label.split()]


def test_every_number_of_a_row_is_shown(sweep):
    score, difference, cost = cells(printed(sweep), "pyramidkv 128")
    low, high = sweep[0].summary["intervals"]["recall"]  # type: ignore[index]
    assert score == ["pyramidkv", "128", "0.900", f"{low:.3f}", "to", f"{high:.3f}", "0.800", "12.0", "0"]
    assert difference[2:] == ["-0.100", "-0.163", "to", "-0.037", "0", "8", "yes"]
    assert cost[2:] == ["128.0", "140.0", "5.6", "MiB", "6.4%", "40/40", "70.0"]


def test_full_cache_comes_first_and_the_others_are_paired_with_it(sweep):
    text = printed(sweep)
    names = [
        line.split()[0] for line in text.splitlines() if line.split()[1:2] in (["-"], ["128"], ["0.125"])
    ]
    assert names[:4] == ["fullkv", "pyramidkv", "streamingllm", "truncatedprompt"]
    assert cells(text, "streamingllm 128")[1][-3:] == ["0", "1", "no"], "one sample of forty decides nothing"
    assert cells(text, "truncatedprompt 0.125")[1][-3:-1] == ["0", "37"], "on the samples that both answered"
    assert len(cells(text, "fullkv -")) == 2, "it is not compared with itself"


@pytest.mark.parametrize(
    ("kept", "tokens", "size"), [(0, "0.0", "0 B"), (1, "1.0", "45.0 KiB"), (999, "999.0", "43.9 MiB")]
)
def test_sizes_are_written_for_people(tmp_path, kept, tokens, size):
    _, cost = cells(printed([make(tmp_path, "snapkv", 1024, [1.0], kept=kept)]), "snapkv 1024")
    assert cost[2] == tokens and " ".join(cost[4:6]) == size


def test_without_full_cache_nothing_is_compared(sweep):
    assert "against" not in printed(sweep[:2]) and "against" in printed(sweep)


def test_failures_are_in_the_table_and_under_it(sweep):
    text = printed(sweep)
    assert cells(text, "truncatedprompt 0.125")[0][-1] == "3"
    assert "warning: truncatedprompt 0.125: 3 of 40 samples failed" in text


def test_what_the_numbers_rest_on_is_printed_beneath(sweep):
    text = printed(sweep)
    assert "protocol: name fair, template chat, question in_prompt, max_prompt_tokens none" in text
    assert "model: id SmolLM2-135M-Instruct, dtype float32, attention sdpa" in text
    assert "pyramidkv: version 1, parameters window 8, pooling max" in text
    for run in sweep:
        assert str(run.folder) in text


def test_a_warning_of_all_runs_stands_once(tmp_path):
    runs = [make(tmp_path, name, 4096, [1.0], kept=2000) for name in ("snapkv", "pyramidkv")]
    assert printed(runs).count("warning: 0 of 1 samples were compressed") == 1


def test_different_protocols_never_share_a_table(tmp_path):
    protocols = [PROTOCOL, {**PROTOCOL, "question": "after_compression"}]
    runs = [make(tmp_path, "snapkv", 128, [1.0], protocol=protocol) for protocol in protocols]
    assert printed(runs).count("needle, 1 samples") == 2
    assert printed(runs[:1] * 2).count("needle, 1 samples") == 1


def test_a_run_without_any_answer_shows_no_invented_number(tmp_path):
    text = printed([make(tmp_path, "snapkv", 128, [], failed=2), make(tmp_path, "fullkv", None, [1.0, 1.0])])
    assert cells(text, "snapkv 128")[0] == ["snapkv", "128", "-", "-", "-", "-", "2"]


def test_piped_text_has_no_control_codes_and_whole_sentences(sweep, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    text = printed(sweep)
    assert "\x1b" not in text
    (sentence,) = [line for line in text.splitlines() if line.startswith("tokens per layer")]
    assert sentence.endswith("each its share of a batch")


def test_brackets_are_text_and_no_markup(tmp_path):
    run = make(tmp_path, "snapkv", 128, [1.0], subset={"limit": None, "ids": ["bold", "red"]})
    assert "ids [bold, red]" in printed([run])


def test_output_that_knows_only_ascii_is_no_obstacle(sweep):
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_table(sweep, file)


def on_a_terminal(runs: Sequence[Run], columns: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a real terminal of this width receives."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as file:
        print_table(runs, file)
        text = os.read(master, 1 << 16).decode()
    os.close(master)
    return re.sub(r"\x1b\[\d*m", "", text).replace("\r\n", "\n")


def test_tables_fit_80_columns_and_their_notes_are_wrapped(sweep, monkeypatch):
    plain = printed(sweep)
    text = on_a_terminal(sweep, 80, monkeypatch)
    lines = [line for line in text.splitlines() if "/runs/" not in line]
    assert max(map(len, lines)) <= 80
    for label in ("fullkv -", "pyramidkv 128", "streamingllm 128", "truncatedprompt 0.125"):
        assert cells(text, label)[:2] == cells(plain, label)[:2]


def test_numbers_are_not_cut_on_a_terminal_that_is_too_narrow(sweep, monkeypatch):
    text = on_a_terminal(sweep, 30, monkeypatch)
    assert cells(text, "pyramidkv 128")[0] == cells(printed(sweep), "pyramidkv 128")[0]


def test_one_run_is_one_json_object(sweep):
    line = json_line(sweep[:1])
    assert "\n" not in line
    assert json.loads(line) == {
        "key": sweep[0].key,
        "method": "pyramidkv",
        "budget": 128,
        "task": "needle",
        "status": "done",
        "n": 40,
        "failed": 0,
        "scores": {"recall": 0.9, "hits": 0.8},
        "held_tokens": 128.0,
        "held_bytes": 128 * 30 * 1536,
        "full_bytes": 2000 * 30 * 1536,
        "seconds": {"prefill": 50.0, "decode": 20.0},
        "folder": str(sweep[0].folder),
    }


def test_several_runs_are_one_object_that_names_the_failed(sweep):
    found = json.loads(json_line(sweep))
    assert [cell["key"] for cell in found["cells"]] == [run.key for run in sweep]
    assert found["failed"] == [sweep[2].key]


def test_a_run_without_summary_is_failed_in_json_and_said_to_be_in_no_table(tmp_path, sweep):
    with RunFolder(tmp_path, RunSpec(**{**vars(sweep[0].spec), "seed": 7})) as folder:
        unfinished = folder.run
    found = json.loads(json_line([unfinished]))
    assert (found["status"], found["n"], found["scores"]) == ("failed", None, {})
    sentence = f"warning: {unfinished.key} is interrupted and in no table; the same command goes on with it\n"
    assert printed([unfinished]) == sentence
    write_table([sweep[0], unfinished], tmp_path / "table.md")
    assert (tmp_path / "table.md").read_text().endswith("\n\n" + sentence)


def test_markdown_has_the_printed_numbers_and_no_path_of_this_machine(sweep, tmp_path):
    file = tmp_path / "new" / "table.md"
    write_table(sweep, file)
    text = file.read_text()
    assert "| pyramidkv | 128 | 128.0 | 140.0 | 5.6 MiB | 6.4% | 40/40 | 70.0 |" in text
    assert sweep[0].key in text and str(sweep[0].folder.parent) not in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert sum(line.startswith("| method") for line in tables) == 3
    assert {line.count("|") for line in tables} == {8, 9}
    before = file.read_bytes()
    write_table(sweep, file)
    assert file.read_bytes() == before


def test_csv_is_one_unrounded_row_a_run(sweep, tmp_path):
    file = tmp_path / "table.csv"
    write_table(sweep, file)
    rows = list(csv.DictReader(file.open()))
    assert [row["method"] for row in rows] == ["fullkv", "pyramidkv", "streamingllm", "truncatedprompt"]
    assert float(rows[2]["recall"]) == pytest.approx((39 + 0.25) / 40, abs=1e-15)
    assert rows[0]["budget"] == "" and rows[3]["budget"] == "0.125" and rows[3]["failed"] == "3"
    assert float(rows[1]["held_share_of_full_bytes"]) == 128 / 2000
    assert (rows[1]["prefill_seconds"], rows[1]["protocol"]) == ("50.0", "fair")
    assert str(sweep[0].folder.parent) not in file.read_text()


def test_a_table_of_another_kind_is_refused(sweep, tmp_path):
    with pytest.raises(ValueError, match="ends in neither"):
        write_table(sweep, tmp_path / "table.txt")
