"""Scores of answers that are right, nearly right and wrong."""

from __future__ import annotations

import random

import pytest

from needle.needles import METRICS, NEEDLES

SAN_FRANCISCO = NEEDLES["san_francisco"]
EXACT = "eat a sandwich and sit in Dolores Park on a sunny day."


def _scores(kind: str, references: tuple[str, ...], text: str) -> tuple[float, ...]:
    scores = NEEDLES[kind].score(references, text)
    assert tuple(scores) == METRICS
    return tuple(scores.values())


@pytest.mark.parametrize(
    ("answer", "word_recall", "strict_hit", "key_facts"),
    [
        (EXACT, 1, 1, 1),
        (f"{EXACT} It is also cheap.", 1, 1, 1),
        (f"The best thing to do in San Francisco is to {EXACT}", 1, 1, 1),
        (EXACT.upper(), 1, 1, 1),
        (EXACT.rstrip("."), 10 / 11, 1, 1),
        ("Eat a sandwich, and sit in Dolores Park, on a sunny day!", 8 / 11, 1, 1),
        ("sandwich, Dolores Park", 2 / 11, 0, 1),
        ("a sandwich in Dolores Park", 5 / 11, 0, 1),
        ("Sit in Dolores Park.", 3 / 11, 0, 0.5),
        ("Dolores has a park and a sandwich.", 4 / 11, 0, 0.5),
        ("sandwiches", 0, 0, 0),
        ("Visit the Golden Gate Bridge.", 0, 0, 0),
        ("on a sunny day.", 4 / 11, 0, 0),
        ("", 0, 0, 0),
    ],
)
def test_san_francisco(answer: str, word_recall: float, strict_hit: float, key_facts: float) -> None:
    """word_recall counts words as the paper's plot does; the other two do not measure wording."""
    assert _scores("san_francisco", (EXACT,), answer) == pytest.approx((word_recall, strict_hit, key_facts))


def test_published_reference_has_eleven_words_and_follows_the_question() -> None:
    planted = SAN_FRANCISCO.plant(random.Random(0))
    assert len(set(planted.references[0].lower().split())) == 11
    assert planted.sentences[0].strip() == planted.question.replace(": ", " ") + planted.references[0]
    assert SAN_FRANCISCO.answer_tokens == 30


@pytest.mark.parametrize(
    ("answer", "recall", "hit"),
    [
        ("It is 4821763.", 1, 1),
        ("4,821,763", 1, 1),
        ("48 21 763", 1, 1),
        ("2 of them: 4821763", 1, 1),
        ("4821709", 5 / 7, 0),
        ("14821763", 0, 0),
        ("48217630", 1, 0),
        ("482 176 is what I recall", 6 / 7, 0),
        ("none", 0, 0),
        ("", 0, 0),
    ],
)
def test_number(answer: str, recall: float, hit: float) -> None:
    """A number counts however it is grouped; one digit more or less is another number."""
    assert _scores("number_7", ("4821763",), answer) == pytest.approx((recall, hit, hit))


@pytest.mark.parametrize(
    ("answer", "share", "all_of_them"),
    [
        ("Lisbon 4821, Nairobi 9377 and Oslo 1050.", 1, 1),
        ("1050, 9377, 4821", 1, 1),
        ("Lisbon: 4821. Oslo: 1051.", 1 / 3, 0),
        ("48219377", 0, 0),
        ("", 0, 0),
    ],
)
def test_several(answer: str, share: float, all_of_them: float) -> None:
    assert _scores("several", ("4821", "9377", "1050"), answer) == pytest.approx((share, all_of_them, share))


@pytest.mark.parametrize("kind", NEEDLES)
def test_needles_hold_what_is_asked_for(kind: str) -> None:
    """The sentences are a perfect answer; another draw gives other numbers and the same question."""
    needle = NEEDLES[kind]
    one, again, other = (needle.plant(random.Random(seed)) for seed in (1, 1, 2))
    assert one == again and one.question == other.question
    assert set(needle.score(one.references, "".join(one.sentences)).values()) == {1.0}
    assert (one.references != other.references) == (kind != "san_francisco")
    assert len(set(one.references)) == len(one.sentences)


@pytest.mark.parametrize(("kind", "digits"), [("number_7", 7), ("number_64", 64)])
def test_numbers_have_their_length(kind: str, digits: int) -> None:
    for seed in range(50):
        assert len(NEEDLES[kind].plant(random.Random(seed)).references[0]) == digits
