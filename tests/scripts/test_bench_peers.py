"""The comparison with kvpress: equal tokens on both sides, right ratios, and one sentence where it cannot be had."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from pyramid.generation import Generator
from pyramid.methods import build
from pyramid.models import ModelSpec, load
from pyramid.types import Request
from scripts import bench_peers
from scripts.bench_peers import FULLKV, Cell, Peer, Round, Timed, all_ratios, cells_of
from scripts.peers.kvpress_cells import removed_share
from tests.pyramid.tiny_checkpoint import save_tiny

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-peers" / "bin" / "python"


@given(st.integers(2, 40_000).flatmap(lambda n: st.tuples(st.integers(2, n), st.just(n))))
def test_the_share_leaves_the_budget_to_the_token(case: tuple[int, int]) -> None:
    budget, prompt = case
    context = prompt - 1  # the last token is fed after the compression and stays
    share = removed_share(budget, prompt)
    assert int(context * (1 - share)) + 1 == budget  # kvpress.utils.compute_n_kept
    assert round(context * (1 - share)) + 1 == budget  # PyramidKVPress where it is uniform


def times(seconds: Mapping[Cell, float]) -> dict[Cell, Timed]:
    return {cell: Timed(seconds=value, held=1.0, text="") for cell, value in seconds.items()}


def test_totals_compare_whole_tables_and_medians_are_of_ratios() -> None:
    """Five cells of 1 to 5 s here, all of 10 s there, but for H2O's of 100 s; together 2 s, without H2O 1 s."""
    cells = cells_of([64])
    assert [cell.method for cell in cells] == ["fullkv", "streamingllm", "h2o", "snapkv", "pyramidkv"]
    first = Round(
        company=2.0,
        without_eager=1.0,
        ours=times({cell: number + 1.0 for number, cell in enumerate(cells)}),
        peers=times({cell: 100.0 if cell.method == "h2o" else 10.0 for cell in cells}),
    )
    found = all_ratios([first, replace(first, company=1.0), replace(first, company=1000.0)])
    assert found["kvpress_over_company"] == 140 / 2
    assert found["kvpress_over_company_without_h2o"] == 40
    assert found["kvpress_over_one_by_one"] == 140 / 15
    assert found["kvpress_over_one_by_one_without_h2o"] == 40 / 12
    assert found["kvpress_over_alone_fullkv"] == 10
    assert found["kvpress_over_alone_h2o_64"] == 100 / 3


def test_a_table_says_when_the_two_sides_do_not_compute_the_same() -> None:
    here, there = Timed(seconds=1.0, held=8.0, text="a"), Timed(seconds=1.0, held=8.0, text="b")
    same = Round(company=1.0, without_eager=1.0, ours={FULLKV: here}, peers={FULLKV: here})
    other = replace(same, peers={FULLKV: there})
    assert "is the same text" in bench_peers.table([same])
    assert "is NOT the same text" in bench_peers.table([same, other])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--prompts", "200"], "a prompt more than any budget"),
        (["--budgets", "8", "64"], "more than 8 tokens"),
        (["--rounds", "0"], "at least 1 round"),
    ],
)
def test_what_cannot_be_compared_is_refused_at_once(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench_peers.main(arguments) == 2
    assert sentence in capsys.readouterr().err


def test_without_kvpress_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no Python at .*make bench-peers"):
        Peer(tmp_path / "python", tmp_path, 1)
    assert find_spec("kvpress") is None, "the tests' environment has a transformers that kvpress refuses"
    with pytest.raises(ValueError, match="kvpress ended with exit code 1"):
        Peer(Path(sys.executable), tmp_path, 1)


def test_make_installs_a_kvpress_that_the_extra_allows() -> None:
    (version,) = re.findall(r"^KVPRESS := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (kvpress,) = map(Requirement, project["optional-dependencies"]["kvpress"])
    assert kvpress.specifier.contains(version)


@pytest.mark.skipif(not PYTHON.exists(), reason="make bench-peers has not installed kvpress here")
def test_kvpress_holds_the_budget_and_answers_with_our_text(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path)
    loaded = load(ModelSpec(id=str(folder)))
    prompt = tuple(3 + number * 7 % 250 for number in range(300))
    generator = Generator(model=loaded.model, tokenizer=loaded.tokenizer)
    ((ours,),) = generator.generate(
        [Request(id="", segments=(prompt,), max_new_tokens=12)], [build("fullkv")]
    )
    with closing(Peer(PYTHON, folder, 1)) as peer:
        found = {cell: peer.answer(cell, prompt, 12) for cell in cells_of([64])}
        assert peer.versions["threads"] == 1
    full = found.pop(FULLKV)
    assert (full.held, full.text) == (300, ours.text)
    assert [each.held for each in found.values()] == [64] * 4
