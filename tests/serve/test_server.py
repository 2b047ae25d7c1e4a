"""A real server, in a process of its own, and in a run."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
import xgboost

from hpctrain import ConfigError, Result, RunConfig, timeouts
from hpctrain.control.interfaces import ipv4_addresses
from hpctrain.errors import CheckpointError
from hpctrain.predict.features import ModelFeatures
from hpctrain.serve.server import Service, Serving, _listening, is_loopback, serve
from hpctrain.xgboost import XGBoostPredictor
from tests.serve.test_app import Echo

X = np.random.default_rng(0).normal(size=(200, 2)).astype("f4")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoint")
    data = xgboost.DMatrix(X, X[:, 0], feature_names=["a", "b"])
    xgboost.train({}, data, 3).save_model(directory / "model.ubj")
    ModelFeatures(framework="xgboost", features=("a", "b")).write(directory)
    return directory


def start(tmp_path: Path, *words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hpctrain.cli", "serve", *map(str, words)],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )


def await_url(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return address and token, as they were printed."""
    token = ""
    for line in process.stderr:
        if found := re.search(r"token: (\S+)", line):
            token = found[1]
        if found := re.search(r"serving on (\S+)", line):
            return found[1], token
    raise AssertionError(f"ended with status {process.wait()}")


def await_ready(url: str, *, timeout_s: float = 90) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"{url} is not ready after {timeout_s} s")


def predict(url: str, token: str) -> float:
    answer = httpx.post(
        f"{url}/predict",
        json={"rows": [{"a": float(X[0, 0]), "b": float(X[0, 1])}]},
        headers={"Authorization": f"Bearer {token}"},
    )
    assert answer.status_code == 200, answer.text
    return answer.json()["rows"][0]["predictions"]


def expected(checkpoint: Path) -> float:
    booster = xgboost.Booster(model_file=checkpoint / "model.ubj")
    return float(booster.inplace_predict(X[:1])[0])


def test_a_checkpoint_is_served_on_loopback_with_a_new_token(checkpoint, tmp_path):
    process = start(tmp_path, checkpoint)
    try:
        url, token = await_url(process)
        assert url.startswith("http://127.0.0.1:")
        await_ready(url)
        assert predict(url, token) == pytest.approx(expected(checkpoint))
        assert httpx.post(f"{url}/predict", json={}).status_code == 401
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)


def test_a_token_of_ones_own_is_not_printed(checkpoint, tmp_path):
    file = tmp_path / "token"
    file.write_text("a-token-of-my-own\n")
    file.chmod(0o600)
    process = start(tmp_path, checkpoint, "--token-file", file)
    try:
        url, printed = await_url(process)
        assert printed == ""
        await_ready(url)
        assert predict(url, "a-token-of-my-own") == pytest.approx(expected(checkpoint))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--host", "0.0.0.0", "--no-token", "--yes"], "can be reached by other users"),
        (["--no-token"], "every user of this machine, as of a login node, reaches its loopback"),
        (["--token-file", "nowhere"], "No such file"),
        (["--token-file", "open"], "can be read by others"),
        (["--predictor", "hpctrain.lightgbm:LightGBMPredictor"], "holds a model of xgboost"),
    ],
)
def test_what_is_unsafe_or_impossible_is_refused(checkpoint, tmp_path, words, complaint):
    (tmp_path / "open").write_text("a-token-of-my-own\n")
    (tmp_path / "open").chmod(0o644)
    process = start(tmp_path, checkpoint, *words)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert complaint in said


def test_a_port_that_is_taken_is_named(checkpoint, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = start(tmp_path, checkpoint, "--port", port)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"port {port}: Address already in use" in said


def test_a_damaged_model_ends_the_server(tmp_path):
    directory = tmp_path / "damaged"
    directory.mkdir()
    (directory / "model.ubj").write_bytes(b"nothing")
    ModelFeatures(framework="xgboost").write(directory)
    process = start(tmp_path, directory)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "cannot be loaded" in said


class Stuck(Echo):
    """Its checkpoint is on a filesystem that does not answer."""

    go_on = threading.Event()

    @classmethod
    def from_checkpoint(cls, checkpoint, **kwargs):
        assert cls.go_on.wait(60)
        return cls()


def test_a_server_ends_whose_model_is_not_loaded_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr(timeouts, "SERVED_MODEL_S", 0.1)
    service = Service(checkpoint=tmp_path, predictor_cls=Stuck, predictor_kwargs={}, token="t" * 20)
    try:
        with pytest.raises(CheckpointError, match="was not loaded within"):
            serve(service, on_url=lambda _: None)
    finally:
        Stuck.go_on.set()


class OnLostGpu(Echo):
    def _predict_numpy(self, data):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_a_server_ends_whose_gpu_is_lost(tmp_path):
    service = Service(
        checkpoint=tmp_path, predictor_cls=OnLostGpu, predictor_kwargs={}, token="t" * 20
    )
    answers = []

    def ask(url: str) -> None:
        await_ready(url)
        body = {"columns": {"a": [1]}}
        header = {"Authorization": "Bearer " + "t" * 20}
        answers.append(httpx.post(f"{url}/predict", json=body, headers=header).status_code)

    clients = []

    def ask_in_background(url: str) -> None:
        clients.append(threading.Thread(target=ask, args=(url,)))
        clients[0].start()

    with pytest.raises(RuntimeError, match="illegal memory access"):
        serve(service, on_url=ask_in_background)
    clients[0].join(30)
    assert answers == [500]


def test_whoever_knows_the_address_can_connect(tmp_path):
    service = Service(checkpoint=tmp_path, predictor_cls=Echo, predictor_kwargs={}, token="t" * 20)
    seen = []

    def connect(url: str) -> None:
        port = int(url.rsplit(":", 1)[1])
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
        seen.append(port)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve(service, on_url=connect)
    assert len(seen) == 1


def test_a_node_whose_name_is_that_of_a_loopback_is_reached_by_its_address(tmp_path, monkeypatch):
    addresses = [each for each in ipv4_addresses().values() if not is_loopback(each)]
    if not addresses:
        pytest.skip("needs a network interface")
    # As 127.0.1.1 in /etc/hosts of Debian.
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    service = Service(
        checkpoint=tmp_path, predictor_cls=Echo, predictor_kwargs={}, token="t" * 20, host=None
    )
    with _listening(service) as (_, _, listener, url):
        assert listener.getsockname()[0] == addresses[0]
        assert url == f"http://{addresses[0]}:{listener.getsockname()[1]}"


def test_only_loopback_addresses_are_loopback():
    assert all(map(is_loopback, ["127.0.0.1", "localhost", "::1"]))
    assert not any(map(is_loopback, [None, "0.0.0.0", "10.0.0.1", "node1"]))


@pytest.mark.mpi
def test_a_server_in_a_run_says_where_it_is_and_ends_when_it_is_told(checkpoint, tmp_path):
    service = Service(
        checkpoint=checkpoint,
        predictor_cls=XGBoostPredictor,
        predictor_kwargs={},
        token="a-token-of-the-run",
        host="127.0.0.1",
    )
    seen = []

    def stop(report: int, metrics) -> bool:
        if not metrics["ready"]:
            return False
        seen.append(predict(metrics["url"], "a-token-of-the-run"))
        return True

    run = RunConfig(
        name="served", storage_path=tmp_path / "runs", stop=stop, launcher="local", verbose=0
    )
    result = Serving(service, run_config=run).fit()
    assert seen == [pytest.approx(expected(checkpoint))]
    assert result.return_value["requests"] == 1
    assert Result.from_path(tmp_path / "runs" / "served").state == "finished"
    # Nobody else reads the token.
    assert (tmp_path / "runs" / "served" / "spec.pkl").stat().st_mode & 0o077 == 0
    for path in (tmp_path / "runs" / "served").rglob("*"):
        if path.is_file() and path.name != "spec.pkl":
            assert b"a-token-of-the-run" not in path.read_bytes()


def test_a_run_that_serves_is_one_rank(checkpoint):
    from hpctrain import ScalingConfig

    service = Service(
        checkpoint=checkpoint, predictor_cls=XGBoostPredictor, predictor_kwargs={}, token="t" * 20
    )
    with pytest.raises(ConfigError, match="a server is one rank"):
        Serving(service, scaling_config=ScalingConfig(num_workers=2))
