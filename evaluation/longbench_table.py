"""LongBench's 21 sets and the 13 of LongBench-E as rows of one table.

Prompts, answer lengths, metrics and the exceptions from the general rule are those of the authors' `pred.py`
and `eval.py` (github.com/THUDM/LongBench, MIT licence; arXiv 2308.14508). The prompts' misspellings belong to
them.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace

SINGLE, MULTI, SUMMARY = "single-document QA", "multi-document QA", "summarization"
FEW_SHOT, SYNTHETIC, CODE = "few-shot learning", "synthetic", "code completion"
CATEGORIES = (SINGLE, MULTI, SUMMARY, FEW_SHOT, SYNTHETIC, CODE)

BUCKETS = ("0-4k", "4-8k", "8k+")


@dataclass(frozen=True, kw_only=True)
class LongBenchSet:
    """One set.

    metric: a name of `evaluation.longbench_scoring.SCORERS`.
    answer_tokens: the most new tokens an answer may have.
    language: what the rows are in: `en`, `zh` or `code`.
    rows: how many the published set has; extended_rows: the same of its LongBench-E form, 0 without one.
    prompt: the template with `{context}` and, except where the question needs none, `{input}`.
    chat: whether a chat model's template may wrap the prompt.
    newline_stop: whether an answer ends at a newline, which then cannot be its first token.
    first_line: whether only the first line of an answer is scored.
    extended: whether this is the LongBench-E form, whose scores are read by length.
    """

    name: str
    category: str
    metric: str
    answer_tokens: int
    language: str = "en"
    rows: int = 200
    extended_rows: int = 0
    prompt: str
    chat: bool = True
    newline_stop: bool = False
    first_line: bool = False
    extended: bool = False

    @property
    def dataset(self) -> str:
        """The set's name without the suffix of LongBench-E."""
        return self.name.removesuffix("_e") if self.extended else self.name

    def split(self, context: str, question: str) -> tuple[str, str]:
        """The prompt of one row in two parts: up to the end of its context, and what follows."""
        before, after = self.prompt.split("{context}")
        return before + context, after.replace("{input}", question)


_PASSAGES_RULE = (
    "Answer the question based on the given passages. Only give me the answer and do not output any other "
    "words.\n\n"
)
_PASSAGES_PROMPT = (
    _PASSAGES_RULE
    + "The following are given passages.\n{context}\n\n"
    + _PASSAGES_RULE
    + "Question: {input}\nAnswer:"
)
_STORY_RULE = "asconcisely as you can, using a single phrase if possible. Do not provide any explanation.\n\n"
_ARTICLE_RULE = (
    "as concisely as you can, using a single phrase or sentence if possible. If the question cannot be "
    'answered based on the information in the article, write "unanswerable". If the question is a yes/no '
    'question, answer "yes", "no", or "unanswerable". Do not provide any explanation.\n\n'
)

_ROWS = (
    LongBenchSet(
        name="narrativeqa",
        category=SINGLE,
        metric="f1",
        answer_tokens=128,
        prompt=(
            "You are given a story, which can be either a novel or a movie script, and a question. Answer "
            "the question "
            + _STORY_RULE
            + "Story: {context}\n\nNow, answer the question based on the story "
            + _STORY_RULE
            + "Question: {input}\n\nAnswer:"
        ),
    ),
    LongBenchSet(
        name="qasper",
        category=SINGLE,
        metric="f1",
        answer_tokens=128,
        extended_rows=224,
        prompt=(
            "You are given a scientific article and a question. Answer the question "
            + _ARTICLE_RULE
            + "Article: {context}\n\n Answer the question based on the above article "
            + _ARTICLE_RULE
            + "Question: {input}\n\nAnswer:"
        ),
    ),
    LongBenchSet(
        name="multifieldqa_en",
        category=SINGLE,
        metric="f1",
        answer_tokens=64,
        rows=150,
        extended_rows=150,
        prompt=(
            "Read the following text and answer briefly.\n\n{context}\n\n"
            "Now, answer the following question based on the above text, only give me the answer and do not "
            "output any other words.\n\nQuestion: {input}\nAnswer:"
        ),
    ),
    LongBenchSet(
        name="multifieldqa_zh",
        category=SINGLE,
        metric="f1_zh",
        answer_tokens=64,
        language="zh",
        prompt=(
            "阅读以下文字并用中文简短回答：\n\n{context}\n\n"
            "现在请基于上面的文章回答下面的问题，只告诉我答案，不要输出任何其他字词。\n\n问题：{input}\n回答："
        ),
    ),
    LongBenchSet(
        name="hotpotqa",
        category=MULTI,
        metric="f1",
        answer_tokens=32,
        extended_rows=300,
        prompt=_PASSAGES_PROMPT,
    ),
    LongBenchSet(
        name="2wikimqa",
        category=MULTI,
        metric="f1",
        answer_tokens=32,
        extended_rows=300,
        prompt=_PASSAGES_PROMPT,
    ),
    LongBenchSet(
        name="musique",
        category=MULTI,
        metric="f1",
        answer_tokens=32,
        prompt=_PASSAGES_PROMPT,
    ),
    LongBenchSet(
        name="dureader",
        category=MULTI,
        metric="rouge_l_zh",
        answer_tokens=128,
        language="zh",
        prompt=(
            "请基于给定的文章回答下述问题。\n\n文章：{context}\n\n"
            "请基于上述文章回答下面的问题。\n\n问题：{input}\n回答："
        ),
    ),
    LongBenchSet(
        name="gov_report",
        category=SUMMARY,
        metric="rouge_l",
        answer_tokens=512,
        extended_rows=300,
        prompt=(
            "You are given a report by a government agency. Write a one-page summary of the report.\n\n"
            "Report:\n{context}\n\nNow, write a one-page summary of the report.\n\nSummary:"
        ),
    ),
    LongBenchSet(
        name="qmsum",
        category=SUMMARY,
        metric="rouge_l",
        answer_tokens=512,
        prompt=(
            "You are given a meeting transcript and a query containing a question or instruction. Answer the "
            "query in one or more sentences.\n\nTranscript:\n{context}\n\n"
            "Now, answer the query based on the above meeting transcript in one or more sentences.\n\n"
            "Query: {input}\nAnswer:"
        ),
    ),
    LongBenchSet(
        name="multi_news",
        category=SUMMARY,
        metric="rouge_l",
        answer_tokens=512,
        extended_rows=294,
        prompt=(
            "You are given several news passages. Write a one-page summary of all news. \n\n"
            "News:\n{context}\n\nNow, write a one-page summary of all the news.\n\nSummary:"
        ),
    ),
    LongBenchSet(
        name="vcsum",
        category=SUMMARY,
        metric="rouge_l_zh",
        answer_tokens=512,
        language="zh",
        prompt="下面有一段会议记录，请你阅读后，写一段总结，总结会议的内容。\n会议记录：\n{context}\n\n会议总结：",
    ),
    LongBenchSet(
        name="trec",
        category=FEW_SHOT,
        metric="classification",
        answer_tokens=64,
        extended_rows=300,
        prompt=(
            "Please determine the type of the question below. Here are some examples of questions.\n\n"
            "{context}\n{input}"
        ),
        chat=False,
        first_line=True,
    ),
    LongBenchSet(
        name="triviaqa",
        category=FEW_SHOT,
        metric="f1",
        answer_tokens=32,
        extended_rows=300,
        prompt=(
            "Answer the question based on the given passage. Only give me the answer and do not output any "
            "other words. The following are some examples.\n\n{context}\n\n{input}"
        ),
        chat=False,
        first_line=True,
    ),
    LongBenchSet(
        name="samsum",
        category=FEW_SHOT,
        metric="rouge_l",
        answer_tokens=128,
        extended_rows=300,
        prompt=(
            "Summarize the dialogue into a few short sentences. The following are some examples.\n\n"
            "{context}\n\n{input}"
        ),
        chat=False,
        newline_stop=True,
        first_line=True,
    ),
    LongBenchSet(
        name="lsht",
        category=FEW_SHOT,
        metric="classification",
        answer_tokens=64,
        language="zh",
        prompt="请判断给定新闻的类别，下面是一些例子。\n\n{context}\n{input}",
        chat=False,
        first_line=True,
    ),
    LongBenchSet(
        name="passage_count",
        category=SYNTHETIC,
        metric="count",
        answer_tokens=32,
        extended_rows=300,
        prompt=(
            "There are some paragraphs below sourced from Wikipedia. Some of them may be duplicates. Please "
            "carefully read these paragraphs and determine how many unique paragraphs there are after "
            "removing duplicates. In other words, how many non-repeating paragraphs are there in total?\n\n"
            "{context}\n\n"
            "Please enter the final count of unique paragraphs after removing duplicates. The output format "
            "should only contain the number, such as 1, 2, 3, and so on.\n\nThe final answer is: "
        ),
    ),
    LongBenchSet(
        name="passage_retrieval_en",
        category=SYNTHETIC,
        metric="retrieval",
        answer_tokens=32,
        extended_rows=300,
        prompt=(
            "Here are 30 paragraphs from Wikipedia, along with an abstract. Please determine which paragraph "
            "the abstract is from.\n\n{context}\n\nThe following is an abstract.\n\n{input}\n\n"
            "Please enter the number of the paragraph that the abstract is from. The answer format must be "
            'like "Paragraph 1", "Paragraph 2", etc.\n\nThe answer is: '
        ),
    ),
    LongBenchSet(
        name="passage_retrieval_zh",
        category=SYNTHETIC,
        metric="retrieval_zh",
        answer_tokens=32,
        language="zh",
        prompt=(
            "以下是若干段落文字，以及其中一个段落的摘要。请确定给定的摘要出自哪一段。\n\n{context}\n\n"
            '下面是一个摘要\n\n{input}\n\n请输入摘要所属段落的编号。答案格式必须是"段落1"，"段落2"等格式\n\n'
            "答案是："
        ),
    ),
    LongBenchSet(
        name="lcc",
        category=CODE,
        metric="code_similarity",
        answer_tokens=64,
        language="code",
        rows=500,
        extended_rows=300,
        prompt="Please complete the code given below. \n{context}Next line of code:\n",
        chat=False,
    ),
    LongBenchSet(
        name="repobench-p",
        category=CODE,
        metric="code_similarity",
        answer_tokens=64,
        language="code",
        rows=500,
        extended_rows=300,
        prompt="Please complete the code given below. \n{context}{input}Next line of code:\n",
        chat=False,
    ),
)

_EXTENDED = tuple(
    replace(row, name=f"{row.name}_e", rows=row.extended_rows, extended=True)
    for row in _ROWS
    if row.extended_rows
)

SETS: Mapping[str, LongBenchSet] = {row.name: row for row in (*_ROWS, *_EXTENDED)}

ENGLISH = tuple(row.name for row in _ROWS if row.language != "zh")
CHINESE = tuple(row.name for row in _ROWS if row.language != "en")  # the leaderboard counts code in both
EXTENDED = tuple(row.name for row in _EXTENDED)


def find_set(name: str) -> LongBenchSet:
    """The set called `name`, for example `qasper`, or `qasper_e` for its LongBench-E form.

    Errors: ValueError with the nearest names and all valid ones."""
    if name in SETS:
        return SETS[name]
    near = difflib.get_close_matches(str(name), SETS, n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(f"LongBench has no set {name!r}; {hint}valid names are {', '.join(SETS)}")


def bucket(length: int) -> str:
    """The LongBench-E bucket of a row by its published length (words, or characters for Chinese)."""
    return BUCKETS[0] if length < 4000 else BUCKETS[1] if length < 8000 else BUCKETS[2]
