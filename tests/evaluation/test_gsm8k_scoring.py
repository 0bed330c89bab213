"""What a solution answers: the harness's two readings as it defines them, and ours, which no known trap fools."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from decimal import Decimal
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.gsm8k_scoring import (
    OFF_FORMAT,
    READINGS,
    UNPARSED,
    flexible_answer,
    lenient_answer,
    matches,
    score,
    strict_answer,
)

MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")


class Restated:
    """The harness's two filters and its comparison again, character by character and without regular expressions."""

    @staticmethod
    def flexible(text: str) -> str | None:
        last, place = None, 0
        while place < len(text):
            start = place + (text[place] == "-")
            end = start
            while end < len(text) and text[end] in "$0123456789.,":
                end += 1
            if end - start >= 2 or text[start:end].isdigit():
                last, place = text[place:end], end
            else:
                place += 1
        return last

    @staticmethod
    def strict(text: str, form: str) -> str | None:
        opening = "The answer is " if form == "cot" else "#### "
        place = text.find(opening)
        while place >= 0:
            start = place + len(opening)
            end = start + (text[start : start + 1] == "-")
            digits = end
            while end < len(text) and text[end] in "0123456789.,":
                end += 1
            if form == "cot" and (end == len(text) or text[end] == "\n"):
                end -= (
                    1  # one character that ends no line has to follow, if need be the number's own last one
                )
            if end > digits:
                return text[start:end]
            place = text.find(opening, place + 1)
        return None

    @staticmethod
    def same(found: str | None, gold: str) -> bool:
        def bare(text: str) -> str:
            text = text.replace(",", "").replace("$", "")
            text = text.split("#### ")[-1]
            return text.removesuffix(".").lower()

        return found is not None and bare(found) == bare(gold)


def solutions(shared_data: Path) -> Iterator[tuple[str, str, bool]]:
    """Text, gold answer and the published verdict, for four models' answers to all problems."""
    with gzip.open(
        shared_data / "gsm8k" / "example_model_solutions.jsonl.gz", "rt", encoding="utf-8"
    ) as lines:
        for line in lines:
            row = json.loads(line)
            gold = row["ground_truth"].rsplit("A: ", 1)[1].strip()
            for model in MODELS:
                yield row[model]["solution"], gold, row[model]["is_correct"]


def test_flexible_and_lenient_agree_with_every_published_verdict(shared_data: Path) -> None:
    """5,276 solutions of four models, judged by the data set's authors."""
    count = 0
    for text, gold, correct in solutions(shared_data):
        scores = score(text, gold, "cot")
        assert (scores["flexible"], scores["lenient"]) == (correct, correct), (text, gold)
        count += 1
    assert count == 4 * 1319


@pytest.mark.parametrize(
    ("ending", "form"),
    [
        ("\nThe answer is {}.", "cot"),
        ("\nThe answer is {}", "cot"),
        (" The answer is ${}.\n\nIs it?", "cot"),
        ("\n#### {}", "train"),
        ("\n#### {}.\nThe answer is 1,0.", "train"),
    ],
)
def test_the_harness_readings_are_those_of_a_restatement(shared_data: Path, ending: str, form: str) -> None:
    """On every seventh of these solutions, put into the formats that the strict reading looks for."""
    found = set()
    for text, gold, _ in islice(solutions(shared_data), 0, None, 7):
        start, _, answer = text.rpartition("\nA: ")
        text = start + ending.format(answer)
        flexible, strict = Restated.flexible(text), Restated.strict(text, form)
        assert (flexible_answer(text), strict_answer(text, form)) == (flexible, strict), text
        scores = score(text, gold, form)
        assert scores["flexible"] == Restated.same(flexible, gold)
        assert scores["strict"] == Restated.same(strict, gold)
        found.add((scores["flexible"], scores["strict"]))
    assert len(found) >= 2, "right and wrong answers were among them"


@given(st.text(alphabet="0159.,-$ \nAQ:#", max_size=25), st.sampled_from(["The answer is ", "#### "]))
def test_the_restatement_agrees_on_any_text(text: str, opening: str) -> None:
    for form in ("cot", "train"):
        for whole in (text, opening + text, text + opening + text):
            assert flexible_answer(whole) == Restated.flexible(whole)
            assert strict_answer(whole, form) == Restated.strict(whole, form)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The answer is 18.", "18"),
        ("The answer is 18", "1"),  # the pattern's last dot eats a digit: the harness's own quirk
        ("The answer is 5", None),
        ("The answer is $18.", None),
        ("The answer is -3 apples.", "-3"),
        ("The answer is 18. The answer is 20.", "18."),
        ("the answer is 18.", None),
    ],
)
def test_the_quirks_of_strict_are_kept(text: str, found: str | None) -> None:
    assert strict_answer(text, "cot") == found


TRAPS = [
    ("72 clips, altogether.", "72"),  # a bare comma is no number
    ("3 5", "5"),  # two numbers are not glued
    (r"\boxed{8,000}", "8000"),
    ("$9{,}500", "9500"),
    (r"$\boxed{-1\,450\text{ dollars}}$", "-1450"),
    ("#### 1,234.", "1234"),
    ("She has $70,000.", "70000"),
    ("It costs $.50", "0.5"),
    ("18.00 dollars", "18"),
    ("-$5", "-5"),
    ("$-5", "-5"),
    ("a change of \u221210 degrees", "-10"),
    ("21-15", "15"),  # a minus between numbers is no sign
    ("(3)-5", "5"),
    ("1\u202f450 m", "1450"),
    ("18km of H2O", "18"),  # a digit within a word is no number
    ("答案是18。", "18"),
    ("**Answer:** 12 apples, 3 of them red", "12"),
    ("The answer is 18, since 9 x 2 dollars.", "18"),  # the answer first
    ("I think the answer is:\n\n$\\boxed{18}$. I hope 1 of us is right.", "18"),
    ("A: 18", "18"),
    ("It is 7. #### ", "7"),  # a mark without a number behind it
]


@pytest.mark.parametrize(("text", "value"), TRAPS)
def test_lenient_finds_the_number_that_a_person_would_take(text: str, value: str) -> None:
    """D10, D12."""
    assert lenient_answer(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", " ", ",", "...", "$", "No idea.", "#### ", r"\boxed{}"])
def test_no_number_is_unparsed_and_never_right(text: str) -> None:
    assert lenient_answer(text) is None
    scores = score(text, "0", "cot")
    assert scores[UNPARSED] == scores[OFF_FORMAT] == 1 and not any(scores[name] for name in READINGS)


@given(
    st.integers(-(10**9), 10**9),
    st.sampled_from(
        ["{}", "{}.", "{},", "({})", "{}%", "{} dollars", "**{}**", "= {}\n", "{}.00", "so {}!", "{}; "]
    ),
    st.sampled_from(["", "$", "€", r"\$"]),
    st.booleans(),
    st.sampled_from(["3 x 4 is 12, so it is ", "#### ", "The answer is ", r"\boxed{"]),
)
def test_lenient_survives_any_dress(
    number: int, dress: str, currency: str, commas: bool, before: str
) -> None:
    written = f"{abs(number):,}" if commas else str(abs(number))
    text = before + dress.format(f"{'-' * (number < 0)}{currency}{written}")
    assert lenient_answer(text) == number


@pytest.mark.parametrize(
    ("text", "flexible", "strict", "lenient", "off_format"),
    [
        ("2 + 2 = 4\n#### 4", 1, 1, 1, 0),
        ("2 + 2 = 4", 1, 0, 1, 1),
        (r"\boxed{4} is it, as 2 + 2 shows for all 9 of us", 0, 0, 1, 1),
        ("4, because there are 2 and 2", 0, 0, 0, 1),
    ],
)
def test_one_answer_can_be_right_for_one_reading_and_wrong_for_another(
    text: str, flexible: int, strict: int, lenient: int, off_format: int
) -> None:
    """D12: all readings stand side by side, with the share that is not in the asked form."""
    expected = {
        "flexible": flexible,
        "strict": strict,
        "lenient": lenient,
        UNPARSED: 0,
        OFF_FORMAT: off_format,
    }
    assert score(text, "4", "train") == expected


@pytest.mark.parametrize(
    ("found", "gold", "same"),
    [
        ("1,450", "1450", True),
        ("$18", "18", True),
        ("18.", "18", True),
        ("18.0", "18", False),
        (None, "18", False),
    ],
)
def test_the_harness_compares_texts_and_ignores_commas_dollars_and_a_final_point(
    found: str | None, gold: str, same: bool
) -> None:
    assert matches(found, gold) is same
