"""A judge behind an OpenAI-compatible endpoint: asked over HTTP, patiently, several items at once.

What may pass (a rate limit, a server's fault, a broken line, a reply that is no JSON) is tried again with growing
pauses; what is left is the item's reason for having no reply.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from email.message import Message
from itertools import islice
from typing import Any

from evaluation.judge import Item, Reply
from evaluation.judges import messages

KEY_VARIABLE = "OPENAI_API_KEY"
LONGEST_PAUSE_SECONDS = 60.0
SHOWN = 200  # characters of an endpoint's complaint that a reason quotes
AGAIN = (408, 409, 425, 429)  # and all from 500 on: answers that another try may better
REFUSED = (401, 403)  # the key is not accepted


@dataclass(frozen=True, kw_only=True)
class EndpointJudge:
    """A model behind `base_url`/chat/completions.

    temperature, max_tokens: None leaves them to the endpoint. retries: further tries after the first. pause: seconds
    before the first of them, doubled each time, unless the endpoint asks for another pause. timeout: seconds without a
    byte."""

    model: str
    base_url: str
    key: str = field(repr=False)
    max_tokens: int | None = 2048
    temperature: float | None = 0.0
    concurrency: int = 4
    retries: int = 6
    pause: float = 1.0
    timeout: float = 120.0

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ValueError(
                f"judge.base_url={self.base_url!r} is no address: it begins with http:// or https://"
            )
        if not (self.key.isascii() and self.key.isprintable()):
            raise ValueError(f"the key in {KEY_VARIABLE} has characters that no key has; set it again")
        for name, least in (("concurrency", 1), ("retries", 0), ("max_tokens", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"judge.{name} is {value}; give a number from {least} on")

    @property
    def name(self) -> str:
        return self.model

    def identity(self) -> dict[str, Any]:
        return {
            "kind": "openai",
            "model": self.model,
            "base_url": self.base_url,
            "max_tokens": self.max_tokens,
            "temperature": None if self.temperature is None else float(self.temperature),
        }

    def check(self) -> None:
        """Ask for the list of models, which costs nothing; an endpoint that keeps none is as good."""
        try:
            self._call("models", None)
        except _Problem as problem:
            if problem.status in REFUSED:
                raise ValueError(
                    f"judge.base_url={self.base_url} refuses the key in {KEY_VARIABLE}: {problem}"
                ) from None
            if problem.status is None:
                raise ValueError(
                    f"judge.base_url={self.base_url} cannot be reached ({problem}); start that server, or mend "
                    "the address"
                ) from None

    def replies(self, items: Sequence[Item]) -> Iterator[tuple[Item, Reply]]:
        """No more than `concurrency` are asked ahead of what was taken, so that stopping costs no more than those."""
        stopped = threading.Event()
        waiting = iter(items)
        with ThreadPoolExecutor(self.concurrency) as pool:
            running: dict[Future[Reply], Item] = {}

            def ask(number: int) -> None:
                running.update(
                    {pool.submit(self._ask, item, stopped): item for item in islice(waiting, number)}
                )

            try:
                ask(self.concurrency)
                while running:
                    for job in wait(running, return_when=FIRST_COMPLETED).done:
                        yield running.pop(job), job.result()
                        ask(1)
            finally:
                stopped.set()
                pool.shutdown(wait=True, cancel_futures=True)

    def _ask(self, item: Item, stopped: threading.Event) -> Reply:
        """Try until there is a reply, until trying is of no use, or `retries` times more."""
        wanted: dict[str, Any] = {"model": self.model, "messages": messages(item)}
        wanted |= {} if self.max_tokens is None else {"max_tokens": self.max_tokens}
        wanted |= {} if self.temperature is None else {"temperature": self.temperature}
        for attempt in range(self.retries + 1):
            try:
                return _reply(self._call("chat/completions", wanted))
            except _Problem as problem:
                reason, again = str(problem), problem.again and attempt < self.retries
                pause = problem.pause or self.pause * 2**attempt * random.uniform(0.75, 1.25)
            if not again or stopped.wait(min(pause, LONGEST_PAUSE_SECONDS)):
                break
        return Reply(problem=reason)

    def _call(self, path: str, body: Mapping[str, Any] | None) -> bytes:
        """Errors: _Problem."""
        request = urllib.request.Request(
            f"{self.base_url.rstrip('/')}/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as reply:
                return reply.read()
        except urllib.error.HTTPError as error:
            raise _status_problem(error) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise _Problem(f"{type(error).__name__}: {reason}" if reason is error else str(reason)) from None


class _Problem(Exception):
    """Why a call gave nothing. status: what the endpoint answered with, None if it did not. again: another try may
    help. pause: how many seconds the endpoint wants to be left alone."""

    def __init__(
        self, reason: str, *, status: int | None = None, again: bool = True, pause: float | None = None
    ) -> None:
        super().__init__(reason)
        self.status, self.again, self.pause = status, again, pause


def _status_problem(error: urllib.error.HTTPError) -> _Problem:
    try:
        content = error.read()
    except (OSError, http.client.HTTPException):
        content = b""
    return _Problem(
        f"the endpoint answered {error.code} {error.reason}: {_shown(_complaint(content))}".rstrip(": "),
        status=error.code,
        again=error.code in AGAIN or error.code >= 500,
        pause=_retry_after(error.headers),
    )


def _complaint(content: bytes) -> str:
    """The message of an error in OpenAI's format, else whatever came."""
    text = content.decode(errors="replace")
    try:
        value = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        return text
    return str(value.get("message", value)) if isinstance(value, dict) else str(value)


def _retry_after(headers: Message | None) -> float | None:
    """Seconds; the form with a date, which endpoints of this kind do not use, counts for nothing."""
    try:
        return max(0.0, float((headers or {})["Retry-After"]))
    except (KeyError, TypeError, ValueError):
        return None


def _reply(content: bytes) -> Reply:
    """Errors: _Problem if this is no completion in OpenAI's format."""
    try:
        value = json.loads(content)
    except ValueError:
        raise _Problem(
            f"the endpoint's reply is no JSON: {_shown(content.decode(errors='replace'))}"
        ) from None
    try:
        choice = value["choices"][0]
        text, finish = choice["message"]["content"], choice.get("finish_reason")
    except (LookupError, TypeError, AttributeError):
        raise _Problem(
            f"the endpoint's reply has no choices with a message: {_shown(json.dumps(value))}"
        ) from None
    if text is not None and not isinstance(text, str):
        raise _Problem(f"the endpoint's reply has no text but {_shown(json.dumps(text))}")
    usage = value.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return Reply(
        text=text or "",
        cut=finish == "length",
        prompt_tokens=_count(usage.get("prompt_tokens")),
        new_tokens=_count(usage.get("completion_tokens")),
    )


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _shown(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= SHOWN else words[: SHOWN - 3] + "..."
