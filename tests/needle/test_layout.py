"""Prompts are as long as they say, and the needle lies where it says, whatever the tokenizer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from evaluation.prompts import Prompter
from evaluation.types import Sample
from needle.layout import Stack, depths, place
from needle.needles import NEEDLES, Planted
from needle.task import NeedleTask
from pyramid.types import Tokenizer
from tests.needle.conftest import build_tokenizer, prose

PromptersOf = Callable[..., Prompter]
SENTENCE = "The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day."
NEEDLE = f"\n{SENTENCE}\n"
LENGTHS = (600, 601, 602, 603, 777, 1024, 1500)
DEPTHS = (0, 11, 50, 93, 100)


def _all_ids(prompter: Prompter, sample: Sample) -> list[int]:
    return [token for segment in prompter.render(sample).segments for token in segment]


def _book(sample: Sample) -> str:
    """The haystack with its needles, without the words around it."""
    return sample.context.split("<book> ", 1)[1].rsplit(" </book>", 1)[0]


@pytest.mark.parametrize("question", ["in_prompt", "after_compression"])
def test_prompts_are_exactly_as_long_as_asked(
    tokenizer: Tokenizer, prompter_of: PromptersOf, haystack_folder: Path, question: str
) -> None:
    """Start token, template, needle and question included, and nothing is cut, in one segment or in two."""
    prompter = prompter_of(tokenizer, question=question)
    task = NeedleTask(lengths=LENGTHS, depths=DEPTHS, haystack=str(haystack_folder))
    samples = task.samples(prompter)
    cells = list(itertools.product(LENGTHS, DEPTHS))
    assert [(sample.meta["length"], sample.meta["depth"]) for sample in samples] == cells
    for sample in samples:
        prompt = prompter.render(sample)
        assert prompt.tokens == sample.meta["length"] and not prompt.truncated
        assert "\ufffd" not in sample.context, "a cut never splits a character"
        assert len(prompt.segments) == (1 if question == "in_prompt" else 2)


@pytest.mark.parametrize("kind", NEEDLES)
@pytest.mark.parametrize("layout", ["fair", "paper"])
def test_needles_are_readable_and_the_start_token_is_alone(
    tokenizer: Tokenizer, prompter_of: PromptersOf, haystack_folder: Path, layout: str, kind: str
) -> None:
    """Decoded, the prompt holds each needle literally; the only start token comes first."""
    prompter = prompter_of(tokenizer, template="chat" if layout == "fair" else "none")
    task = NeedleTask(lengths=[700], depths=DEPTHS, needle=kind, layout=layout, haystack=str(haystack_folder))
    for sample in task.samples(prompter):
        ids = _all_ids(prompter, sample)
        text = tokenizer.decode(ids)
        assert all(reference in text for reference in sample.references)
        assert text.rstrip().endswith("Answer:") or "assistant" in text[-30:]
        if tokenizer.encode("", special=True):
            assert ids.count(tokenizer.encode("", special=True)[0]) == 1 and ids[0] == tokenizer.bos_id


def test_needle_follows_the_nearest_sentence_end(
    tokenizer: Tokenizer, prompter_of: PromptersOf, haystack_folder: Path
) -> None:
    """Depth 0 is the start, depth 100 the end; between, the needle comes right after a sentence, not far left
    of where its depth asks for it."""
    prompter = prompter_of(tokenizer)
    task = NeedleTask(lengths=[1500], depths=range(0, 101, 5), haystack=str(haystack_folder))
    for sample in task.samples(prompter):
        before, after = _book(sample).split(NEEDLE)
        depth = sample.meta["depth"]
        if depth in (0, 100):
            assert (before if depth == 0 else after) == ""
            continue
        asked, found = depth / 100, len(before) / len(before + after)
        assert found <= asked + 0.06
        assert found >= asked - 0.16
        if before:
            assert before.endswith(".")
            assert not after[0].isdigit() and not after[0].islower()


@pytest.mark.parametrize("rule", ["sentence_ends", "bare_full_stops"])
def test_sentence_ends_are_full_stops_in_token_space(tokenizer: Tokenizer, rule: str) -> None:
    stack = Stack.read("Up 3.5 m. Now sys.path is “so”. Then .net. And", tokenizer, 12)
    texts = [tokenizer.decode([token]) for token in stack.ids]
    found = getattr(stack, rule)
    assert found and all(texts[position - 1].endswith(".") for position in found)
    left_out = [
        i for i, text in enumerate(texts, 1) if text.endswith(".") and i not in found and i < len(texts)
    ]
    if rule == "sentence_ends":
        assert all(texts[i][:1].islower() or texts[i][:1].isdigit() for i in left_out)
    else:
        assert all(texts[i - 1].strip() != "." for i in left_out)


@pytest.mark.parametrize(
    ("length", "depth", "ends", "position"),
    [
        (100, 0, [10, 50, 90], 0),
        (100, 9, [10, 50, 90], 0),
        (100, 10, [10, 50, 90], 10),
        (100, 49, [10, 50, 90], 10),
        (100, 50, [10, 50, 90], 50),
        (100, 99, [10, 50, 90], 90),
        (100, 100, [10, 50, 90], 100),
        (101, 50, [10, 50, 90], 50),
        (99, 50, [10, 50, 90], 10),
        (100, 70, [], 0),
        (0, 50, [], 0),
    ],
)
def test_place(length: int, depth: float, ends: Sequence[int], position: int) -> None:
    assert place(length, depth, ends) == position


def test_several_needles_share_what_is_behind_the_first() -> None:
    planted = Planted(sentences=("a", "b", "c", "d"), question="", references=())
    assert depths(20, planted) == [20, 40, 60, 80]
    assert depths(100, planted) == [100] * 4


def test_several_needles_keep_their_order(prompter_of: PromptersOf, haystack_folder: Path) -> None:
    prompter = prompter_of(build_tokenizer("gpt"))
    task = NeedleTask(lengths=[900], depths=[0, 40, 100], needle="several", haystack=str(haystack_folder))
    for sample in task.samples(prompter):
        positions = [sample.context.index(f" is {number}.\n") for number in sample.references]
        assert positions == sorted(positions)
        assert sample.meta["haystack_tokens_before"] == sorted(sample.meta["haystack_tokens_before"])


def test_short_haystack_repeats(tmp_path: Path, tokenizer: Tokenizer, prompter_of: PromptersOf) -> None:
    (tmp_path / "short.txt").write_text("One tide comes. One goes. ", encoding="utf-8")
    prompter = prompter_of(tokenizer)
    (sample,) = NeedleTask(lengths=[800], depths=[50], haystack=str(tmp_path)).samples(prompter)
    assert prompter.render(sample).tokens == 800
    assert _book(sample).count("One tide comes.") > 10


@pytest.mark.parametrize("text", ["no end in sight ", "x"])
def test_haystack_without_sentences_takes_the_needle_at_its_depth(
    tmp_path: Path, tokenizer: Tokenizer, prompter_of: PromptersOf, text: str
) -> None:
    (tmp_path / "endless.txt").write_text(text, encoding="utf-8")
    prompter = prompter_of(tokenizer)
    for sample in NeedleTask(lengths=[700, 701], depths=[25, 75], haystack=str(tmp_path)).samples(prompter):
        before, after = _book(sample).split(NEEDLE)
        assert prompter.render(sample).tokens == sample.meta["length"]
        assert len(before) / len(before + after) == pytest.approx(sample.meta["depth"] / 100, abs=0.05)


def test_length_that_no_cut_gives_is_refused(tmp_path: Path, prompter_of: PromptersOf) -> None:
    """Where each character is three tokens, every third length can be had, and no other is nearly met."""
    (tmp_path / "triples.txt").write_text("文字だけ。", encoding="utf-8")
    prompter = prompter_of(build_tokenizer("characters"))
    reached = []
    for length in (700, 701, 702):
        task = NeedleTask(lengths=[length], depths=[50], haystack=str(tmp_path))
        try:
            reached.append(prompter.render(task.samples(prompter)[0]).tokens)
        except ValueError as error:
            assert f"exactly {length} tokens" in str(error)
    assert len(reached) == 1 and reached[0] in (700, 701, 702)


def test_same_files_made_in_another_order_give_the_same_prompts(
    tmp_path: Path, prompter_of: PromptersOf
) -> None:
    prompter = prompter_of(build_tokenizer("gpt"))
    tasks = []
    for folder, order in (("one", "abc"), ("other", "cab")):
        (tmp_path / folder).mkdir()
        for name in order:
            (tmp_path / folder / f"{name}.txt").write_text(prose(40, seed=ord(name)), encoding="utf-8")
        tasks.append(NeedleTask(lengths=[500, 900], depths=[0, 50], haystack=str(tmp_path / folder)))
    assert tasks[0].identity() == tasks[1].identity()
    assert tasks[0].samples(prompter) == tasks[1].samples(prompter)


def test_published_layout(prompter_of: PromptersOf, haystack_folder: Path) -> None:
    """The published prompt word for word, 200 tokens short, bare, and ended by a newline."""
    tokenizer = build_tokenizer("characters")
    prompter = prompter_of(tokenizer, name="paper", template="none")
    task = NeedleTask(lengths=[1000], depths=[0, 50, 100], layout="paper", haystack=str(haystack_folder))
    for sample in task.samples(prompter):
        before, after = _book(sample).split(NEEDLE)
        assert sample.context == (
            f"<|im_start|> This is a very long story book: <book> {before}{NEEDLE}{after} </book>.\n"
        )
        assert sample.question == (
            " Based on the content of the book, Question: The best thing to do in San Francisco is: \nAnswer:"
        )
        assert len(tokenizer.encode(before + NEEDLE + after)) in range(
            797, 801
        )  # a cut may split a character
        assert not sample.template and sample.stop_at_newline and sample.max_new_tokens == 30
        newline = tokenizer.encode("\n")[-1]
        assert newline in prompter.render(sample).stop_ids
        depth = sample.meta["depth"]
        assert {0: before == "", 50: before.endswith("."), 100: after == ""}[depth]


def test_published_rule_takes_bare_full_stops_only(tmp_path: Path, prompter_of: PromptersOf) -> None:
    """The published test goes by tokens: a `).` in one token ends no sentence, the dot of 3.5 does."""
    (tmp_path / "a.txt").write_text("It cost 3.5 pounds (so they said). " * 40, encoding="utf-8")
    tokenizer = build_tokenizer("gpt")
    assert ")." in map(tokenizer.decode, ([token] for token in tokenizer.encode("(so they said). ")))
    ends = {}
    for layout in ("paper", "fair"):
        task = NeedleTask(lengths=[700], depths=range(20, 100, 3), layout=layout, haystack=str(tmp_path))
        samples = task.samples(prompter_of(tokenizer))
        ends[layout] = {_book(sample).split(NEEDLE)[0][-3:] for sample in samples}
    assert ends == {"fair": {"d)."}, "paper": {" 3."}}


def test_fair_prompt_is_the_published_one_without_its_marker(
    prompter_of: PromptersOf, haystack_folder: Path
) -> None:
    task = NeedleTask(lengths=[600], depths=[50], haystack=str(haystack_folder))
    (sample,) = task.samples(prompter_of(build_tokenizer("gpt")))
    assert sample.context.startswith("This is a very long story book: <book> ")
    assert sample.template and not sample.stop_at_newline


@pytest.mark.parametrize(("layout", "length"), [("fair", 60), ("paper", 210)])
def test_length_without_room_for_the_needle_is_refused(
    prompter_of: PromptersOf, haystack_folder: Path, layout: str, length: int
) -> None:
    task = NeedleTask(lengths=[length], depths=[50], layout=layout, haystack=str(haystack_folder))
    with pytest.raises(ValueError, match=f"needle length {length} is too short"):
        task.samples(prompter_of(build_tokenizer("gpt")))
