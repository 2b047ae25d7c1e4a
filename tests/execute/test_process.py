"""The process group of a step, which ends as a whole."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path

import pytest

from hpctrain.errors import LaunchError
from hpctrain.execute import process
from hpctrain.execute.process import StepProcess, process_start_time
from tests.waiting import wait_until

PATIENCE_S = 10.0
# Like mpiexec, whose ssh to a node that is gone does not end: both it and its child can be deaf.
SCRIPT = """
trap '{trap}' TERM
{session} sh -c 'trap "" TERM; echo $$; exec sleep 600' &
wait
wait
"""


@pytest.fixture(params=["pidfd", "kernel without pidfd"])
def step(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "pidfd":
        monkeypatch.setattr(process, "_open_pidfd", lambda _: None)


def start(tmp_path: Path, script: str) -> tuple[StepProcess, int]:
    started = StepProcess(["sh", "-c", script], environment=dict(os.environ), log=tmp_path / "log")
    while not (said := started.last_lines().split()):
        assert started.wait(0.01) is None
    return started, int(said[0])


@pytest.mark.usefixtures("step")
@pytest.mark.parametrize("trap", ["exit 3", ":"], ids=["launcher that hears", "deaf launcher"])
def test_what_a_launcher_leaves_behind_ends_with_it(tmp_path: Path, trap: str) -> None:
    check_that_a_child_ends(tmp_path, trap, session="")


@pytest.mark.parametrize("trap", ["exit 3", ":"], ids=["launcher that hears", "deaf launcher"])
def test_so_does_what_is_in_a_session_of_its_own(tmp_path: Path, trap: str) -> None:
    check_that_a_child_ends(tmp_path, trap, session="setsid")


def check_that_a_child_ends(tmp_path: Path, trap: str, *, session: str) -> None:
    started, child = start(tmp_path, SCRIPT.format(trap=trap, session=session))
    began = process_start_time(child)
    assert began is not None
    started.kill(patience_s=1.0)
    assert started.returncode() == (3 if trap == "exit 3" else -signal.SIGKILL)
    wait_until(lambda: process_start_time(child) != began, f"{child} ends", timeout_s=PATIENCE_S)


@pytest.mark.usefixtures("step")
def test_a_launcher_that_has_ended_can_be_killed_again(tmp_path: Path) -> None:
    started, _ = start(tmp_path, "echo 1; sleep 0.2")
    assert started.wait(10.0) == 0
    started.kill()
    started.kill()
    assert started.returncode() == 0


@pytest.mark.usefixtures("step")
def test_a_thread_can_look_while_another_one_kills(tmp_path: Path) -> None:
    started, _ = start(
        tmp_path, "trap 'sleep 0.1; exit 3' TERM; echo 1; while :; do sleep 0.01; done"
    )
    killer = threading.Thread(target=started.kill)
    killer.start()
    while killer.is_alive():
        assert started.returncode() in (None, 3)
    assert started.returncode() == 3


@pytest.mark.parametrize(("number", "is_passing"), [(errno.EIO, True), (errno.ELOOP, False)])
def test_a_log_that_cannot_be_written_just_now_may_be_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_passing: bool
) -> None:
    """Then the ranks are started again, and no run fails for a moment of its filesystem."""

    def fail(path: Path) -> int:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(process, "open_log", fail)
    with pytest.raises(LaunchError, match=rf"cannot start true: .* \({tmp_path}/log\)") as raised:
        StepProcess(["true"], environment={}, log=tmp_path / "log")
    assert raised.value.transient is is_passing
