"""Cells run in company, stopped and killed at any point, end as if nothing had happened.

The generator here is a small real one that answers from the prompt's own text: what is tried is the runner
and its files, for which no language model is needed. As a script, this file is the process that is killed.
"""

from __future__ import annotations

import json
import os
import pty
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from evaluation.interruption import Interrupted, interruptible
from evaluation.progress import Bars, Progress, shown
from evaluation.prompts import Prompter
from evaluation.results import RunBusy, RunFolder, RunSpec, load_runs
from evaluation.runner import Cell, choose, run_cells
from evaluation.types import Protocol, Sample
from pyramid.types import Answer, Held, Request

ENVIRON = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
PROTOCOL = Protocol(name="fair", template="none")
LAYERS = 3


class CharacterTokenizer:
    """One token a character."""

    bos_id = None
    stop_ids = (0,)

    def encode(self, text: str, special: bool = False) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return "".join(map(chr, ids))

    def chat(self, messages: Sequence[dict[str, str]]) -> str | None:
        return None


@dataclass(frozen=True)
class Tail:
    """Keeps the last `keep` tokens of the prompt."""

    keep: int


@dataclass
class Echo:
    """Answers with the prompt's tokens that the method keeps, after calling `before`."""

    before: Callable[[Sequence[Request], Sequence[Tail]], object] = lambda requests, methods: None
    unanswerable: frozenset[str] = frozenset()
    calls: list[tuple[list[str], list[int]]] = field(default_factory=list)

    def generate(self, requests: Sequence[Request], methods: Sequence[Tail]) -> list[list[Answer]]:
        self.calls.append(([request.id for request in requests], [method.keep for method in methods]))
        self.before(requests, methods)
        return [[self._answer(request, method.keep) for request in requests] for method in methods]

    def _answer(self, request: Request, keep: int) -> Answer:
        start = time.perf_counter()
        if request.id in self.unanswerable:
            return Answer(id=request.id, error="out of memory at 900 tokens")
        kept = request.segments[0][-keep:][: request.max_new_tokens]
        held = min(keep, request.prompt_tokens)
        return Answer(
            id=request.id,
            text="".join(map(chr, kept)),
            token_ids=kept,
            finish="length",
            prompt_tokens=request.prompt_tokens,
            held_after_prompt=Held(tokens=(held,) * LAYERS, bytes=held * LAYERS * 8),
            held_at_end=Held(tokens=(held + len(kept),) * LAYERS, bytes=(held + len(kept)) * LAYERS * 8),
            compressed=keep < request.prompt_tokens,
            full_bytes_after_prompt=request.prompt_tokens * LAYERS * 8,
            seconds={"prefill": time.perf_counter() - start, "decode": 0.5},
        )


@dataclass(frozen=True)
class Copy:
    """Is the end of the prompt given back? Samples of many lengths, some of them equal, in no order."""

    name: str = "copy"
    metrics: tuple[str, ...] = ("exact", "share")
    lower_is_better: tuple[str, ...] = ()
    count: int = 20

    def identity(self) -> dict[str, Any]:
        return {"version": 1, "count": self.count}

    def samples(self, prompter: Prompter) -> list[Sample]:
        draw = random.Random(0)
        lengths = [draw.randrange(10, 40) for _ in range(self.count)]
        texts = ["".join(draw.choices("abcd", k=length)) for length in lengths]
        return [
            Sample(
                id=f"{i}/{text[:2]}", context=text, references=(text[-8:],), max_new_tokens=8, meta={"i": i}
            )
            for i, text in enumerate(texts)
        ]

    def score(self, sample: Sample, answer: Answer) -> dict[str, float]:
        (wanted,) = sample.references
        return {
            "exact": float(answer.text == wanted),
            "share": sum(map(str.__eq__, answer.text, wanted)) / len(wanted),
        }

    def summarize(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return {m: sum(r["scores"][m] for r in records) / len(records) for m in self.metrics}

    def draw(self, records: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
        return []


def spec_of(keep: int, task: Copy, limit: int | None = None) -> RunSpec:
    return RunSpec(
        model={"id": "echo"},
        method={"name": "tail", "version": 1},
        budget=keep,
        protocol=asdict(PROTOCOL),
        task={"name": task.name, **task.identity()},
        subset={"limit": limit, "ids": None},
        seed=0,
        engine="1",
    )


def run(
    root: Path, generator: Echo, *, keeps: Sequence[int] = (8, 12), task: Any = None, **options: Any
) -> Any:
    task = task or Copy()
    limit, protocol = options.pop("limit", None), options.pop("protocol", PROTOCOL)
    cells = [Cell(method=Tail(keep), folder=RunFolder(root, spec_of(keep, task, limit))) for keep in keeps]
    prompter = Prompter(tokenizer=CharacterTokenizer(), protocol=protocol, model_max_length=100)
    return run_cells(cells, task, prompter, generator, **{"batch_size": 3, "device": "cpu", **options})


def files_of(root: Path) -> dict[str, Any]:
    """All files under `root`, read, without the times they took."""

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: timeless(part) for name, part in value.items() if name != "seconds"}
        return value

    found = {}
    for file in sorted(path for path in root.rglob("*") if path.is_file()):
        lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
        parsed = [timeless(json.loads(line)) for line in lines] if file.suffix.startswith(".json") else lines
        found[str(file.relative_to(root))] = parsed
    return found


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> dict[str, Any]:
    """The files of a run that nothing disturbed."""
    root = tmp_path_factory.mktemp("unbroken")
    run(root, Echo())
    return files_of(root)


# what a run leaves


def test_each_record_says_what_was_answered_held_and_paid(tmp_path):
    (done,) = run(tmp_path, Echo(), keeps=[12])
    assert done.status == "done" and len(done.records) == 20
    record = done.records[0]
    seconds = record.pop("seconds")
    assert set(seconds) == {"prefill", "decode"} and seconds["decode"] == 0.5
    sample = next(s for s in Copy().samples(None) if s.id == record["id"])  # type: ignore[arg-type]
    length, text = len(sample.context), sample.context[-12:][:8]
    assert record == {
        "id": sample.id,
        "text": text,
        "scores": Copy().score(sample, Answer(id="", text=text)),
        "references": [sample.context[-8:]],
        "prompt_tokens": length,
        "new_tokens": 8,
        "finish": "length",
        "truncated": False,
        "compressed": True,
        "kept_tokens": [12] * LAYERS,
        "kept_tokens_at_end": [20] * LAYERS,
        "bytes_after_prompt": 12 * LAYERS * 8,
        "bytes_at_end": 20 * LAYERS * 8,
        "full_bytes_after_prompt": length * LAYERS * 8,
        "prefill_work": 1.0,
        "prompt_head": sample.context[:80],
        "prompt_tail": sample.context[-80:],
        "meta": {"i": sample.meta["i"]},
        "error": None,
    }


def test_longest_prompts_come_first_and_equal_ones_keep_their_order(tmp_path):
    (done,) = run(tmp_path, Echo(), keeps=[8])
    order = [(-record["prompt_tokens"], record["meta"]["i"]) for record in done.records]
    assert order == sorted(order)
    assert len({tokens for tokens, _ in order}) < len(order), "some prompts are of one length"


def test_a_batch_never_mixes_prompts_of_one_and_of_two_segments(tmp_path):
    @dataclass(frozen=True)
    class HalfAsked(Copy):
        def samples(self, prompter: Prompter) -> list[Sample]:
            return [replace(s, question="?" * (s.meta["i"] % 2)) for s in super().samples(prompter)]

    sizes = []
    generator = Echo(before=lambda requests, methods: sizes.append({len(r.segments) for r in requests}))
    protocol = replace(PROTOCOL, question="after_compression")
    (done,) = run(tmp_path, generator, keeps=[8], task=HalfAsked(), protocol=protocol)
    assert sizes == [{2}] * 4 + [{1}] * 4 and done.summary["n"] == 20


def test_cells_in_company_leave_what_each_leaves_alone(tmp_path, unbroken):
    for keep in (8, 12):
        run(tmp_path, Echo(), keeps=[keep])
    assert files_of(tmp_path) == unbroken
    scores = [run.summary["scores"]["exact"] for run in load_runs(tmp_path) if run.summary]
    assert sorted(scores) == [0.0, 1.0], "the two cells are not the same"


def test_the_same_command_again_computes_nothing(tmp_path, unbroken):
    first = run(tmp_path, Echo())
    generator = Echo()
    again = run(tmp_path, generator)
    assert generator.calls == [] and files_of(tmp_path) == unbroken
    assert [r.summary for r in again] == [r.summary for r in first]


def test_a_cell_named_twice_runs_once(tmp_path):
    generator = Echo()
    first, other, again = run(tmp_path, generator, keeps=[8, 12, 8])
    assert (first.key, first.summary) == (again.key, again.summary) and other.key != first.key
    assert all(keeps == [8, 12] for _, keeps in generator.calls) and len(load_runs(tmp_path)) == 2


def test_a_cell_that_has_a_batch_is_left_out_of_it(tmp_path):
    run(tmp_path, Echo(), keeps=[8])
    generator = Echo()
    run(tmp_path, generator, keeps=[8, 12])
    assert [keeps for _, keeps in generator.calls] == [[12]] * 7


# failures are failures


def test_an_unanswerable_sample_is_counted_and_never_a_zero(tmp_path, unbroken):
    bad = Copy().samples(None)[4].id  # type: ignore[arg-type]
    done, _ = run(tmp_path, Echo(unanswerable=frozenset([bad])))
    record = next(record for record in done.records if record["id"] == bad)
    assert record["error"] == "out of memory at 900 tokens" and record["scores"] == {}
    assert record["kept_tokens"] is None and record["new_tokens"] is None
    assert (done.status, done.summary["n"], done.summary["failed"]) == ("failed", 20, 1)
    assert done.summary["scores"]["exact"] == 1.0, "a 0 for the failed sample would show"
    assert "1 of 20 samples failed" in done.summary["warnings"][0]
    assert [file.read_text() for file in done.folder.glob("failures/*")] == ["out of memory at 900 tokens"]
    assert len(done.records) == 20

    generator = Echo()
    run(tmp_path, generator)
    assert len(generator.calls) == 1, "only the batch of the failed sample is computed"
    assert files_of(tmp_path) == unbroken


def raise_for(bad: Callable[[Sequence[Request], Sequence[Tail]], bool]) -> Callable[..., None]:
    def before(requests: Sequence[Request], methods: Sequence[Tail]) -> None:
        if bad(requests, methods):
            raise RuntimeError("shape mismatch\n  in layer 3")

    return before


def test_a_call_that_raises_is_taken_apart_until_only_the_cause_fails(tmp_path):
    bad = Copy().samples(None)[4].id  # type: ignore[arg-type]
    cause = raise_for(lambda requests, methods: any(r.id == bad for r in requests) and Tail(12) in methods)
    good, broken = run(tmp_path, Echo(before=cause))
    assert (good.status, broken.status) == ("done", "failed")
    failed = [record for record in broken.records if record["error"]]
    assert [record["id"] for record in failed] == [bad]
    assert failed[0]["error"] == "RuntimeError: shape mismatch in layer 3"
    (file,) = broken.folder.glob("failures/*.txt")
    assert "Traceback" in file.read_text() and "raise RuntimeError" in file.read_text()


def test_a_method_that_always_raises_leaves_the_others_whole(tmp_path):
    good, broken = run(tmp_path, Echo(before=raise_for(lambda requests, methods: Tail(12) in methods)))
    assert good.status == "done"
    assert (broken.summary["failed"], broken.summary["scores"], broken.summary["complete"]) == (20, {}, False)


@dataclass(frozen=True)
class Unjudged(Copy):
    """Cannot score one of its samples."""

    outcome: Any = None

    def score(self, sample: Sample, answer: Answer) -> dict[str, float]:
        if sample.meta["i"] == 4:
            return {"exact": self.outcome / 1, "share": 1.0}
        return super().score(sample, answer)


@pytest.mark.parametrize(
    ("outcome", "error"),
    [("x", "TypeError"), (float("nan"), "exact is nan"), (1.5, r"exact is 1.5, outside")],
)
def test_what_cannot_be_judged_has_failed_and_keeps_its_text(tmp_path, outcome, error):
    (done,) = run(tmp_path, Echo(), keeps=[8], task=Unjudged(outcome=outcome))
    (record,) = [record for record in done.records if record["error"]]
    assert error in record["error"] and record["scores"] == {} and len(record["text"]) == 8
    assert done.summary["failed"] == 1 and done.summary["scores"]["exact"] == 1.0


@dataclass(frozen=True)
class Unsummed(Copy):
    def summarize(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        raise ZeroDivisionError("no records of kind x")


def test_an_error_of_the_run_itself_is_kept_in_its_folder(tmp_path):
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, Echo(), task=Unsummed())
    for stopped in load_runs(tmp_path):
        assert stopped.status == "failed" and len(stopped.records) == 20
        assert "ZeroDivisionError: no records of kind x" in (stopped.folder / "failure.txt").read_text()


# stopped


def at_call(number: int, act: Callable[[], object]) -> Callable[..., None]:
    count = iter(range(1, 1000))

    def before(*_: object) -> None:
        if next(count) == number:
            act()

    return before


def press_control_c() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("call", [1, 2, 7])
def test_control_c_leaves_finished_lines_and_a_run_that_goes_on(tmp_path, unbroken, call):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Echo(before=at_call(call, press_control_c)))
    for stopped in load_runs(tmp_path):
        assert stopped.status == "interrupted" and len(stopped.records) == 3 * (call - 1)
    generator = Echo()
    run(tmp_path, generator)
    assert len(generator.calls) == 7 - (call - 1), "finished batches are not computed again"
    assert files_of(tmp_path) == unbroken


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_interrupts_and_the_old_handler_returns(tmp_path, unbroken, number):
    before = signal.getsignal(number)
    generator = Echo(before=at_call(3, lambda: os.kill(os.getpid(), number)))
    with pytest.raises(Interrupted, match=number.name), interruptible():
        run(tmp_path, generator)
    assert signal.getsignal(number) is before
    assert {(r.status, len(r.records)) for r in load_runs(tmp_path)} == {("interrupted", 6)}
    run(tmp_path, Echo())
    assert files_of(tmp_path) == unbroken


class Signals:
    """Receives a signal while it is being destroyed, where Python drops every exception."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_whose_exception_python_drops_is_heard_before_the_next_batch(tmp_path, unbroken, number):
    with pytest.raises(Interrupted, match=signal.Signals(number).name), interruptible():
        run(tmp_path, Echo(before=at_call(3, lambda: Signals(number))))
    assert {(r.status, len(r.records)) for r in load_runs(tmp_path)} == {("interrupted", 9)}
    with interruptible():
        run(tmp_path, Echo())
    assert files_of(tmp_path) == unbroken


def test_another_batch_size_goes_on_in_the_same_order(tmp_path, unbroken):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Echo(before=at_call(3, press_control_c)))
    run(tmp_path, Echo(), batch_size=7)
    assert files_of(tmp_path) == unbroken


def test_batches_have_room_for_so_many_tokens(tmp_path, unbroken):
    """Prompts are padded to the longest of their batch; one that is longer than the room is read by itself, and the
    files are those of any other batches."""
    generator = Echo()
    run(tmp_path, generator, batch_size=5, max_batch_tokens=60)
    assert files_of(tmp_path) == unbroken
    sizes = {sample.id: len(sample.context) for sample in Copy().samples(None)}  # pyright: ignore[reportArgumentType]
    batches = [[sizes[id] for id in ids] for ids, _ in generator.calls]
    assert all(len(batch) == 1 or len(batch) * max(batch) <= 60 for batch in batches)
    assert {len(batch) for batch in batches} >= {1, 2, 3}
    with pytest.raises(ValueError, match="max_batch_tokens is 0"):
        run(tmp_path, Echo(), max_batch_tokens=0)


def test_cells_that_are_not_answered_together_are_recorded_one_by_one(tmp_path, unbroken):
    """A measurement of an hour is not lost because the next one is interrupted."""
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Echo(before=at_call(2, press_control_c)), batch_size=1, together=False)
    assert sorted(len(r.records) for r in load_runs(tmp_path)) == [0, 1]
    generator = Echo()
    run(tmp_path, generator, batch_size=1, together=False)
    assert {len(methods) for _, methods in generator.calls} == {1}
    assert files_of(tmp_path) == unbroken


def test_cells_stopped_at_different_points_end_alike(tmp_path, unbroken):
    for keep, call in ((8, 2), (12, 5)):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, Echo(before=at_call(call, press_control_c)), keeps=[keep])
    generator = Echo()
    run(tmp_path, generator)
    assert [keeps for _, keeps in generator.calls] == [[8]] * 3 + [[8, 12]] * 3
    assert files_of(tmp_path) == unbroken


def start(root: Path, kill_at: int = 0, tear: bool = False) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, str(root), str(kill_at), str(int(tear))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRON)


@pytest.mark.parametrize(("kill_at", "tear", "lines"), [(1, False, 0), (4, False, 9), (5, True, 12)])
def test_killed_between_batches_or_inside_a_line(tmp_path, unbroken, kill_at, tear, lines):
    with start(tmp_path, kill_at, tear) as process:
        process.wait()
    assert process.returncode == -signal.SIGKILL
    found = load_runs(tmp_path)
    assert {(r.status, len(r.records)) for r in found} == {("interrupted", lines)}
    torn = (
        [r for r in found if not (r.folder / "predictions.jsonl").read_bytes().endswith(b"\n")]
        if lines
        else []
    )
    assert len(torn) == (2 if tear else 0)
    run(tmp_path, Echo())
    assert files_of(tmp_path) == unbroken


def test_killed_at_random_moments_the_files_end_equal(tmp_path, unbroken):
    draw = random.Random(5)
    for _ in range(6):
        with start(tmp_path) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(draw.uniform(0, 0.03))
            process.kill()
        for stopped in load_runs(tmp_path):
            ids = [record["id"] for record in stopped.records]
            assert len(set(ids)) == len(ids)
            assert stopped.status == ("done" if stopped.summary else "interrupted")
    run(tmp_path, Echo())
    assert files_of(tmp_path) == unbroken


def test_two_processes_at_once_lose_nothing(tmp_path, unbroken):
    with start(tmp_path) as process:
        assert process.stdout is not None and process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(RunBusy, match=f"process {process.pid} on "):
                run(tmp_path, Echo())
        finally:
            process.send_signal(signal.SIGCONT)
    assert process.returncode == 0 and files_of(tmp_path) == unbroken


# refusals, choice, progress


def test_data_that_changed_under_an_unchanged_identity_is_refused(tmp_path):
    @dataclass(frozen=True)
    class Renamed(Copy):
        def samples(self, prompter: Prompter) -> list[Sample]:
            return [replace(sample, id="new " + sample.id) for sample in super().samples(prompter)]

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Echo(before=at_call(3, press_control_c)))
    with pytest.raises(ValueError, match="which the task lacks"):
        run(tmp_path, Echo(), task=Renamed())
    assert {len(r.records) for r in load_runs(tmp_path)} == {6}


def test_a_batch_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="batch_size is 0"):
        run(tmp_path, Echo(), batch_size=0)


def test_limit_is_part_of_the_run_and_contained_in_a_higher_limit(tmp_path):
    (small,) = run(tmp_path, Echo(), keeps=[8], limit=4)
    (large,) = run(tmp_path, Echo(), keeps=[8], limit=9)
    small_ids, large_ids = ({record["id"] for record in r.records} for r in (small, large))
    assert (len(small_ids), len(large_ids)) == (4, 9) and small_ids < large_ids
    assert small.summary["n"] == 4 and small.key != large.key


SAMPLES = [
    Sample(id=f"{depth}-{length}", context="", max_new_tokens=1) for depth in range(10) for length in range(6)
]


def test_choice_is_stable_keeps_the_order_and_depends_on_the_seed():
    chosen = choose(SAMPLES, limit=8)
    assert [sample.id for sample in chosen] == ["0-2", "1-1", "2-3", "5-3", "6-2", "7-5", "8-5", "9-2"]
    assert [sample.id for sample in choose(SAMPLES[::-1], limit=8)] == [sample.id for sample in chosen[::-1]]
    assert choose(SAMPLES, limit=8, seed=1) != chosen
    assert choose(SAMPLES, limit=100) == choose(SAMPLES) == SAMPLES


def test_named_samples_are_chosen_and_a_single_name_is_one_name():
    assert [s.id for s in choose(SAMPLES, ids=["3-1", "0-5"])] == ["0-5", "3-1"]
    assert [s.id for s in choose(SAMPLES, ids="3-1")] == ["3-1"]
    assert len(choose(SAMPLES, ids=["3-1", "0-5"], limit=1)) == 1


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"ids": ["3-11"]}, "no sample '3-11'; the nearest are 3-1"),
        ({"ids": []}, "no samples to run"),
        ({"limit": 0}, "limit is 0"),
    ],
)
def test_a_choice_of_nothing_is_refused(options, word):
    with pytest.raises(ValueError, match=word):
        choose(SAMPLES, **options)


def test_samples_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two samples named '4-2'"):
        choose([*SAMPLES, SAMPLES[26]])


def test_piped_runs_are_silent(tmp_path, capfd):
    run(tmp_path, Echo())
    assert capfd.readouterr() == ("", "")


def test_a_terminal_sees_a_bar(tmp_path):
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, __file__, str(tmp_path), "0", "0"],
        stdout=subprocess.DEVNULL,
        stderr=slave,
        env=ENVIRON,
    ) as process:
        process.wait()
    os.close(slave)
    screen = os.read(master, 1 << 16).decode()
    os.close(master)
    assert "copy" in screen and "of 20 samples, 2 cells together" in screen


def main(root: str, kill_at: str, tear: str) -> None:
    """Runs the two cells slowly; at call `kill_at` kills itself, after tearing the next line if asked to."""

    def die() -> None:
        if int(tear):
            for file in Path(root).glob("runs/*/predictions.jsonl"):
                with file.open("a") as stream:
                    stream.write('{"id": "torn, and of some length", "te')
        os.kill(os.getpid(), signal.SIGKILL)

    announce, killer = at_call(1, lambda: print("started", flush=True)), at_call(int(kill_at), die)

    def before(*_: object) -> None:
        announce()
        time.sleep(0.01)
        killer()

    bars = Bars() if shown() else Progress()
    with bars.sweep([2]):
        bars.company("copy", 2)
        run(Path(root), Echo(before=before), progress=bars)


if __name__ == "__main__":
    main(*sys.argv[1:])
