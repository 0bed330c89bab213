"""Which runs may stand in one table: those that differ in nothing but method, budget and task.

Whatever else differs is named, refused, and on permission said so underneath.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from evaluation.frame import Result

# what must be the same, and how a sentence calls it
FACTORS = {
    "model": "models",
    "protocol": "protocols",
    "task": "versions of a task",
    "samples": "sets of samples",
    "version": "versions of the code",
}


def differences(first: Result, second: Result) -> set[str]:
    """The factors in which two runs differ though a table's runs must not."""
    found = {
        name for name in ("model", "protocol") if factor_value(first, name) != factor_value(second, name)
    }
    if _selection(first) != _selection(second):
        found.add("samples")
    if first.run.spec.engine != second.run.spec.engine:
        found.add("version")
    if first.method == second.method and _method_version(first) != _method_version(second):
        found.add("version")
    if first.task == second.task:
        found |= {
            name for name in ("task", "samples") if factor_value(first, name) != factor_value(second, name)
        }
    return found


def split(results: Sequence[Result]) -> list[list[Result]]:
    """The fewest tables, filled in order, such that each holds only runs that may stand together."""
    groups: list[list[Result]] = []
    for result in results:
        home = next((g for g in groups if not any(differences(result, other) for other in g)), None)
        if home is None:
            groups.append([result])
        else:
            home.append(result)
    return groups


def check(results: Sequence[Result], allowed: Collection[str] = ()) -> list[str]:
    """What must be said under a table of these runs: one sentence for each factor that is mixed on
    permission.

    Errors: ValueError for a factor that is mixed without permission, or for one that does not exist."""
    for name in allowed:
        if name not in FACTORS:
            raise ValueError(f"mix={name!r} is none of {', '.join(FACTORS)}")
    mixed: set[str] = set()
    # of all, of each task, of each method: whatever differs from another differs from one of these
    first: dict[str, Result] = {}
    for result in results:
        for kind in ("", f"task {result.task}", f"method {result.method}"):
            mixed |= differences(result, first.setdefault(kind, result))
    for name in FACTORS:
        if name in mixed and name not in allowed:
            raise ValueError(
                f"these runs mix {FACTORS[name]} and belong in different tables: {describe(results, name)}; "
                f"choose among them, or allow it with mix={name}"
            )
    return [
        f"mixed {FACTORS[name]}: {describe(results, name)}, so differences between rows may come from that"
        for name in FACTORS
        if name in mixed
    ]


def describe(results: Sequence[Result], factor: str) -> str:
    """The fields of a factor that differ, with how many runs have each value: `template is chat (3 runs),
    none (2)`."""
    values = [factor_value(result, factor) for result in results]
    parts = []
    for field in dict.fromkeys(name for value in values for name in value):
        counts = Counter(_plain(value[field]) for value in values if field in value)
        if len(counts) > 1:
            (most, number), *others = counts.most_common()
            runs = f"{number} run{'s' * (number > 1)}"
            more = "".join(f", {text} ({count})" for text, count in others)
            parts.append(f"{field} is {most} ({runs}){more}")
    return "; ".join(parts)


def value_text(result: Result, factor: str) -> str:
    """A factor's value in few words, to tell rows apart in a table that mixes it."""
    spec = result.run.spec
    match factor:
        case "model":
            return str(spec.model.get("id"))
        case "protocol":
            return f"protocol {spec.protocol.get('name')}"
        case "version":
            return f"version {_method_version(result)}, engine {spec.engine}"
        case "samples":
            return f"{len(result.run.records)} samples"
    return f"task version {spec.task.get('version')}"


def factor_value(result: Result, factor: str) -> Mapping[str, Any]:
    spec = result.run.spec
    match factor:
        case "model":
            return spec.model
        case "protocol":
            return spec.protocol
        case "task":
            return {f"{result.task} {name}": value for name, value in spec.task.items() if name != "name"}
        case "version":
            return {"engine": spec.engine, f"{result.method} version": _method_version(result)}
    ids = sorted(record["id"] for record in result.run.records)
    drawn = {f"{result.task} number": len(ids), f"{result.task} samples": ids}
    return {**json.loads(_selection(result)), **drawn}


def _selection(result: Result) -> str:
    return json.dumps({**result.run.spec.subset, "seed": result.run.spec.seed}, sort_keys=True)


def _method_version(result: Result) -> Any:
    return result.run.spec.method.get("version")


def _plain(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
