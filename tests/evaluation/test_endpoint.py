"""A judge behind an endpoint, on a real HTTP server that fails in every way that endpoints do."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import pytest

from evaluation.endpoint import EndpointJudge
from evaluation.judge import Item, Reply

Answer = Callable[["Handler", dict[str, Any]], None]


class Handler(BaseHTTPRequestHandler):
    """Answers the n-th request with the n-th of `server.answers`, the last one ever after."""

    server: Any
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.listed.append(self.headers["Authorization"])
        self.send(self.server.models_status, {"data": []})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            number = len(self.server.asked)
            self.server.asked.append((self.path, body, dict(self.headers), time.monotonic()))
        answers = self.server.answers
        answers[min(number, len(answers) - 1)](self, body)

    def send(self, status: int, value: Any, **headers: str) -> None:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def completion(text: Any, finish: str = "stop", **more: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}], **more}


def says(text: Any, finish: str = "stop", **more: Any) -> Answer:
    return lambda handler, body: handler.send(200, completion(text, finish, **more))


def refuses(status: int, message: str = "no", **headers: str) -> Answer:
    return lambda handler, body: handler.send(status, {"error": {"message": message}}, **headers)


def sends(content: bytes) -> Answer:
    return lambda handler, body: handler.send(200, content)


def breaks_off(handler: Handler, body: dict[str, Any]) -> None:
    """Promises more than it sends."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.wfile.flush()
    handler.connection.shutdown(socket.SHUT_RDWR)


def sleeps(handler: Handler, body: dict[str, Any]) -> None:
    time.sleep(1)


@pytest.fixture
def server() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.listed, server.answers, server.models_status = [], [], [says("[[5]]")], 200
    server.lock, server.daemon_threads = threading.Lock(), True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def judge_at(server: Any, **settings: Any) -> EndpointJudge:
    settings = {"retries": 2, "pause": 0.01, "timeout": 0.4, **settings}
    return EndpointJudge(
        model="gpt-4", base_url=f"http://127.0.0.1:{server.server_address[1]}/v1", key="secret", **settings
    )


def item(number: int = 1) -> Item:
    return Item(
        id=f"{number}/1",
        question_id=number,
        category="writing",
        turn=1,
        template="single-v1",
        system="Be fair.",
        prompt=f"Grade {number}.",
    )


def reply_of(judge: EndpointJudge) -> Reply:
    ((_, reply),) = judge.replies([item()])
    return reply


def test_a_judgment_is_asked_for_as_fastchat_does(server: Any) -> None:
    server.answers = [says("Fine. [[8]]", usage={"prompt_tokens": 12, "completion_tokens": 3})]
    assert reply_of(judge_at(server)) == Reply(text="Fine. [[8]]", prompt_tokens=12, new_tokens=3)
    ((path, body, headers, _),) = server.asked
    assert (path, headers["Authorization"]) == ("/v1/chat/completions", "Bearer secret")
    assert body == {
        "model": "gpt-4",
        "messages": [{"role": "system", "content": "Be fair."}, {"role": "user", "content": "Grade 1."}],
        "max_tokens": 2048,
        "temperature": 0.0,
    }


def test_what_is_null_is_left_to_the_endpoint(server: Any) -> None:
    reply_of(judge_at(server, max_tokens=None, temperature=None))
    assert server.asked[0][1].keys() == {"model", "messages"}


def test_a_cut_reply_and_untold_tokens_are_told(server: Any) -> None:
    server.answers = [says("Fine", "length")]
    assert reply_of(judge_at(server)) == Reply(text="Fine", cut=True)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (refuses(429, "slow down"), "the endpoint answered 429 Too Many Requests: slow down"),
        (refuses(500, "oops"), "the endpoint answered 500 Internal Server Error: oops"),
        (refuses(503), "the endpoint answered 503 Service Unavailable: no"),
        (sends(b"<html>Bad gateway</html>"), "the endpoint's reply is no JSON: <html>Bad gateway</html>"),
        (sends(b'{"choices": [{"mess'), 'the endpoint\'s reply is no JSON: {"choices": [{"mess'),
        (sends(b""), "the endpoint's reply is no JSON"),
        (sends(b"[]"), "the endpoint's reply has no choices with a message: []"),
        (sends(b'{"choices": []}'), 'the endpoint\'s reply has no choices with a message: {"choices": []}'),
        (says([1]), "the endpoint's reply has no text but [1]"),
        (breaks_off, "IncompleteRead"),
        (sleeps, "timed out"),
    ],
)
def test_what_may_pass_is_tried_again_and_then_is_the_reason(
    server: Any, failure: Answer, reason: str
) -> None:
    server.answers = [failure, failure, says("[[3]]")]
    assert reply_of(judge_at(server)).text == "[[3]]" and len(server.asked) == 3
    server.asked.clear()
    server.answers = [failure]
    reply = reply_of(judge_at(server, retries=1))
    assert reason in reply.problem and reply.text == "" and len(server.asked) == 2


@pytest.mark.parametrize(
    ("status", "reason"),
    [(400, "Bad Request: no"), (401, "Unauthorized: no"), (404, "Not Found: no"), (422, "Unprocessable")],
)
def test_what_no_patience_mends_is_not_tried_again(server: Any, status: int, reason: str) -> None:
    server.answers = [refuses(status)]
    assert f"the endpoint answered {status} {reason}" in reply_of(judge_at(server)).problem
    assert len(server.asked) == 1


def test_a_refusal_without_words_is_an_empty_reply(server: Any) -> None:
    server.answers = [says(None)]
    assert reply_of(judge_at(server)) == Reply(text="")


def test_pauses_grow_and_the_endpoints_own_is_kept(server: Any) -> None:
    server.answers = [refuses(429), refuses(429), refuses(429, Retry_After="0.5"), says("[[1]]")]
    assert reply_of(judge_at(server, retries=3, pause=0.1)).text == "[[1]]"
    moments = [moment for *_, moment in server.asked]
    first, second, third = (later - earlier for earlier, later in pairwise(moments))
    assert first >= 0.075 and second >= 0.15 and third >= 0.5


def test_one_items_failure_concerns_no_other_and_several_are_asked_at_once(server: Any) -> None:
    together = threading.Barrier(3, timeout=60)

    def answer(handler: Handler, body: dict[str, Any]) -> None:
        together.wait()  # passes only when three requests are under way
        asked = body["messages"][1]["content"]
        handler.send(400, {"error": "bad"}) if "2" in asked else handler.send(200, completion(asked))

    server.answers = [answer]
    judge = judge_at(server, concurrency=3, timeout=60)
    replies = {each.id: reply for each, reply in judge.replies([item(1), item(2), item(3)])}
    assert {id: reply.text for id, reply in replies.items()} == {
        "1/1": "Grade 1.",
        "2/1": "",
        "3/1": "Grade 3.",
    }
    assert replies["2/1"].problem == "the endpoint answered 400 Bad Request: bad"


def test_who_stops_listening_is_asked_nothing_more(server: Any) -> None:
    server.answers = [says("[[5]]"), refuses(503)]
    replies: Any = judge_at(server, concurrency=1, pause=30).replies([item(number) for number in range(50)])
    next(replies)
    closing = threading.Thread(target=replies.close)
    closing.start()
    closing.join(20)  # and not the half minute that the second item was to pause
    assert not closing.is_alive() and len(server.asked) <= 3


class TestBeforehand:
    def test_an_endpoint_that_answers_will_do_even_without_a_list_of_models(self, server: Any) -> None:
        for status in (200, 404, 500):
            server.models_status = status
            judge_at(server).check()
        assert server.listed == ["Bearer secret"] * 3 and server.asked == []

    @pytest.mark.parametrize("status", [401, 403])
    def test_a_refused_key_is_told_before_anything_is_asked(self, server: Any, status: int) -> None:
        server.models_status = status
        with pytest.raises(
            ValueError, match=f"refuses the key in OPENAI_API_KEY: the endpoint answered {status}"
        ):
            judge_at(server).check()

    def test_an_endpoint_out_of_reach_is_told_with_its_address(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
            with pytest.raises(ValueError, match=rf"judge.base_url={address} cannot be reached \(.*refused"):
                EndpointJudge(model="m", base_url=address, key="k").check()

    @pytest.mark.parametrize(
        ("settings", "sentence"),
        [
            ({"base_url": "localhost:8000/v1"}, "begins with http:// or https://"),
            ({"key": "se\ncret"}, "the key in OPENAI_API_KEY has characters that no key has"),
            ({"key": "schlüssel"}, "the key in OPENAI_API_KEY has characters that no key has"),
            ({"concurrency": 0}, "judge.concurrency is 0; give a number from 1 on"),
            ({"retries": -1}, "judge.retries is -1; give a number from 0 on"),
            ({"max_tokens": 0}, "judge.max_tokens is 0; give a number from 1 on"),
        ],
    )
    def test_settings_that_cannot_be_are_refused(self, settings: dict[str, Any], sentence: str) -> None:
        with pytest.raises(ValueError, match=sentence):
            EndpointJudge(**{"model": "m", "base_url": "http://127.0.0.1/v1", "key": "k", **settings})

    def test_the_key_is_shown_nowhere(self, server: Any) -> None:
        judge = judge_at(server)
        assert "secret" not in repr(judge) and "secret" not in json.dumps(judge.identity())
