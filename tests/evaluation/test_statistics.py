"""The intervals cover what they claim, pairing is by id, and small samples are not called clear."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.statistics import bootstrap_interval, paired_difference


def test_the_same_values_in_any_order_give_the_same_interval():
    values = np.random.default_rng(7).random(9).tolist()
    assert bootstrap_interval(values) == bootstrap_interval(values[::-1])
    assert bootstrap_interval(values, resamples=50, seed=1) != bootstrap_interval(
        values, resamples=50, seed=3
    )


def test_interval_agrees_with_the_normal_one_where_that_is_right():
    values = np.random.default_rng(3).normal(0.5, 0.1, size=400)
    low, high = bootstrap_interval(values.tolist())
    error = 1.96 * values.std(ddof=1) / 20
    assert low == pytest.approx(values.mean() - error, abs=0.1 * error)
    assert high == pytest.approx(values.mean() + error, abs=0.1 * error)


def test_about_95_of_100_intervals_hold_the_true_mean():
    draw = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        low, high = bootstrap_interval(draw.random(50).tolist(), resamples=300)
        covered += low <= 0.5 <= high
    assert 0.90 <= covered / 200 <= 0.99


def test_one_value_gives_an_interval_of_no_width():
    assert bootstrap_interval([0.75]) == (0.75, 0.75)


@pytest.mark.parametrize(
    ("values", "confidence", "word"),
    [
        ([], 0.95, "at least one"),
        ([0.5, float("nan")], 0.95, "finite"),
        ([0.5], 95, "95 is not between 0 and 1"),
    ],
)
def test_what_has_no_interval_is_refused(values, confidence, word):
    with pytest.raises(ValueError, match=word):
        bootstrap_interval(values, confidence)


def test_pairs_are_made_by_id_not_by_position():
    first = {"a": 1.0, "b": 0.0, "c": 0.5, "only first": 1.0}
    second = {"c": 0.5, "b": 1.0, "a": 1.0, "d": 0.0, "e": 0.0}
    found = paired_difference(first, second)
    assert (found.pairs, found.left_out, found.gained, found.lost, found.flips) == (3, 3, 0, 1, 1)
    assert found.difference == pytest.approx(-1 / 3)


def test_pairing_sees_a_difference_that_the_spread_of_the_samples_hides():
    second = {str(i): i / 100 for i in range(80)}
    first = {id: value + 0.02 + 0.01 * (int(id) % 3) for id, value in second.items()}
    assert paired_difference(first, second).distinguishable
    assert bootstrap_interval(list(first.values()))[0] < bootstrap_interval(list(second.values()))[1]


def test_swapping_the_runs_turns_the_sign():
    draw = np.random.default_rng(1).random((2, 30))
    first, second = ({str(i): float(v) for i, v in enumerate(row)} for row in draw)
    there, back = paired_difference(first, second), paired_difference(second, first)
    assert there.difference == pytest.approx(-back.difference)
    assert (there.gained, there.lost) == (back.lost, back.gained)


@pytest.mark.parametrize(("differing", "clear"), [(1, False), (5, False), (6, True)])
def test_a_handful_of_unanimous_samples_is_not_yet_clear(differing, clear):
    first = dict.fromkeys(map(str, range(differing)), 1.0)
    second = dict.fromkeys(map(str, range(differing)), 0.0)
    found = paired_difference(first, second)
    assert found.low == 1.0 and found.distinguishable is clear


def test_equal_runs_are_not_distinguishable():
    scores = {str(i): i / 10 for i in range(10)}
    found = paired_difference(scores, scores)
    assert (found.difference, found.low, found.high, found.distinguishable) == (0.0, 0.0, 0.0, False)


def test_runs_without_a_common_sample_are_refused():
    with pytest.raises(ValueError, match="no answered sample in common"):
        paired_difference({"a": 1.0}, {"b": 1.0})
