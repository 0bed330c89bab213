"""Command lines of the form `name=value`, as run.py has them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches


def read_settings(arguments: Sequence[str], defaults: Mapping[str, str]) -> dict[str, str]:
    """The defaults, with what the arguments set. Errors: ValueError for a name that has no default."""
    settings = dict(defaults)
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals or name not in settings:
            near = get_close_matches(name.lstrip("-"), settings, 1, 0.5)
            hint = f"did you mean {near[0]}=...?" if near else f"there are {', '.join(settings)}."
            raise ValueError(f"unknown setting {argument!r}: {hint}")
        settings[name] = value
    return settings


def listed(text: str) -> list[str]:
    """The parts of a value with commas, `[a,b]` or `a,b`."""
    return [part.strip() for part in text.strip("[]").split(",") if part.strip()]


def run(
    main: Callable[[Mapping[str, str]], None],
    arguments: Sequence[str] | None,
    defaults: Mapping[str, str],
    text: str,
) -> int:
    """Exit code: 0, or 2 with one sentence for bad input. `--help` prints `text` and the defaults."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if any(argument in ("--help", "-h") for argument in given):
        print(text.strip(), "\n")
        print("\n".join(f"  {name}={value}" for name, value in defaults.items()))
        return 0
    try:
        main(read_settings(given, defaults))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
