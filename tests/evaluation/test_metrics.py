"""Every metric gives the official scorer's number to the digit, also where that number is odd.

The expected values were taken from the official scorers themselves: metrics.py of LongBench 2e00731 with
rouge 1.0.1, jieba 0.42.1 and fuzzywuzzy 0.18.0, the latter with and without python-Levenshtein.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge import Rouge

from evaluation import metrics
from evaluation.metrics import ScorerError

WORDS = st.lists(st.sampled_from(["a", "b", "c", "d", "a.", ".", "..", "\n", " "]), max_size=40)


def official_rouge(prediction: str, reference: str) -> float:
    scores: Any = Rouge().get_scores([prediction], [reference], avg=True)
    return scores["rouge-l"]["f"]


@pytest.mark.parametrize(
    ("prediction", "reference", "score"),
    [
        ("The cat sat.", "a cat", 2 / 3),
        ("  Cat,  CAT ", "cat", 2 / 3),
        ("don't", "dont", 1.0),
        ("thecat", "the cat", 0.0),
        ("the", "an", 0.0),
        ("", "cat", 0.0),
        ("", "", 0.0),
        ("Genève", "geneve", 0.0),
        ("a b c d", "b d", 0.8),
    ],
)
def test_f1(prediction: str, reference: str, score: float) -> None:
    assert metrics.f1(prediction, reference) == pytest.approx(score, abs=1e-12)


@pytest.mark.parametrize(
    ("prediction", "reference", "score"),
    [
        ("北京大学。", "北京大学", 1.0),
        ("他来到了网易杭研大厦", "网易", 2 / 7),
        ("答案是３６，对吗", "３６", 1 / 2),
        ("", "北京", 0.0),
        ("。，", "。", 0.0),
    ],
)
def test_f1_zh(prediction: str, reference: str, score: float) -> None:
    assert metrics.f1_zh(prediction, reference) == pytest.approx(score, abs=1e-12)


@pytest.mark.parametrize(
    ("prediction", "reference", "score"),
    [
        ("the cat sat on the mat", "the cat sat on the mat", 0.999999995),
        (
            "a b. c d",
            "c d. a b",
            0.999999995,
        ),  # each sentence finds its own: order of sentences does not count
        ("a a a a", "a", 0.999999995),  # words are a set: repetition costs nothing
        ("The cat", "the cat", 0.4999999950000001),  # case counts
        ("cat ,", "cat", 0.6666666622222223),  # and so does punctuation
        (" ", "x. ", 0.6666666622222223),  # a sentence of blanks is one empty word, and it matches
        ("x", "y", 0.0),
    ],
)
def test_rouge_l_corners(prediction: str, reference: str, score: float) -> None:
    assert metrics.rouge_l(prediction, reference) == pytest.approx(score, abs=1e-12)
    assert official_rouge(prediction, reference) == pytest.approx(score, abs=1e-12)


@settings(max_examples=300, deadline=None)
@given(WORDS, WORDS)
def test_rouge_l_is_the_packages_to_the_last_bit(prediction: list[str], reference: list[str]) -> None:
    first, second = " ".join(prediction), " ".join(reference)
    try:
        expected = official_rouge(first, second)
    except ValueError:
        with pytest.raises(ScorerError):
            metrics.rouge_l(first, second)
    else:
        assert metrics.rouge_l(first, second) == expected


@pytest.mark.parametrize("empty", ["", ".", "..."])
def test_rouge_l_says_where_the_package_raises(empty: str) -> None:
    for pair in ((empty, "a word"), ("a word", empty)):
        with pytest.raises(ScorerError, match="has no words"):
            metrics.rouge_l(*pair)


def test_blanks_are_an_empty_word_to_rouge_and_no_error() -> None:
    assert metrics.rouge_l("  ", "a word") == official_rouge("  ", "a word") == 0.0


class OfficialStack(threading.Thread):
    """Calls the package on as many frames as the official script: three in a thread, four for Chinese."""

    def __init__(self, text: str, chinese: bool) -> None:
        super().__init__()
        self.text, self.chinese = text, chinese
        self.scores: Any = None

    def run(self) -> None:
        try:
            if self.chinese:
                self.one_more()
            else:
                self.scores = Rouge().get_scores([self.text], ["reference"], avg=True)
        except RecursionError:
            pass

    def one_more(self) -> None:
        self.scores = Rouge().get_scores([self.text], ["reference"], avg=True)


@pytest.mark.parametrize("chinese", [False, True])
def test_rouge_l_fails_at_the_length_at_which_the_official_script_does(chinese: bool) -> None:
    steps = metrics.ROUGE_STEPS_ZH if chinese else metrics.ROUGE_STEPS
    assert sys.getrecursionlimit() == 1000
    for words in (steps, steps + 1):
        text = " ".join(map(str, range(words)))
        official = OfficialStack(text, chinese)
        official.start()
        official.join()
        if words == steps:
            assert metrics.rouge_l(text, "reference", steps=steps) == official.scores["rouge-l"]["f"] == 0.0
        else:
            assert official.scores is None
            with pytest.raises(ScorerError, match="too long"):
                metrics.rouge_l(text, "reference", steps=steps)


def test_a_looping_answer_of_5000_words_ends_in_an_error_at_once() -> None:
    with pytest.raises(ScorerError, match="too long"):
        metrics.rouge_l("word " * 5000, "a reference. Another sentence")


@pytest.mark.parametrize(
    ("prediction", "reference", "score"),
    [
        ("会议讨论了预算", "会议讨论了预算", 0.999999995),
        ("会议讨论了预算", "会议通过了预算", 0.749999995),
        ("好。坏", "坏。好", 0.33333332833333343),  # the Chinese full stop ends no sentence
        ("会议", "预算", 0.0),
    ],
)
def test_rouge_l_zh(prediction: str, reference: str, score: float) -> None:
    assert metrics.rouge_l_zh(prediction, reference) == pytest.approx(score, abs=1e-12)


def test_the_modern_rouge_is_another_number_and_blind_to_chinese() -> None:
    pytest.importorskip("rouge_score")
    assert metrics.rouge_score_l("The cat.", "the cat") == 1.0
    assert metrics.rouge_l("The cat.", "the cat") == pytest.approx(0.5)
    assert metrics.rouge_score_l("会议", "会议") == 0.0


KINDS = ("Food", "Date", "Other", "Other number")


@pytest.mark.parametrize(
    ("prediction", "reference", "classes", "score"),
    [
        ("Food", "Food", KINDS, 1.0),
        ("It is Food or Date", "Food", KINDS, 0.5),
        ("food", "Food", KINDS, 0.0),
        ("", "Food", KINDS, 0.0),
        ("Other number", "Other number", KINDS, 1.0),  # "Other" is a part of it and is dropped
        ("Other entity", "Other number", KINDS, 0.0),
        ("a class ab abc", "abc", ("a", "ab", "abc"), 0.5),  # dropping "a" hides "ab" from the loop
    ],
)
def test_classification(prediction: str, reference: str, classes: tuple[str, ...], score: float) -> None:
    assert metrics.classification(prediction, reference, classes) == score


@pytest.mark.parametrize(
    ("prediction", "score"),
    [("Paragraph 3", 1.0), ("3", 1.0), ("3 or 4", 0.5), ("30", 0.0), ("03", 0.0), ("none", 0.0), ("", 0.0)],
)
def test_retrieval_is_the_share_of_right_numbers(prediction: str, score: float) -> None:
    assert metrics.retrieval(prediction, "Paragraph 3") == score
    assert metrics.retrieval_zh(prediction, "段落3") == score
    assert metrics.count(prediction, "3") == score


def test_retrieval_takes_the_first_paragraph_of_the_reference_and_needs_one() -> None:
    assert metrics.retrieval("7", "Paragraph 7, not Paragraph 8") == 1.0
    for score in (metrics.retrieval, metrics.retrieval_zh):
        with pytest.raises(ScorerError, match="names no paragraph"):
            score("7", "7")


def test_digits_of_other_scripts_are_numbers_but_not_the_same() -> None:
    assert metrics.count("３", "3") == 0.0
    assert metrics.count("３", "３") == 1.0


@pytest.mark.parametrize(
    ("line", "reference", "by_difflib", "by_indel"),
    [
        ("tide", "diet", 25, 50),
        ("diet", "tide", 50, 50),  # difflib is not symmetric
        ("", "", 100, 100),
        ("", "x=1", 0, 0),
        ("return x", "return x", 100, 100),
        ("        return self.name", "        return self._name", 98, 98),
        ("for i in range(10):", "for j in range(len(x)):", 76, 76),
        ("public static void main(String[] args) {", "private static int main(String args) {", 79, 79),
        ("if x is None:", "if x is not None:", 87, 87),
        ("self.assertEqual(a, b)", "assert a == b", 51, 51),
        ("abcabba", "cbabac", 46, 62),
        ("abcd" * 60, "bcda" * 70, 0, 92),  # from 200 characters on difflib ignores frequent ones
        ("            e.click()", "            if e.text == language:", 55, 55),
    ],
)
def test_code_similarity_is_fuzzywuzzys(line: str, reference: str, by_difflib: int, by_indel: int) -> None:
    assert metrics.code_similarity(line, reference) == by_difflib / 100
    assert metrics.code_similarity(line, reference, "indel") == by_indel / 100


@pytest.mark.parametrize(
    ("prediction", "score"),
    [
        ("   \nreturn x", 0.18),
        ("\r\nreturn x", 0.0),
        ("\n\nreturn x\n", 1.0),
        ("# c\nreturn x", 1.0),
        ("```python\nreturn x\n```", 1.0),
        ("// c\nreturn x", 1.0),
        ("# nothing but\n# comments", 0.0),
        ("", 0.0),
    ],
)
def test_code_similarity_looks_at_one_line(prediction: str, score: float) -> None:
    assert metrics.code_similarity(prediction, "return x") == score


@pytest.mark.parametrize(
    ("text", "line"),
    [("\n\nParis\nLyon", "Paris"), (" \nParis", " "), ("\r\nParis", "\r"), ("Paris", "Paris"), ("", "")],
)
def test_first_line(text: str, line: str) -> None:
    assert metrics.first_line(text) == line


def test_chinese_segmentation_says_nothing() -> None:
    code = "from evaluation.metrics import f1_zh; assert f1_zh('北京', '北京') == 1"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


def test_missing_packages_are_named() -> None:
    assert metrics.missing_packages("json", "no_such_package") == ["no_such_package"]
