"""A task of lm-evaluation-harness under any method: its own prompts, readings of the answers and metrics.

Its objects say what is asked for and judge what was answered; prompts, answers, records and their resumption are this
harness's. docs/lm_eval.md has the commands.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from evaluation.lm_eval_encoding import Encoder, chat_template
from evaluation.lm_eval_loading import Loaded, load, quiet
from evaluation.prompts import Prompter
from evaluation.types import Sample
from pyramid.types import Answer

VERSION = 1  # raised whenever the same parameters give other samples or scores
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
PLACE_ONLY = ("dataset_path", "dataset_name", "dataset_kwargs", "metadata")  # where data lies, not what it is


@dataclass(frozen=True)
class Response:
    """One answer as lm_eval wants it: text, or the likelihood of what was asked for and whether it was likeliest."""

    text: str
    log_likelihood: float
    greedy: bool


@dataclass(frozen=True)
class Document:
    """One item of a task, and lm_eval's requests about it. prompts: how many each repetition of each of them takes."""

    task: Any
    requests: Sequence[Any]
    prompts: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class LmEvalTask:
    """The fields are those of conf/task/lm_eval.yaml.

    task: the name of a task, or of a group that has a score.
    shots: examples before each item; None takes the task's own number.
    include_path: a folder with tasks of one's own. metadata: what some tasks need to make their data.
    data: a file, or a folder with a file a split, instead of the data set on the hub.
    run_unsafe_code: whether a task may run programs that the model wrote.

    Errors: ValueError with the offending value and the mend.
    """

    task: str | None = None
    shots: int | None = None
    include_path: str | Path | None = None
    data: str | Path | None = None
    metadata: Mapping[str, Any] | None = None
    run_unsafe_code: bool = False

    fewshot_seed: ClassVar[int] = 1234  # of lm_eval

    def __post_init__(self) -> None:
        if not self.task or not isinstance(self.task, str):
            raise ValueError("lm_eval: no task is named; 'tasks=[gsm8k_cot]' names one")
        if self.shots is not None and (type(self.shots) is not int or self.shots < 0):
            raise ValueError(f"lm_eval: shots is {self.shots!r}; give a number from 0 on, or null")

    @property
    def name(self) -> str:
        return f"lm_eval/{self.task}"

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Named as lm_eval names them: the metric and the filter that read the answer."""
        return tuple(dict.fromkeys(key for task in self._loaded.tasks.values() for key in _keys(task)))

    @cached_property
    def lower_is_better(self) -> tuple[str, ...]:
        higher = {
            name: better
            for task in self._loaded.tasks.values()
            for name, better in task.higher_is_better().items()
        }
        return tuple(metric for metric in self.metrics if higher.get(metric.split(",")[0]) is False)

    def identity(self) -> dict[str, Any]:
        tasks = self._loaded.tasks
        return {
            "task": self.task,
            "version": VERSION,
            "lm_eval": version("lm_eval"),
            "shots": sorted({task.config.num_fewshot for task in tasks.values()}),
            "tasks": len(tasks),
            "tasks_sha256": _sha256({name: _content(task) for name, task in tasks.items()}),
        }

    def samples(self, prompter: Prompter) -> Sequence[Sample]:
        encoder = Encoder(tokenizer=prompter.tokenizer, max_length=prompter.model_max_length)
        chat = prompter.protocol.template == "chat"  # the examples are turns before the item then
        template = chat_template(prompter.tokenizer) if chat else None
        found = []
        for name, task in self._loaded.tasks.items():
            task.set_fewshot_seed(self.fewshot_seed)
            with quiet():
                task.build_all_requests(
                    apply_chat_template=chat, fewshot_as_multiturn=chat, chat_template=template
                )
            for number, requests in groupby(task.instances, key=lambda request: request.doc_id):
                found.append(self._sample(f"{name}/{number}", task, list(requests), encoder))
        self._refuse(prompter, found)
        return found

    def score(self, sample: Sample, answer: Answer) -> dict[str, float]:
        """What lies in [0, 1] or is better when lower and has a number for each item; a perplexity, for example, is
        a property of all items together, and stands in the summary only."""
        answers = (answer, *answer.follow_ups)
        responses = [Response(each.text, sum(each.log_likelihoods), all(each.greedy)) for each in answers]
        found = self._judged(self._documents[sample.id], responses)
        return {key: float(value) for key, value in found.items() if self._is_score(key, value)}

    def summarize(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        known = {record["id"]: record for record in records}
        values: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
        for id, document in self._documents.items():
            if id in known:
                answers = [known[id], *known[id].get("follow_ups", ())]
                responses = [
                    Response(each["text"], each.get("log_likelihood", 0.0), each.get("greedy", True))
                    for each in answers
                ]
                for key, value in self._judged(document, responses).items():
                    values[document.task.config.task][key].append(value)
        found = {name: _aggregated(self._loaded.tasks[name], each) for name, each in values.items()}
        if self._loaded.group is not None:
            return {
                key: value
                for key, value in self._loaded.group.aggregate(found).items()
                if key in self.metrics
            }
        return {key: value for each in found.values() for key, value in each.items() if key in self.metrics}

    def draw(self, records: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
        """Of a group, the mean scores of each of its tasks, as a table."""
        parts: dict[str, list[Mapping[str, float]]] = defaultdict(list)
        for record in records:
            parts[record["id"].rpartition("/")[0]].append(record["scores"])
        if len(parts) < 2:
            return []
        metrics = list(
            dict.fromkeys(metric for scores in parts.values() for each in scores for metric in each)
        )
        file = folder / "tasks.csv"
        with file.open("w", encoding="utf-8", newline="") as text:
            table = csv.writer(text)
            table.writerow(["task", "items", *metrics])
            for name, scores in sorted(parts.items()):
                columns = [[each[metric] for each in scores if metric in each] for metric in metrics]
                table.writerow([name, len(scores), *(fmean(column) if column else "" for column in columns)])
        return [file]

    @cached_property
    def _loaded(self) -> Loaded:
        assert self.task is not None
        found = load(self.task, include_path=self.include_path, metadata=self.metadata or {}, data=self.data)
        for name, task in found.tasks.items():
            if getattr(task, "UNSAFE_CODE", False) and not self.run_unsafe_code:
                raise ValueError(
                    f"lm_eval's task {name!r} runs programs that the model wrote: suite.run_unsafe_code=true allows it"
                )
            if getattr(task, "MULTIMODAL", False):
                raise ValueError(f"lm_eval's task {name!r} has pictures or sound, which no model here reads")
            own = task.get_config("num_fewshot")
            asked = (
                own if self.shots is None or own == 0 else self.shots
            )  # a task's own 0 stays, as in lm_eval
            task.set_config(key="num_fewshot", value=asked or 0)
        return found

    @cached_property
    def _documents(self) -> dict[str, Document]:
        """By sample, in lm_eval's order; `samples` fills it."""
        return {}

    def _sample(self, id: str, task: Any, requests: Sequence[Any], encoder: Encoder) -> Sample:
        prompts: list[Sample] = []
        counts = []
        for number, request in enumerate(requests):
            for repetition in range(request.repeats or 1):
                part = f"{id}/{number}/{repetition}"
                found = encoder.prompts(part, request.request_type, request.args)
                counts.append(len(found))
                prompts += found
        self._documents[id] = Document(task, requests, counts)
        first, *others = prompts
        target = str(task.doc_to_target(requests[0].doc))
        return replace(first, id=id, references=(target,), parts=tuple(others))

    def _refuse(self, prompter: Prompter, samples: Sequence[Sample]) -> None:
        """Errors: ValueError for rules that these prompts cannot follow."""
        protocol = prompter.protocol
        if protocol.question != "in_prompt":
            raise ValueError(
                f"lm_eval's prompts have no question apart: protocol.question={protocol.question} is not for them"
            )
        if protocol.first_token == "full" and any(sample.continuation for sample in samples):
            raise ValueError(
                f"lm_eval's task {self.task!r} asks for likelihoods, and with protocol.first_token=full the first "
                "token of each continuation is judged on the whole prompt: set protocol.first_token=compressed"
            )

    def _judged(self, document: Document, responses: Sequence[Response]) -> dict[str, Any]:
        """Metric and filter to lm_eval's value for one item."""
        left = iter(responses)
        counts = iter(document.prompts)
        for request in document.requests:
            request.resps, request.filtered_resps = [], {}
            for _ in range(request.repeats or 1):
                request.resps.append(
                    _as_lm_eval(request.request_type, [next(left) for _ in range(next(counts))])
                )
        found = {}
        for filters in document.task._filters:
            filters.apply(document.requests)
            results = [request.filtered_resps[filters.name] for request in document.requests]
            for metric, value in document.task.process_results(document.requests[0].doc, results).items():
                found[f"{metric},{filters.name}"] = value
        return found

    def _is_score(self, key: str, value: Any) -> bool:
        if isinstance(value, (tuple, list, str, dict)) or key not in self.metrics:
            return False
        return 0 <= float(value) <= (float("inf") if key in self.lower_is_better else 1)


def _keys(task: Any) -> list[str]:
    return [f"{metric},{filters.name}" for metric in task.aggregation() for filters in task._filters]


def _as_lm_eval(kind: str, responses: Sequence[Response]) -> Any:
    if kind == "generate_until":
        return responses[0].text
    if kind == "loglikelihood":
        return responses[0].log_likelihood, responses[0].greedy
    return sum(response.log_likelihood for response in responses)


def _aggregated(task: Any, values: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """As a row of lm_eval's results."""
    rules = task.aggregation()
    found = {
        key: rules[key.split(",")[0]](each) for key, each in values.items() if key.split(",")[0] in rules
    }
    return {**found, "sample_len": max(map(len, values.values()))}


def _content(task: Any) -> dict[str, Any]:
    """All of a task that shapes prompts and scores."""
    config = {name: value for name, value in task.dump_config().items() if name not in PLACE_ONLY}
    examples = task.fewshot_docs() if task.config.num_fewshot else ()
    return {
        "version": task.VERSION,
        "config": config,
        "documents": _sha256(list(task.eval_docs)),
        "examples": _sha256(list(examples or ())),
    }


def _sha256(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(ADDRESS.sub("", text).encode()).hexdigest()


TASK = LmEvalTask
