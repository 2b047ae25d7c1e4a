from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctrain import linux

LACKS = """
import _signal, os, posix, signal
for module in (os, posix, signal, _signal):
    for name in ("pidfd_open", "memfd_create", "pidfd_send_signal", "RWF_NOWAIT"):
        if hasattr(module, name):
            delattr(module, name)
"""
TRAIN = """
import sys
import hpctrain
from hpctrain import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

def train():
    first = hpctrain.get_checkpoint() is None
    hpctrain.report({"step": 1}, Checkpoint.from_dict({"step": 1}))
    if first and hpctrain.get_context().get_world_rank() == 1:
        raise ValueError("once")

if __name__ == "__main__":
    result = DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=sys.argv[1], name="run", failure_config=FailureConfig(max_failures=1)
        ),
    ).fit()
    print("attempts", len(result.attempts))
"""


@pytest.fixture(params=["this Python", "a Python that lacks them"])
def calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "this Python":
        monkeypatch.delattr(os, "pidfd_open")
        monkeypatch.delattr(os, "memfd_create")
        monkeypatch.delattr(signal, "pidfd_send_signal")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "300"]) as process:
        yield process
        process.kill()


def test_a_process_gets_a_signal_by_its_descriptor(
    calls: None, sleeper: subprocess.Popen[bytes]
) -> None:
    descriptor = linux.pidfd_open(sleeper.pid)
    try:
        assert not os.get_inheritable(descriptor)
        linux.pidfd_send_signal(descriptor, signal.SIGTERM)
        assert sleeper.wait(60) == -signal.SIGTERM
        with pytest.raises(ProcessLookupError):
            linux.pidfd_send_signal(descriptor, signal.SIGTERM)
    finally:
        os.close(descriptor)


def test_a_process_that_is_gone_has_no_descriptor(calls: None) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait(60)
    with pytest.raises(ProcessLookupError):
        linux.pidfd_open(process.pid)


def test_a_file_is_seen_by_no_other_process(calls: None, tmp_path: Path) -> None:
    descriptor = linux.memory_file("hpctrain-test")
    try:
        os.write(descriptor, b"abc")
        assert os.pread(descriptor, 9, 0) == b"abc"
        assert not os.get_inheritable(descriptor)
        assert "hpctrain-test" in os.readlink(f"/proc/self/fd/{descriptor}")
        assert os.fstat(descriptor).st_nlink == 0
    finally:
        os.close(descriptor)


@pytest.mark.mpi
def test_a_run_of_condas_python_trains_and_starts_again(tmp_path: Path) -> None:
    """Its functions that the system's headers lacked are deleted here before any import."""
    (tmp_path / "sitecustomize.py").write_text(LACKS)
    (tmp_path / "train.py").write_text(TRAIN)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "train.py", str(tmp_path / "runs")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "HPCTRAIN_LAUNCHER": "local"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "attempts 2" in done.stdout
