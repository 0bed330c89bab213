"""Scores of one answer against one reference, exactly as the benchmarks' own scorers give them, oddities
included.

Each function is pure and returns a number in [0, 1]. Where the official scorer would hide an exception behind
a zero, or crash, `ScorerError` is raised instead, so that the caller can count such zeros apart from wrong
answers.
Source: metrics.py and eval.py of github.com/THUDM/LongBench (2e00731).
"""

from __future__ import annotations

import difflib
import logging
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

CODE_SIMILARITIES = ("difflib", "indel")

# The `rouge` package walks back through its table by recursion. Called from the official script, which goes
# through one more function for Chinese, it can take so many steps before CPython 3.11 to 3.13 stop it at 1000
# frames; 3.9 and 3.10 stop it one step earlier.
ROUGE_STEPS, ROUGE_STEPS_ZH = 990, 989

_PUNCTUATION = frozenset(string.punctuation)
_PUNCTUATION_ZH = _PUNCTUATION | frozenset(
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】"
    "〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏."
)


class ScorerError(ValueError):
    """The official scorer fails on this pair; where it goes on all the same, it counts 0."""


def first_line(text: str) -> str:
    """What is scored of a few-shot answer: the first line after leading newlines.

    Only `\\n` counts: an answer that begins with a blank or `\\r` and a newline keeps nothing but that."""
    return text.lstrip("\n").split("\n")[0]


def f1(prediction: str, reference: str) -> float:
    """F1 over words, without case, ASCII punctuation and the articles a, an, the."""
    return _f1(_words(prediction), _words(reference))


def f1_zh(prediction: str, reference: str) -> float:
    """F1 over the words that jieba finds, without case and punctuation."""
    return _f1(_words_zh(prediction), _words_zh(reference))


def rouge_l(prediction: str, reference: str, *, steps: int = ROUGE_STEPS) -> float:
    """ROUGE-L as the `rouge` package 1.0.1 computes it: summary level, over sets of words, split at `.`.

    Every pair of sentences gives the words of one longest common subsequence; the score is the F1 of the
    union of these words against the words of both texts, with 1e-8 added to the denominator. Of several
    subsequences of equal length it is the one that the package's walk through its table meets; here the table
    is held as bits (Hyyrö 2004), which is far faster.
    Errors: ScorerError where the package raises: for a text of nothing but full stops, and for two sentences
    so long that its recursion, `steps` deep at the most, ends in an error."""
    predicted, expected = _sentences(prediction), _sentences(reference)
    if not predicted or not expected:
        raise ScorerError(f"the {'answer' if expected else 'reference'} has no words")
    positions = [_positions(sentence) for sentence in predicted]
    common: set[str] = set()
    for sentence in expected:
        for other, places in zip(predicted, positions, strict=True):
            common |= _common_words(sentence, other, places, steps)
    precision = len(common) / len(set().union(*predicted))
    recall = len(common) / len(set().union(*expected))
    return 2.0 * ((precision * recall) / (precision + recall + 1e-8))


def rouge_l_zh(prediction: str, reference: str) -> float:
    """ROUGE-L over the words that jieba finds; a Chinese full stop ends no sentence."""
    return rouge_l(" ".join(_cut(prediction)), " ".join(_cut(reference)), steps=ROUGE_STEPS_ZH)


def rouge_score_l(prediction: str, reference: str) -> float:
    """rougeL F1 of the `rouge-score` package, without stemming: what newer papers print, another number.

    It sees nothing but a to z and digits, and is no use for other scripts."""
    return _rouge_scorer().score(reference, prediction)["rougeL"].fmeasure


def classification(prediction: str, reference: str, classes: Sequence[str]) -> float:
    """1 / (classes found in the answer) if the right one is among them, else 0; case counts.

    Found classes that are a part of the right one are dropped while the same list is walked through, so that
    the one after each dropped class is not looked at."""
    found = [each for each in classes if each in prediction]
    for each in found:
        if each in reference and each != reference:
            found.remove(each)
    return 1.0 / len(found) if reference in found else 0.0


def retrieval(prediction: str, reference: str) -> float:
    """Share of the answer's numbers that are the one in `Paragraph N`. Errors: ScorerError if it has none."""
    return count(prediction, _paragraph(reference, r"Paragraph (\d+)"))


def retrieval_zh(prediction: str, reference: str) -> float:
    """Share of the answer's numbers that are the one in `段落N`. Errors: ScorerError if it has none."""
    return count(prediction, _paragraph(reference, r"段落(\d+)"))


def count(prediction: str, reference: str) -> float:
    """Share of the answer's numbers that are written as the reference is."""
    numbers = re.findall(r"\d+", prediction)
    return numbers.count(reference) / len(numbers) if numbers else 0.0


def code_similarity(prediction: str, reference: str, backend: str = "difflib") -> float:
    """Similarity of the reference to the answer's first line without comment or fence, in whole percent.

    Only leading `\\n` are skipped: a first line of blanks is the line. Equal texts give 1, even empty ones.
    backend: `difflib` is what fuzzywuzzy, the official scorer, computes as LongBench installs it; `indel` is
    what it computes where a Levenshtein package is installed too."""
    lines = prediction.lstrip("\n").split("\n")
    line = next((each for each in lines if not ("`" in each or "#" in each or "//" in each)), "")
    if line == reference:
        return 1.0
    if backend == "difflib":
        ratio = difflib.SequenceMatcher(None, line, reference).ratio()
    else:
        from rapidfuzz.distance import Indel

        assert backend == "indel", backend
        ratio = Indel.normalized_similarity(line, reference)
    return round(100 * ratio) / 100


def missing_packages(*modules: str) -> list[str]:
    """Those of the given modules that are not installed."""
    return [module for module in modules if find_spec(module) is None]


def _f1(prediction: Sequence[str], reference: Sequence[str]) -> float:
    same = sum((Counter(prediction) & Counter(reference)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(prediction), same / len(reference)
    return (2 * precision * recall) / (precision + recall)


def _words(text: str) -> list[str]:
    bare = "".join(character for character in text.lower() if character not in _PUNCTUATION)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def _words_zh(text: str) -> list[str]:
    bare = ("".join(each for each in word.lower() if each not in _PUNCTUATION_ZH) for word in _cut(text))
    return [word for word in ("".join(each.split()) for each in bare) if word]


def _sentences(text: str) -> list[list[str]]:
    """Words by sentence. A sentence of blanks holds one empty word, which counts as a word."""
    return [" ".join(part.split()).split(" ") for part in text.split(".") if part]


def _positions(words: Sequence[str]) -> dict[str, int]:
    """Each word's places in the sentence, as the bits of a number."""
    places: dict[str, int] = {}
    for index, word in enumerate(words):
        places[word] = places.get(word, 0) | 1 << index
    return places


def _common_words(words: Sequence[str], other: Sequence[str], places: dict[str, int], steps: int) -> set[str]:
    """The words of a longest common subsequence. Row i of the usual table is held as bits that are 0 where
    the length grows along `other`."""
    full = row = (1 << len(other)) - 1
    rows = []
    for word in words:
        match = row & places.get(word, 0)
        row = ((row + match) | (row - match)) & full
        rows.append(row)
    found = set()
    i, j = len(words), len(other)
    while i and j:
        steps -= 1
        if words[i - 1] == other[j - 1]:
            found.add(words[i - 1])
            i, j = i - 1, j - 1
        elif rows[i - 1] >> (j - 1) & 1:
            j -= 1
        else:
            i -= 1
    if steps < 0:
        raise ScorerError("two sentences are too long for the recursion of the official ROUGE")
    return found


def _paragraph(reference: str, pattern: str) -> str:
    found = re.search(pattern, reference)
    if found is None:
        raise ScorerError(f"the reference {reference!r} names no paragraph")
    return found[1]


def _cut(text: str) -> list[str]:
    return _segmenter()(text)


@cache
def _segmenter() -> Callable[[str], list[str]]:
    """jieba with its dictionary loaded, once for the process and without a word."""
    import jieba

    jieba.setLogLevel(logging.WARNING)
    jieba.initialize()
    return jieba.lcut


@cache
def _rouge_scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"])
