"""Grade MT-Bench answers: python -m scripts.judge judge=local runs=results

runs: a results folder, its folder `runs`, or one run's own folder. judge: who grades (see below); its settings are
written judge.NAME=VALUE. data.path: FastChat's data/mt_bench, or a folder with its reference_answer and
judge_prompts.jsonl; empty: what `python -m scripts.fetch mt_bench` brought.

Judgments are kept beside the answers, each as soon as it is made. The same command asks only for what is missing, and
`python -m scripts.report show` makes the tables.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from evaluation import command_line, judging
from evaluation.endpoint import KEY_VARIABLE, EndpointJudge
from evaluation.judge import FAILED, SCORED
from evaluation.judges import Judge, LocalJudge
from evaluation.mt_bench import MTBench
from evaluation.mt_bench_rows import read_grading
from evaluation.results import Run, load_runs
from scripts.settings import run

CONF = Path(__file__).resolve().parent.parent / "conf"
DEFAULTS = {"runs": "results", "judge": "local", "data.path": ""}
PRICES = ("dollars_per_million_prompt_tokens", "dollars_per_million_new_tokens")
TEXTS = ("model", "base_url")
FRACTIONS = ("temperature", "pause", "timeout", *PRICES)
OPTIONAL = ("max_tokens", "temperature", *PRICES)
REASONS = 5  # shown of a run
INTERRUPTED = "interrupted: what is judged is kept; the same command goes on from there"


def judge(settings: Mapping[str, str], outcomes: Counter[str]) -> None:
    """Judge what is not judged yet, and say what came of it."""
    runs = mt_bench_runs(settings["runs"])
    values = judge_values(settings)
    if values["kind"] == "none":
        for each in runs:
            print(*MTBench().draw(_answered(each), each.folder), sep="\n")
        return
    grading = read_grading(settings["data.path"] or None)
    asked = build(values)
    asked.check()
    total = judging.Tally()
    for each in runs:
        with _bar(each) as advance:
            tally = judging.judge_run(each, asked, grading, advance)
        _say(each, tally)
        outcomes.update(tally.outcomes)
        total.prompt_tokens += tally.prompt_tokens
        total.new_tokens += tally.new_tokens
        total.untold += tally.untold
        if tally.stopped:
            outcomes[FAILED] += 1
            print(f"stopped: {tally.stopped}; the same command goes on", file=sys.stderr)
            break
    print(cost(total, values))


def mt_bench_runs(folder: str) -> list[Run]:
    """The finished MT-Bench runs of a results folder, of its folder `runs`, or the one whose folder this is; says on
    stderr which are not finished. Errors: ValueError if there is none."""
    root = Path(folder)
    if (root / "spec.json").exists():
        found = [
            each for each in load_runs(root.absolute().parents[1]) if each.folder.name == root.absolute().name
        ]
    else:
        found = load_runs(root) or (load_runs(root.parent) if root.name == "runs" else [])
    found = [each for each in found if each.spec.task["name"] == MTBench.name]
    for each in found:
        if each.summary is None:
            print(f"left out: {each.key} is {each.status}; its command goes on with it", file=sys.stderr)
    runs = [each for each in found if each.summary is not None]
    if not runs:
        raise ValueError(
            f"there are no finished MT-Bench runs in {folder}; `python run.py suite=mt_bench` makes one"
        )
    return runs


def judge_values(settings: Mapping[str, str]) -> dict[str, Any]:
    """The settings of the judge, as values. Errors: ValueError for a text where a number belongs."""
    values = _file_of(settings["judge"])
    for name in [name for name in values if name != "kind"]:
        value = yaml.safe_load(settings[f"judge.{name}"])
        if name in TEXTS:
            value = str(value)
        elif isinstance(value, bool) or not isinstance(value, int | float | None):
            raise ValueError(f"judge.{name}={value} is no number")
        elif isinstance(value, float) and name not in FRACTIONS:
            raise ValueError(f"judge.{name}={value} is no whole number")
        elif value is None and name not in OPTIONAL:
            raise ValueError(f"judge.{name} needs a number")
        values[name] = value
    return values


def build(values: Mapping[str, Any]) -> Judge:
    """The judge that a file of conf/judge describes. Errors: ValueError if it cannot be had."""
    parameters = {name: value for name, value in values.items() if name not in ("kind", *PRICES)}
    if values["kind"] == "openai":
        key = os.environ.get(KEY_VARIABLE, "").strip()
        if not key:
            raise ValueError(
                f"judge=openai needs a key in the environment variable {KEY_VARIABLE}; a server that asks for none "
                "takes any text"
            )
        return EndpointJudge(key=key, **parameters)
    return _local_judge(**parameters)


def cost(total: judging.Tally, values: Mapping[str, Any]) -> str:
    """What asking took, in tokens, and in money if the prices are known."""
    text = f"cost: {total.prompt_tokens:,} prompt tokens and {total.new_tokens:,} new tokens"
    if total.untold:
        text += f", without {total.untold} replies that do not tell theirs"
    prompt_price, new_price = (values.get(price) for price in PRICES)
    if prompt_price is not None and new_price is not None:
        dollars = (total.prompt_tokens * prompt_price + total.new_tokens * new_price) / 1e6
        text += f", {dollars:,.4f} dollars"
    return text


def _local_judge(model: str, max_tokens: int | None, batch_size: int) -> LocalJudge:
    from pyramid import methods, models
    from pyramid.generation import Generator

    file = CONF / "model" / f"{model}.yaml"
    if file.exists():
        spec = models.ModelSpec(**yaml.safe_load(file.read_text(encoding="utf-8")))
    elif "/" in model or Path(model).exists():
        spec = models.ModelSpec(name=Path(model).name, id=model)
    else:
        known = list(command_line.options("model"))
        near = ", ".join(get_close_matches(model, known, 2, 0.5) or known)
        raise ValueError(
            f"judge.model={model} is unknown: did you mean {near}? Any other: org/name, or a folder"
        )
    loaded = models.load(spec)
    generator = Generator(model=loaded.model, tokenizer=loaded.tokenizer)
    return LocalJudge(
        name=spec.name,
        answer=lambda requests: generator.generate(requests, [methods.build("fullkv")])[0],
        tokenizer=loaded.tokenizer,
        max_length=loaded.max_length,
        model=loaded.identity,
        max_tokens=max_tokens,
        batch_size=batch_size,
    )


def _say(each: Run, tally: judging.Tally) -> None:
    new = sum(tally.outcomes.values())
    unscored = new - tally.outcomes[SCORED]
    print(
        f"{each.key}: {new} new judgments, {unscored} of them unscored; {tally.kept} were there", flush=True
    )
    for reason, count in tally.reasons.most_common(REASONS):
        print(f"  unscored {count} times: {reason}", file=sys.stderr)
    if len(tally.reasons) > REASONS:
        print(f"  and for {len(tally.reasons) - REASONS} other reasons", file=sys.stderr)


def _answered(each: Run) -> list[dict[str, Any]]:
    return [record for record in each.records if record["error"] is None]


@contextmanager
def _bar(each: Run) -> Iterator[Callable[[], None]]:
    """Yields what advances a count of judgments on a terminal's standard error; elsewhere it is silent."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}: {task.completed:.0f} judged"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        job = bar.add_task(each.key, total=None)
        yield lambda: bar.advance(job)


def defaults_for(arguments: Sequence[str]) -> dict[str, str]:
    """What may be set: the settings of the judge that the arguments name. Errors: ValueError for an unknown one."""
    named = [argument.removeprefix("judge=") for argument in arguments if argument.startswith("judge=")]
    name = named[-1] if named else DEFAULTS["judge"]
    known = command_line.options("judge")
    if name not in known:
        raise ValueError(f"judge={name} is none of {', '.join(known)}")
    values = {f"judge.{key}": value for key, value in _file_of(name).items() if key != "kind"}
    own = {key: "null" if value is None else str(value) for key, value in values.items()}
    return DEFAULTS | {"judge": name} | own


def _file_of(judge: str) -> dict[str, Any]:
    return yaml.safe_load((CONF / "judge" / f"{judge}.yaml").read_text(encoding="utf-8"))


def help_text() -> str:
    known = command_line.options("judge")
    return "\n".join(
        [(__doc__ or "").strip(), "", *(f"  judge={name:<8}{text}" for name, text in known.items())]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if all was judged, unscored or not; 1 if a judgment failed and can be asked for again; 2 for bad input."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    outcomes: Counter[str] = Counter()
    try:
        defaults = defaults_for(given)
        code = run(partial(judge, outcomes=outcomes), given, defaults, help_text())
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\n{INTERRUPTED}", file=sys.stderr)
        return 130
    return code or int(outcomes[FAILED] > 0)


if __name__ == "__main__":
    sys.exit(main())
