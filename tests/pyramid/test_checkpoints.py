"""Files come from the hub once and nothing is asked of it again; where it says no, one sentence tells why.

The hub here is a small server on this machine that answers as the real one does.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pyramid.checkpoints import FolderCheckpoint, GgufCheckpoint, HubCheckpoint, find_checkpoint, weight_files
from tests.pyramid.tiny_checkpoint import save_tiny

COMMIT = "0123456789" * 4
SCRIPT = """
import json, sys, time
from pyramid.models import ModelSpec, check, load
for action, model_id, revision in json.loads(sys.argv[1]):
    spec = ModelSpec(id=model_id, revision=revision, device="cpu")
    start = time.perf_counter()
    try:
        answer = {"identity": {"check": check, "load": load}[action](spec).identity}
    except ValueError as problem:
        answer = {"error": str(problem)}
    print(json.dumps(answer), flush=True)
    input()
"""


class Hub(ThreadingHTTPServer):
    """Serves a folder's files as org/tiny, refuses org/gated, calls org/huge huge, and knows no other."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        parts = path.partition("?")[0].strip("/").split("/")
        info, name = parts[:2] == ["api", "models"], parts[-1]
        repository = "/".join(parts[2:4] if info else parts[:2])
        if repository not in ("org/tiny", "org/huge", "org/gated"):
            return 404, {"X-Error-Code": "RepoNotFound"}, b""
        if info and name not in ("main", COMMIT):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        if info and parts[4] == "tree":
            return 200, {}, json.dumps([self.entry(name, "path") for name in self.files]).encode()
        if info:
            siblings = [self.entry(name, "rfilename") for name in self.files]
            if repository == "org/huge":
                siblings = [{**sibling, "size": 10**18} for sibling in siblings]
            return 200, {}, json.dumps({"id": repository, "sha": COMMIT, "siblings": siblings}).encode()
        if repository == "org/gated":
            return 403, {"X-Error-Code": "GatedRepo"}, b""
        if name not in self.files:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        mark = {"ETag": f'"{self.entry(name, "path")["oid"]}"', "X-Repo-Commit": COMMIT}
        return 200, mark, self.files[name]

    def entry(self, name: str, key: str) -> dict[str, Any]:
        content = self.files[name]
        return {
            key: name,
            "type": "file",
            "size": len(content),
            "oid": hashlib.sha1(content).hexdigest(),
        }


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Hub)
        self.server.asked.append(self.path)
        code, headers, body = self.server.answer(self.path)
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    server = Hub(save_tiny(tmp_path_factory.mktemp("hub")))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def run(
    home: Path, address: str, hub: Hub, *steps: tuple[str, str, str | None]
) -> list[tuple[dict[str, Any], list[str]]]:
    """What each step gave and what it asked of the hub, in a fresh process whose caches are in `home`."""
    environment = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(home), "PYRAMID_CACHE": str(home)}
    environment |= {"OMP_NUM_THREADS": "1"}
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE", "http_proxy", "HTTP_PROXY"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, json.dumps(steps)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin and process.stdout and process.stderr
    results = []
    for _ in steps:
        answer = json.loads(process.stdout.readline())
        results.append((answer, [path for path in hub.asked if path.startswith(("/api/models", "/org"))]))
        hub.asked.clear()
        process.stdin.write("\n")
        process.stdin.flush()
    assert process.wait(timeout=60) == 0
    assert process.stderr.read() == ""
    return results


def test_files_are_fetched_when_needed_and_never_again(home: Path, hub: Hub) -> None:
    """Checking fetches the configuration alone, loading the rest; later the hub may as well be gone."""
    (checked, asked), (loaded, asked_more) = run(
        home, hub.address, hub, ("check", "org/tiny", None), ("load", "org/tiny", None)
    )
    assert checked["identity"]["revision"] == COMMIT and checked == loaded
    assert any("config.json" in path for path in asked) and not any("safetensors" in path for path in asked)
    assert any("model.safetensors" in path for path in asked_more)

    nowhere = "http://127.0.0.1:9"
    (again, _), (other, _) = run(home, nowhere, hub, ("load", "org/tiny", None), ("check", "org/other", None))
    assert again == loaded
    assert "org/other is not on this machine" in other["error"]
    assert "hf download org/other --revision main" in other["error"] and "\n" not in other["error"]

    ((online, asked),) = run(home, hub.address, hub, ("load", "org/tiny", None))
    assert online == loaded and asked == []


def test_a_hub_that_says_no_is_understood(tmp_path: Path, hub: Hub) -> None:
    steps = [
        ("check", "org/none", None),
        ("check", "org/gated", None),
        ("check", "org/tiny", "v9"),
        ("load", "org/huge", None),
    ]
    messages = [answer["error"] for answer, _ in run(tmp_path, hub.address, hub, *steps)]
    assert (
        messages[0]
        == "org/none is not on the hub, or is private: give org/name or a local folder as model.id"
    )
    assert messages[1] == "org/gated is gated: accept its licence on the hub and set HF_TOKEN"
    assert messages[2] == "org/tiny has no revision 'v9' on the hub: correct model.revision"
    assert messages[3].startswith("org/huge takes ") and "make room" in messages[3]


def test_an_id_is_a_folder_a_file_or_a_model_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    (tmp_path / "model.gguf").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert isinstance(find_checkpoint("org/model"), FolderCheckpoint)
    assert isinstance(find_checkpoint(str(tmp_path / "model.gguf")), GgufCheckpoint)
    assert find_checkpoint("org/other") == HubCheckpoint("org/other", "main")
    assert find_checkpoint("gpt2", "v1") == HubCheckpoint("gpt2", "v1")


def test_a_file_that_is_no_gguf_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYRAMID_CACHE", str(tmp_path))
    (tmp_path / "model.gguf").write_bytes(b"rubbish")
    with pytest.raises(ValueError, match="model.gguf cannot be converted"):
        find_checkpoint(str(tmp_path / "model.gguf")).folder()
    assert not any((tmp_path / "models").glob("*.part"))


def test_weights_in_parts_must_be_all_there(tmp_path: Path) -> None:
    parts = {"a.weight": "model-00001-of-00002.safetensors", "b.weight": "model-00002-of-00002.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))
    (tmp_path / parts["a.weight"]).write_bytes(b"")
    with pytest.raises(ValueError, match="lacks model-00002-of-00002.safetensors, one of 2 files"):
        weight_files(tmp_path)
    (tmp_path / parts["b.weight"]).write_bytes(b"")
    assert [path.name for path in weight_files(tmp_path)] == sorted(parts.values())
