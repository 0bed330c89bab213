"""`python -m scripts.judge` from the shell's side: who is asked, what is said, and with which exit code it ends.

The endpoint is a real HTTP server on this machine.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from evaluation import command_line
from scripts import judge
from tests.evaluation.made_mt_bench import grading, make, record


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """What judging needs, in FastChat's files."""
    rules = grading({3: ("one", "two")})
    folder = tmp_path / "mt_bench"
    (folder / "reference_answer").mkdir(parents=True)
    prompts = [
        {
            "name": each.name,
            "system_prompt": each.system,
            "prompt_template": each.prompt,
            "output_format": "[[rating]]",
        }
        for each in rules.templates.values()
    ]
    answer = {"question_id": 3, "choices": [{"index": 0, "turns": ["one", "two"]}]}
    (folder / "judge_prompts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in prompts))
    (folder / "reference_answer" / "gpt-4.jsonl").write_text(json.dumps(answer) + "\n")
    return folder


@pytest.fixture
def results(tmp_path: Path) -> Path:
    root = tmp_path / "results"
    make(root, [record(1, "a", "b"), record(3, "e", "f", "math")])
    make(root, [record(1, "A", ""), record(4, "E", "F", "math")], "snapkv", 8)
    return root


@pytest.fixture
def server() -> Iterator[Any]:
    class Handler(BaseHTTPRequestHandler):
        server: Any

        def do_GET(self) -> None:
            self.answer(self.server.models_status, {"data": []})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.server.asked.append(body["messages"][1]["content"])
            choice = {"message": {"content": "Rating: [[6]]"}, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1000, "completion_tokens": 100}
            self.answer(self.server.status, {"choices": [choice], "usage": usage, "error": {"message": "no"}})

        def answer(self, status: int, value: Any) -> None:
            content = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.status, server.models_status = [], 200, 200
    server.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def openai(server: Any, results: Path, data: Path, *more: str) -> list[str]:
    settings = [f"runs={results}", f"data.path={data}", "judge=openai", f"judge.base_url={server.url}"]
    return [*settings, "judge.pause=0.01", "judge.retries=1", *more]


def files_of(results: Path) -> list[Path]:
    return sorted(results.glob("runs/*/judgments/*.jsonl"))


class TestOpenAI:
    @pytest.fixture(autouse=True)
    def key(self, monkeypatch: pytest.MonkeyPatch, no_key: None) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "secret")

    def test_all_runs_are_judged_once_and_the_cost_is_said(
        self, server: Any, results: Path, data: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        prices = ("judge.dollars_per_million_prompt_tokens=30", "judge.dollars_per_million_new_tokens=60")
        assert judge.main(openai(server, results, data, *prices)) == 0
        out, err = capsys.readouterr()
        assert len(server.asked) == 5 and len(files_of(results)) == 2
        assert "4 new judgments, 0 of them unscored; 0 were there" in out
        assert "4 new judgments, 3 of them unscored; 0 were there" in out
        assert "unscored 2 times: there is no reference answer to question 4" in err
        assert out.endswith("cost: 5,000 prompt tokens and 500 new tokens, 0.1800 dollars\n")
        assert judge.main(openai(server, results, data)) == 0
        assert len(server.asked) == 5
        assert capsys.readouterr().out.endswith("cost: 0 prompt tokens and 0 new tokens\n")
        assert not any("secret" in file.read_text() for file in results.rglob("*") if file.is_file())

    def test_one_runs_own_folder_or_the_folder_of_all_will_do(
        self, server: Any, results: Path, data: Path
    ) -> None:
        (one,) = results.glob("runs/mt_bench-fullkv-*")
        assert judge.main(openai(server, one, data)) == 0
        assert len(server.asked) == 4 and len(files_of(results)) == 1
        assert judge.main(openai(server, results / "runs", data)) == 0
        assert len(server.asked) == 5 and len(files_of(results)) == 2

    def test_failed_judgments_end_with_1_and_are_made_up_for(
        self, server: Any, results: Path, data: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        server.status = 429
        assert judge.main(openai(server, results, data)) == 1
        assert "unscored 4 times: the endpoint answered 429 Too Many Requests: no" in capsys.readouterr().err
        assert len(server.asked) == 10  # each tried twice
        server.status = 200
        server.asked.clear()
        assert judge.main(openai(server, results, data)) == 0
        assert len(server.asked) == 5

    def test_an_endpoint_that_always_fails_is_left_alone(
        self, server: Any, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        root = tmp_path / "many"
        for method in ("snapkv", "h2o"):
            make(root, [record(number, "a", "b") for number in range(20)], method, 8)
        server.status = 503
        assert judge.main(openai(server, root, data, "judge.retries=0", "judge.concurrency=1")) == 1
        assert "stopped: 12 judgments failed one after another, the last because" in capsys.readouterr().err
        assert len(server.asked) == 12 and len(files_of(root)) == 1

    def test_a_refused_key_ends_before_anything_is_asked(
        self, server: Any, results: Path, data: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        server.models_status = 401
        assert judge.main(openai(server, results, data)) == 2
        assert "refuses the key in OPENAI_API_KEY" in capsys.readouterr().err
        assert server.asked == [] and files_of(results) == []


def test_no_judge_at_all_writes_the_answers_for_fastchat(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judge.main([f"runs={results}", "judge=none"]) == 0
    files = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert [file.parent.name for file in files] == ["model_answer"] * 2
    assert [file.stem for file in files] == [file.parent.parent.name for file in files]
    first = [json.loads(line) for line in files[0].read_text().splitlines()]
    assert [(line["question_id"], line["choices"][0]["turns"]) for line in first] == [
        (1, ["a", "b"]),
        (3, ["e", "f"]),
    ]


def test_a_model_on_this_machine_judges(
    results: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the settings to judgments: a tiny checkpoint with random weights, which rates nothing."""
    from tests.pyramid.tiny_checkpoint import save_tiny

    folder = save_tiny(tmp_path / "tiny")
    settings = [f"runs={results}", f"data.path={data}", f"judge.model={folder}", "judge.max_tokens=4"]
    assert judge.main(settings) == 0
    out = capsys.readouterr().out
    assert "4 new judgments, 4 of them unscored" in out
    made = [json.loads(line) for file in files_of(results) for line in file.read_text().splitlines()]
    assert [line["outcome"] for line in made].count("unparsed") == 5
    assert {line["judge"][0] for line in made} == {"tiny"}
    identity = json.loads(files_of(results)[0].with_suffix(".json").read_text())
    assert identity["kind"] == "local" and identity["max_tokens"] == 4


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["judge=openia"], "judge=openia is none of local, none, openai"),
        (["judge=openai"], "judge=openai needs a key in the environment variable OPENAI_API_KEY"),
        (["judge=openai", "judge.batch_size=3"], "unknown setting 'judge.batch_size=3'"),
        (["judge.concurency=3", "judge=openai"], "did you mean judge.concurrency=...?"),
        (["judge=openai", "judge.retries=many"], "judge.retries=many is no number"),
        (["judge.batch_size=1.5"], "judge.batch_size=1.5 is no whole number"),
        (["judge.batch_size=null"], "judge.batch_size needs a number"),
        (["judge.model=smolm2_135m"], "judge.model=smolm2_135m is unknown: did you mean smollm2_135m"),
        (["data.path=nowhere"], "mt_bench has no table 'judge_prompts'"),
        (["runs=nowhere"], "there are no finished MT-Bench runs in nowhere"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: list[str], sentence: str, results: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judge.main([f"runs={results}", f"data.path={data}", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and sentence in err and err.count("\n") == 1
    assert files_of(results) == []


def test_an_endpoint_out_of_reach_is_bad_input(
    results: Path, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    settings = ["judge=openai", "judge.base_url=http://127.0.0.1:9/v1"]
    assert judge.main([f"runs={results}", f"data.path={data}", *settings]) == 2
    assert "cannot be reached" in capsys.readouterr().err


def test_an_interruption_ends_with_130_and_keeps_what_is_there(
    results: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.evaluation.made_mt_bench import ScriptedJudge

    monkeypatch.setattr(judge, "build", lambda values: ScriptedJudge({"3/1": KeyboardInterrupt()}))
    assert judge.main([f"runs={results}", f"data.path={data}"]) == 130
    assert "what is judged is kept" in capsys.readouterr().err
    assert len(files_of(results)[0].read_text().splitlines()) == 2


def test_an_unfinished_run_is_named_and_left_out(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (one,) = results.glob("runs/mt_bench-snapkv-*")
    (one / "summary.json").unlink()
    assert judge.main([f"runs={results}", "judge=none"]) == 0
    assert f"left out: {one.name} is interrupted" in capsys.readouterr().err


def test_run_py_says_where_a_judge_is_set() -> None:
    for name in ("judge", "judge.model"):
        assert f"python -m scripts.judge {name}=..." in command_line.unknown_setting(name)


def test_the_help_names_the_judges(capsys: pytest.CaptureFixture[str]) -> None:
    assert judge.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "judge=none" in out and "judge.base_url" not in out and "judge.batch_size=4" in out
