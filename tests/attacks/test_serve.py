"""What a stranger on the same machine can do to ``hpctrain serve``, and what bad rows do."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
import xgboost

from hpctrain.predict.features import ModelFeatures
from tests.waiting import wait_until

NOBODY = 65534
MIB = 1 << 20

# A model that takes its time, and one of a library that refuses texts.
SLOW = """
import time
from hpctrain.predict import Predictor

class Slow(Predictor):
    @classmethod
    def from_checkpoint(cls, checkpoint, **kwargs):
        return cls()

    @classmethod
    def check_checkpoint(cls, checkpoint):
        pass

    def _predict_numpy(self, data):
        time.sleep(0.1)
        return {"same": data["a"]}
"""
# Run as another user, with the standard library alone.
LARGE = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as peer:
    peer.settimeout(30)
    size = 120 << 20
    head = "POST /predict HTTP/1.1\\r\\nHost: a\\r\\nContent-Type: application/json\\r\\n"
    peer.sendall((head + f"Content-Length: {size}\\r\\n\\r\\n").encode())
    sent = 0
    try:
        while sent < size:
            peer.sendall(b" " * (1 << 20))
            sent += 1 << 20
        print("TAKEN", flush=True)
    except OSError:
        print("REFUSED", flush=True)
"""
SILENT = """
import socket, sys
held = []
for number in range(400):
    peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=10)
    peer.sendall(b"GET /healthz HTTP/1.1\\r\\nHost: a\\r\\n" if number % 2 else b"")
    held.append(peer)
print("HELD", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Server:
    process: subprocess.Popen[str]
    url: str
    token: str

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    @property
    def memory(self) -> int:
        return psutil.Process(self.process.pid).memory_info().rss

    def post(self, **body: object) -> httpx.Response:
        return self.send(httpx.Request("POST", "/", json=body).content)

    def send(self, content: bytes) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        return httpx.post(f"{self.url}/predict", content=content, headers=headers, timeout=60)


def _served(folder: Path, *words: str) -> Iterator[Server]:
    process = subprocess.Popen(
        [sys.executable, "-m", "hpctrain.cli", "serve", *words],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    said = ""
    assert process.stderr is not None
    try:
        for line in process.stderr:
            said += line
            if "serving on" in line:
                break
        found = re.search(r"token: (\S+)\n.*serving on (\S+)", said, re.DOTALL)
        assert found is not None, said
        token, url = found.groups()
        wait_until(lambda: _is_ready(url), "the model is loaded")
        yield Server(process, url, token)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def _is_ready(url: str) -> bool:
    # While it imports, on a busy machine, an answer may take longer than the client waits.
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/readyz").status_code == 200
    return False


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("slow")
    (folder / "slow.py").write_text(SLOW)
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "model.bin").write_bytes(b"nothing")
    yield from _served(folder, "checkpoint", "--predictor", "slow:Slow")


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("trees")
    rows = np.random.default_rng(0).normal(size=(200, 2)).astype("f4")
    data = xgboost.DMatrix(rows, rows[:, 0], feature_names=["a", "b"])
    xgboost.train({}, data, 3).save_model(folder / "model.ubj")
    ModelFeatures(framework="xgboost", features=("a", "b")).write(folder)
    yield from _served(folder.parent, folder.name)


def _attack(code: str, server: Server) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["python3", "-c", code, str(server.port)],
        user=NOBODY,
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_large_body_without_a_token_is_not_read(slow: Server) -> None:
    before = slow.memory
    said, _ = _attack(LARGE, slow).communicate(timeout=60)
    assert said == "REFUSED\n"
    assert slow.memory - before < 16 * MIB
    assert slow.post(columns={"a": [1]}).status_code == 200


def test_a_body_over_the_limit_is_refused_with_a_token_too(slow: Server) -> None:
    before = slow.memory
    content = b'{"columns": {"a": [' + b"1," * (8 * MIB) + b"1]}}"
    assert slow.send(content).status_code == 413
    # It looks for no answer before all is sent.
    headers = {"Authorization": f"Bearer {slow.token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{slow.url}/predict", data=content, headers=headers)
    with pytest.raises(urllib.error.HTTPError, match="413"):
        urllib.request.urlopen(request, timeout=60)

    def parts() -> Iterator[bytes]:
        for _ in range(64):
            yield b" " * MIB

    answer = httpx.post(f"{slow.url}/predict", content=parts(), headers=headers, timeout=60)
    assert answer.status_code == 413
    assert slow.memory - before < 64 * MIB
    assert slow.post(columns={"a": [1]}).status_code == 200


def test_silent_connections_keep_nobody_out_and_are_closed(slow: Server) -> None:
    stranger = _attack(SILENT, slow)
    assert stranger.stdout is not None
    try:
        assert stranger.stdout.readline() == "HELD\n"
        assert httpx.get(f"{slow.url}/healthz", timeout=10).status_code == 200
        assert slow.post(columns={"a": [1]}).status_code == 200
        server = psutil.Process(slow.process.pid)
        wait_until(lambda: len(server.net_connections()) <= 5, "no connection without a request")
    finally:
        stranger.communicate(timeout=30)


def test_it_is_healthy_behind_slow_predictions(slow: Server) -> None:
    waiting = []
    with ThreadPoolExecutor(60) as clients:
        answers = [clients.submit(slow.post, columns={"a": [1]}) for _ in range(60)]
        while not all(answer.done() for answer in answers):
            assert httpx.get(f"{slow.url}/healthz", timeout=30).status_code == 200
            waiting.append(sum(not answer.done() for answer in answers))
    assert {answer.result().status_code for answer in answers} == {200}
    # Behind 60 predictions that take 6 s together, the first one would wait for a thread.
    assert waiting[0] > 30


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b'{"columns": {"a": [1, 2], "b": [1, "x"]}}', "row 0, column 'b'"),
        (b'{"columns": {"a": [1, 2], "b": ["x", "y"]}}', "row 0, column 'b'"),
        (b'{"rows": [{"a": 1, "b": 1}, {"a": 1, "b": {"c": 1}}]}', "row 1, column 'b'"),
        (b'{"columns": {"a": [], "b": []}}', "there are no rows"),
        (b'{"columns": {"a": NaN}}', "list"),
        (b'{"rows": NaN}', "list"),
        (b'{"columns": {"a": "x"}}', "list"),
        (b'{"columns": {"a": [[1, 2]], "b": [1]}}', "'a'"),
        (b"", "required"),
        (b"null", "valid"),
    ],
    ids=str,
)
def test_bad_rows_are_said_to_be_so(trees: Server, content: bytes, place: str) -> None:
    answer = trees.send(content)
    assert answer.status_code == 422, answer.text
    assert place in answer.text


@pytest.mark.parametrize("content", [b"\xff", b"[" * 100_000, b"{"], ids=["utf8", "deep", "half"])
def test_what_is_no_json_is_said_to_be_none(trees: Server, content: bytes) -> None:
    assert trees.send(content).status_code in (400, 422)
    assert trees.post(columns={"a": [1], "b": [None]}).status_code == 200
