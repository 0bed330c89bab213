"""`python -m scripts.fetch` brings a file from a hub once, and says in one sentence why it could not.

The hub is a real HTTP server on this machine that answers as the Hugging Face hub does.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def archive() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr("data/trec.jsonl", '{"a": 1}\n')
    return content.getvalue()


class Hub(BaseHTTPRequestHandler):
    """Serves one file of one data-set repository, and counts what it was asked for."""

    content = archive()
    asked: list[str]

    def do_HEAD(self) -> None:
        self.asked.append(f"{self.command} {self.path}")
        known = self.path == "/datasets/THUDM/LongBench/resolve/main/data.zip"
        self.send_response(200 if known else 404)
        self.send_header("ETag", f'"{hashlib.sha256(self.content).hexdigest()}"')
        self.send_header("X-Repo-Commit", "a" * 40)
        self.send_header("Content-Length", str(len(self.content) if known else 0))
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(self.content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    Hub.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", Hub.asked
        server.shutdown()


def fetch(cache: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scripts.fetch", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYRAMID_CACHE": str(cache), "HF_HOME": str(cache / "hf"), **environment},
        capture_output=True,
        text=True,
    )


def test_the_file_is_fetched_once_and_then_found_without_a_call(
    tmp_path: Path, hub: tuple[str, list[str]]
) -> None:
    address, asked = hub
    first = fetch(tmp_path, "longbench", HF_ENDPOINT=address, HF_HUB_OFFLINE="0")
    file = tmp_path / "data" / "longbench" / "data.zip"
    assert (first.returncode, first.stdout) == (0, f"{file}\n"), first.stderr
    assert file.read_bytes() == Hub.content
    assert any(request.startswith("GET ") for request in asked)
    asked.clear()
    second = fetch(tmp_path, "longbench", HF_ENDPOINT=address, HF_HUB_OFFLINE="0")
    assert (second.returncode, second.stdout, asked) == (0, f"{file}\n", [])


def test_without_a_hub_one_sentence_says_what_to_copy_where(tmp_path: Path) -> None:
    done = fetch(tmp_path, "longbench", HF_HUB_OFFLINE="1")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: THUDM/LongBench could not be fetched from the Hugging Face hub (")
    assert done.stderr.endswith(
        f"copy data.zip from another machine into {tmp_path / 'data' / 'longbench'}\n"
    )
    assert done.stderr.count("\n") == 1


def test_an_unknown_benchmark_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    done = fetch(tmp_path, "longbanch")
    assert done.returncode == 2
    assert "longbanch" in done.stderr and "longbench" in done.stderr.splitlines()[-1]
