"""What the funnel measures adds up, on a tiny model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scripts import funnel


@pytest.fixture(scope="module")
def record(tiny_model: Callable[..., Any], prompt_of: Callable[..., tuple[int, ...]]) -> funnel.Record:
    from pyramid import methods

    names = ("fullkv", "pyramidkv", "snapkv", "streamingllm")
    found = funnel.Record(
        spans={"head": (0, 20), "middle": (20, 180), "tail": (180, 200)},
        methods={name: methods.build(name, budget=40) for name in names},
    )
    funnel.watch(tiny_model("Llama"), prompt_of(200), found.add)
    return found


def test_every_layer_is_measured_once_and_some_get_a_map(record: funnel.Record) -> None:
    assert len(record.concentration) == len(record.attention) == 6
    assert list(record.maps) == ["1", "2", "3", "4", "5", "6"]


def test_attention_over_the_spans_adds_up_to_all_of_it(record: funnel.Record) -> None:
    for layer in record.attention:
        assert sum(layer.values()) == pytest.approx(1, abs=1e-3)
    assert all(0 < share <= 1 for share in record.concentration)


def test_kept_tokens_over_the_spans_add_up_to_the_budget(record: funnel.Record) -> None:
    sizes = {name: end - start for name, (start, end) in record.spans.items()}
    for method in ("pyramidkv", "snapkv", "streamingllm"):
        kept = [sum(record.kept[method][name][layer] * sizes[name] for name in sizes) for layer in range(6)]
        assert sum(kept) / 6 == pytest.approx(40, abs=0.1), method
    assert set(record.kept["fullkv"]["middle"]) == {1.0}
    assert record.kept["streamingllm"]["tail"] == [1.0] * 6


def test_maps_show_nothing_of_the_future(record: funnel.Record) -> None:
    for rows in record.maps.values():
        assert all(value == 0 for i, row in enumerate(rows) for j, value in enumerate(row) if j > i)
        assert all(rows[i][i] > 0 for i in range(len(rows)))


def test_methods_that_change_the_reading_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert funnel.main(["model=nothing"]) == 2
    assert "there is no model 'nothing'" in capsys.readouterr().err
