"""One method a file.

`method=snapkv` is the class that `METHOD` names in `pyramid/methods/snapkv.py`, configured by
`conf/method/snapkv.yaml`.
"""

from __future__ import annotations

import pkgutil
from dataclasses import fields
from difflib import get_close_matches
from importlib import import_module
from typing import Any


def names() -> list[str]:
    """All methods there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def build(name: str, **parameters: Any) -> Any:
    """The method `name` with these parameters; a `budget` that it does not have is left out.

    Errors: ValueError for an unknown method or parameter, with the nearest known ones, and for values that
    the method refuses.
    """
    if name not in names():
        raise ValueError(f"unknown method {name!r}{_nearest(name, names())}")
    cls = import_module(f"pyramid.methods.{name}").METHOD
    known = [field.name for field in fields(cls)]
    if "budget" not in known:
        parameters.pop("budget", None)
    for parameter in parameters:
        if parameter not in known:
            raise ValueError(f"method {name} has no parameter {parameter!r}{_nearest(parameter, known)}")
    return cls(**parameters)


def _nearest(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, 3, 0.5)
    return f": did you mean {' or '.join(near)}?" if near else f": known are {', '.join(known)}"
