"""What a table costs here and with NVIDIA's kvpress: `make bench-peers` prints ratios, measured on this machine.

Same model in float32, same prompts of random tokens, same cells, answers of a fixed length, as many threads. kvpress
answers one cell at a time; here cells are answered one at a time and in company. kvpress has an environment of its
own and so a process of its own, which waits while this one measures. Timings on a shared machine are noisy: all runs
of a round take turns, and medians over the rounds are compared.

What is not the same: kvpress's counterpart of H2O (ObservedAttentionPress) needs eager attention, so totals are stated
without it as well; its StreamingLLM and H2O evict nothing while decoding; its PyramidKV is uniform at small budgets.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.benchmark import BUDGETS, METHODS, Bench

SCRIPT = Path(__file__).parent / "peers" / "kvpress_cells.py"
WINDOW, KERNEL = 8, 7  # of SnapKV and PyramidKV on both sides
EAGER = "h2o"  # what kvpress cannot do on the kernel that all else uses


@dataclass(frozen=True)
class Cell:
    """A method at a budget; FullKV has none."""

    method: str
    budget: int = 0

    def __str__(self) -> str:
        return f"{self.method} {self.budget}" if self.budget else self.method


FULLKV = Cell("fullkv")


def cells_of(budgets: Sequence[int]) -> list[Cell]:
    return [FULLKV, *(Cell(method, budget) for method in METHODS for budget in budgets)]


def shared(cells: Iterable[Cell]) -> list[Cell]:
    """Those that both sides compute with the same attention kernel."""
    return [cell for cell in cells if cell.method != EAGER]


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One answer. held: mean tokens a layer holds before the answer."""

    seconds: float
    held: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Round:
    """All runs once. company: seconds for all cells together; without_eager: for those without `EAGER`."""

    company: float
    without_eager: float
    ours: Mapping[Cell, Timed]
    peers: Mapping[Cell, Timed]


class Ours:
    """This project's engine."""

    def __init__(self, threads: int | None) -> None:
        import torch

        self.bench = Bench(threads)
        self.threads = torch.get_num_threads()

    def company(self, cells: Sequence[Cell], prompt: int, new: int) -> float:
        return self.bench.seconds([_method(cell) for cell in cells], prompt, new)

    def alone(self, cell: Cell, prompt: int, new: int) -> Timed:
        seconds, (answer,) = self.bench.answer([_method(cell)], prompt, new)
        assert answer.held_after_prompt is not None
        return Timed(seconds=seconds, held=answer.held_after_prompt.mean_tokens, text=answer.text)


class Peer:
    """kvpress in its own process. Errors: ValueError if it is not installed or ends before its time."""

    def __init__(self, python: Path, folder: Path, threads: int) -> None:
        if not python.exists():
            raise ValueError(f"there is no Python at {python}: make bench-peers installs kvpress there")
        settings = {"--model": folder, "--threads": threads, "--window": WINDOW, "--kernel": KERNEL}
        command = [str(python), str(SCRIPT), *(str(part) for pair in settings.items() for part in pair)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)},
        )
        self.versions = self._reply()

    def answer(self, cell: Cell, prompt: Sequence[int], new: int) -> Timed:
        question = {"method": cell.method, "budget": cell.budget, "prompt": list(prompt), "new": new}
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and the missing reply says so
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        reply = self._reply()
        return Timed(seconds=reply["seconds"], held=statistics.mean(reply["held"]), text=reply["text"])

    def close(self) -> None:
        """End it: it has no more input."""
        with suppress(BrokenPipeError):
            self.process.communicate()

    def _reply(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise ValueError(f"kvpress ended with exit code {self.process.wait()}; what it said stands above")
        return json.loads(line)


def measure(ours: Ours, peer: Peer, cells: Sequence[Cell], prompt: int, new: int) -> Round:
    """One round: every run once, the two sides of a cell one after the other."""
    tokens = ours.bench.tokens(prompt)
    pairs = {cell: (ours.alone(cell, prompt, new), peer.answer(cell, tokens, new)) for cell in cells}
    return Round(
        company=ours.company(cells, prompt, new),
        without_eager=ours.company(shared(cells), prompt, new),
        ours={cell: pair[0] for cell, pair in pairs.items()},
        peers={cell: pair[1] for cell, pair in pairs.items()},
    )


def total_ratios(rounds: Sequence[Round]) -> dict[str, float]:
    """kvpress's time for the whole table over ours, in company and one by one: medians over the rounds."""

    def middle(of: Callable[[Round], float]) -> float:
        return statistics.median(of(each) for each in rounds)

    def total(side: Mapping[Cell, Timed], cells: Sequence[Cell]) -> float:
        return sum(side[cell].seconds for cell in cells)

    every = list(rounds[0].ours)
    plain = shared(every)
    return {
        "kvpress_over_company": middle(lambda each: total(each.peers, every) / each.company),
        "kvpress_over_company_without_h2o": middle(
            lambda each: total(each.peers, plain) / each.without_eager
        ),
        "kvpress_over_one_by_one": middle(lambda each: total(each.peers, every) / total(each.ours, every)),
        "kvpress_over_one_by_one_without_h2o": middle(
            lambda each: total(each.peers, plain) / total(each.ours, plain)
        ),
    }


def cell_ratio(rounds: Sequence[Round], cell: Cell) -> float:
    """kvpress's time for one cell over ours for that cell alone."""
    return statistics.median(each.peers[cell].seconds / each.ours[cell].seconds for each in rounds)


def all_ratios(rounds: Sequence[Round]) -> dict[str, float]:
    """Those of the totals, and those of each cell."""
    alone = {
        f"kvpress_over_alone_{cell}".replace(" ", "_"): cell_ratio(rounds, cell) for cell in rounds[0].ours
    }
    return total_ratios(rounds) | alone


def table(rounds: Sequence[Round]) -> str:
    """Each cell alone on both sides: median seconds and the tokens held; then the totals."""
    lines = [f"  {'one cell alone':<37}{'seconds':>9}{'kvpress':>9}{'ratio':>7}{'held':>9}{'kvpress':>9}"]
    for cell in rounds[0].ours:
        ours, peers = rounds[0].ours[cell], rounds[0].peers[cell]
        here = statistics.median(each.ours[cell].seconds for each in rounds)
        there = statistics.median(each.peers[cell].seconds for each in rounds)
        ratio = cell_ratio(rounds, cell)
        lines.append(
            f"  {cell!s:<37}{here:>9.2f}{there:>9.2f}{ratio:>7.2f}{ours.held:>9.1f}{peers.held:>9.1f}"
        )
    lines += [f"  {name:<55}{ratio:>7.2f}" for name, ratio in total_ratios(rounds).items()]
    same = all(each.ours[FULLKV].text == each.peers[FULLKV].text for each in rounds)
    lines.append(f"  FullKV's answer is {'the same text' if same else 'NOT the same text'} on both sides")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        _compare(options)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _compare(options: argparse.Namespace) -> None:
    from pyramid.checkpoints import find_checkpoint
    from pyramid.models import ModelSpec

    _check(options)
    ours = Ours(options.threads)
    folder = find_checkpoint(ModelSpec().id).folder()
    with closing(Peer(options.peer, folder, ours.threads)) as peer:
        print(f"kvpress: {json.dumps(peer.versions)}; threads here: {ours.threads}")
        cells = cells_of(options.budgets)
        measure(ours, peer, cells, max(options.budgets) + 1, 2)  # warm-up
        found: dict[str, float] = {}
        for prompt in options.prompts:
            rounds = [measure(ours, peer, cells, prompt, options.new) for _ in range(options.rounds)]
            print(f"\nprompt of {prompt} tokens, {options.new} new ones; medians of {options.rounds} rounds")
            print(table(rounds), flush=True)
            for name, ratio in all_ratios(rounds).items():
                found[name if prompt == options.prompts[0] else f"{name}_{prompt}"] = round(ratio, 4)
    print(f"\n{json.dumps(found)}")


def _check(options: argparse.Namespace) -> None:
    least, most = min(options.budgets), max(options.budgets)
    if least <= WINDOW or min(options.prompts) <= most:
        raise ValueError(
            f"--budgets {least} to {most} with --prompts from {min(options.prompts)}: a budget has more than "
            f"{WINDOW} tokens, and a prompt more than any budget"
        )
    if options.rounds < 1 or options.new < 2:
        raise ValueError(
            f"--rounds {options.rounds} --new {options.new}: give at least 1 round and 2 new tokens"
        )


def _method(cell: Cell) -> Any:
    from pyramid.methods import build

    if cell.method in ("snapkv", "pyramidkv"):
        return build(cell.method, budget=cell.budget, window=WINDOW, kernel=KERNEL)
    return build(cell.method, budget=cell.budget or None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench_peers", description="What a table costs here and with kvpress."
    )
    parser.add_argument("--prompts", type=int, nargs="+", default=[2000], help="prompt lengths in tokens")
    parser.add_argument("--budgets", type=int, nargs="+", default=list(BUDGETS), help="tokens kept")
    parser.add_argument("--new", type=int, default=32, help="new tokens of each answer")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved repetitions")
    parser.add_argument("--threads", type=int, help="threads of both sides; default: torch's own choice")
    parser.add_argument(
        "--peer", type=Path, default=Path(".venv-peers/bin/python"), help="a Python that has kvpress"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
