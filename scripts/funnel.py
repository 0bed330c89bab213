"""Measure how attention narrows over the layers of a real prompt, and what of it each method keeps:
python -m scripts.funnel budget=128

One prompt with a needle is read once. The methods see every layer and say what they would keep; nothing is
evicted.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from evaluation import drawing, funnel
from evaluation.palette import place
from scripts.settings import listed, run

if TYPE_CHECKING:
    from pyramid.types import Tokenizer

CONF = Path(__file__).resolve().parent.parent / "conf"
DEFAULTS = {
    "model": "smollm2_135m_q4_1",
    "methods": "pyramidkv,snapkv,h2o,streamingllm",
    "budget": "128",
    "length": "1000",
    "haystack": "python_reference",
    "out": "results/figures/funnel",
}
WINDOW, MASS = 32, 0.9  # whose attention is measured, and how much of it counts as nearly all
PARTS = 48  # rows and columns of an attention map
MAPS = 6  # layers that get one
DIGITS = 4  # of every stored number


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Token ids, and span to its first token and the one after its last; spans follow one another."""

    ids: tuple[int, ...]
    spans: dict[str, tuple[int, int]]


@dataclass
class Record:
    """What is measured while a prompt is read, layer by layer; the fields are those of `funnel.Funnel`."""

    spans: Mapping[str, tuple[int, int]]
    methods: Mapping[str, Any]
    maps: dict[str, list[list[float]]] = field(default_factory=dict)
    concentration: list[float] = field(default_factory=list)
    attention: list[dict[str, float]] = field(default_factory=list)
    kept: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, seen: Any) -> None:
        """Measure one layer from the observation of it."""
        from pyramid.method import Evict

        if seen.layer in {round(part * (seen.num_layers - 1) / (MAPS - 1)) for part in range(MAPS)}:
            everything = seen.window_attention(seen.entries)[0].mean((0, 1))
            self.maps[str(seen.layer + 1)] = _shrunk(everything)
        window = seen.window_attention(WINDOW)[0]
        needed = (window.sort(-1, descending=True).values.cumsum(-1) < MASS).sum(-1) + 1
        self.concentration.append(round(needed.float().mean().item() / seen.entries, DIGITS))
        share = window.mean((0, 1, 2))
        self.attention.append({name: _share(share[a:b].sum()) for name, (a, b) in self.spans.items()})
        for method, actor in self.methods.items():
            decision = actor.observe(seen)
            spans = self.kept.setdefault(method, {name: [] for name in self.spans})
            for name, (start, end) in self.spans.items():
                index = decision.index[0] if isinstance(decision, Evict) else None
                inside = 1.0 if index is None else ((index >= start) & (index < end)).float().sum(-1).mean()
                spans[name].append(1.0 if index is None else _share(inside / (end - start)))


def measure(settings: Mapping[str, str]) -> None:
    """Read the prompt, write funnel.json and the figures, and say where."""
    budget = int(settings["budget"])
    record, prompt, model = _read(settings, budget)
    found = funnel.Funnel(
        model=model,
        prompt=f"needle in {settings['haystack']}",
        tokens=len(prompt.ids),
        budget=budget,
        window=WINDOW,
        mass=MASS,
        spans=prompt.spans,
        maps=record.maps,
        concentration=record.concentration,
        attention=record.attention,
        kept=record.kept,
    )
    folder = Path(settings["out"])
    print(found.save(folder / "funnel.json"))
    for name, figure in funnel.figures(found).items():
        for file in drawing.save(figure, folder / name):
            print(file)


def _read(settings: Mapping[str, str], budget: int) -> tuple[Record, Prompt, str]:
    from evaluation.types import Protocol
    from pyramid import methods, models

    path = CONF / "model" / f"{settings['model']}.yaml"
    if not path.exists():
        raise ValueError(f"there is no model {settings['model']!r}; conf/model has {_names(path.parent)}")
    loaded = models.load(models.ModelSpec(**yaml.safe_load(path.read_text(encoding="utf-8"))))
    protocol = Protocol(name="fair", question="after_compression")
    prompt = _prompt(loaded.tokenizer, settings, protocol, loaded.max_length)
    names = sorted(listed(settings["methods"]), key=place)
    record = Record(prompt.spans, {name: methods.build(name, budget=budget) for name in names})
    own = [name for name, actor in record.methods.items() if actor.own_prefill]
    if own:
        raise ValueError(f"{own[0]} changes how the prompt is read; choose among methods that only evict")

    watch(loaded.model, prompt.ids, record.add)
    return record, prompt, settings["model"]


def watch(model: Any, ids: Sequence[int], look: Callable[[Any], None]) -> None:
    """Let the model read a prompt, and `look` see the observation of each of its layers."""
    import torch

    from pyramid import engine, method

    @dataclass(frozen=True, kw_only=True)
    class Onlooker(method.Method):
        """Keeps everything."""

        needs_mass = True

        def observe(self, seen: method.Observation) -> method.Decision:
            look(seen)
            return method.Keep()

    with torch.inference_mode(), engine.compress(model, Onlooker()):
        model(input_ids=torch.tensor([list(ids)], device=model.device))


def _prompt(tokenizer: Tokenizer, settings: Mapping[str, str], protocol: Any, limit: int) -> Prompt:
    """A needle prompt and where its parts lie: template, context, needle, context, question, template."""
    from evaluation.prompts import Prompter
    from needle.needles import NEEDLES
    from needle.task import NeedleTask

    prompter = Prompter(tokenizer=tokenizer, protocol=protocol, model_max_length=limit)
    task = NeedleTask(lengths=[int(settings["length"])], depths=[50], haystack=settings["haystack"])
    (sample,) = task.samples(prompter)
    whole = tokenizer.chat([{"role": "user", "content": sample.context + sample.question}])
    text = whole if whole is not None else sample.context + sample.question
    start = text.index(sample.context)
    end = start + len(sample.context)
    (hidden,) = NEEDLES[task.needle].plant(random.Random(0)).sentences
    needle = text.index(hidden.strip())
    cuts = {"context before": needle, "needle": needle + len(hidden.strip()), "context after": end}
    cuts |= {"question": end + len(sample.question), "template": len(text)}
    spans, last = {}, 0
    for name, cut in ({"system, template": start} | cuts).items():
        tokens = len(tokenizer.encode(text[:cut]))
        if tokens > last:
            spans[name] = (last, tokens)
        last = max(last, tokens)
    ids = tuple(tokenizer.encode(text))
    name, (first, _) = list(spans.items())[-1]
    return Prompt(ids=ids, spans={**spans, name: (first, len(ids))})


def _shrunk(attention: Any) -> list[list[float]]:
    """(PARTS, PARTS) means over blocks of a square of attention; the places after a token do not count."""
    edges = [round(part * len(attention) / PARTS) for part in range(PARTS + 1)]
    blocks = list(pairwise(edges))
    return [[_share(attention[a:b, c:d].mean()) for c, d in blocks] for a, b in blocks]


def _share(value: Any) -> float:
    return float(f"{float(value):.{DIGITS}g}")


def _names(folder: Path) -> str:
    return ", ".join(sorted(file.stem for file in folder.glob("*.yaml")))


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if everything was written, 2 for bad input."""
    return run(measure, arguments, DEFAULTS, __doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
