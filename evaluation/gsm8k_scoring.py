"""What number a solution gives as its answer, and whether it is the right one: three readings of the same text.

`strict` and `flexible` are those of lm-evaluation-harness (tasks gsm8k and gsm8k_cot, version 3), oddities included, so
that their numbers can be compared. `lenient` is ours: it looks for the number that a person would take.
"""

from __future__ import annotations

import re
from decimal import Decimal

READINGS = ("flexible", "strict", "lenient")
UNPARSED, OFF_FORMAT = "unparsed", "off_format"

# The last dot of the first pattern is a wildcard that has to eat a character: so it stands in the harness.
STRICT = {
    "cot": re.compile(r"The answer is (\-?[0-9\.\,]+)."),
    "train": re.compile(r"#### (\-?[0-9\.\,]+)"),
}
FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
IGNORED = [re.compile(pattern) for pattern in (",", r"\$", r"(?s).*#### ", r"\.$")]

MARK = re.compile(r"\\boxed\s*\{|####|\banswer\b\W{0,3}(?:\bis\b|:|=)", re.IGNORECASE)
# What parts thousands in print and in LaTeX, beside the comma: {,} and thin or unbreakable blanks.
SEPARATOR = re.compile(r"(?<=\d)(?:\{,\}|,?\\[,!;]|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))")
NUMBER = re.compile(
    r"(?P<minus>(?<![A-Za-z\d)])-\\?[$€£¥]?|[$€£¥]-)?"
    r"(?<![A-Za-z\d])(?P<digits>(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
)


def score(text: str, gold: str, form: str) -> dict[str, float]:
    """1 or 0 for each reading; further whether the text has no number at all (`unparsed`), and whether it lacks the
    sentence or sign that the strict reading asks for (`off_format`).

    gold: the answer as published, such as `1,450`. form: `cot` or `train`."""
    strict, lenient, right = strict_answer(text, form), lenient_answer(text), lenient_answer(gold)
    assert right is not None, "a gold answer is a number"
    return {
        "flexible": float(matches(flexible_answer(text), gold)),
        "strict": float(matches(strict, gold)),
        "lenient": float(lenient == right),
        UNPARSED: float(lenient is None),
        OFF_FORMAT: float(strict is None),
    }


def strict_answer(text: str, form: str) -> str | None:
    """What follows the first sentence `The answer is`, or the first `####`, as the shots show it."""
    found = STRICT[form].search(text)
    return found and found[1]


def flexible_answer(text: str) -> str | None:
    """The last run of digits, points, commas and dollar signs, of at least two characters unless it is a digit."""
    found = FLEXIBLE.findall(text)
    return found[-1][0] or found[-1][1] if found else None


def matches(found: str | None, gold: str) -> bool:
    """Whether two texts are the same when the harness has taken away what it ignores."""
    return found is not None and _bare(found) == _bare(gold)


def lenient_answer(text: str) -> Decimal | None:
    r"""The first number after the last `\boxed{`, `####` or `answer is`, if one follows; else the last number.

    A number begins and ends with a digit; signs, currencies, separated thousands and decimals belong to it, what
    stands behind it does not. Numbers are compared as numbers: 18.00 is 18."""
    plain = SEPARATOR.sub(",", text.replace("\u2212", "-"))
    marks = list(MARK.finditer(plain))
    behind = NUMBER.search(plain, marks[-1].end()) if marks else None
    found = behind or next(reversed(list(NUMBER.finditer(plain))), None)
    if found is None:
        return None
    value = Decimal(found["digits"].replace(",", ""))
    return value.copy_negate() if found["minus"] else value


def _bare(text: str) -> str:
    for pattern in IGNORED:
        text = pattern.sub("", text)
    return text.lower()
