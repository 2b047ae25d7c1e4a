"""Two executors of one run: clocks that differ between hosts, and one that wakes up late.

The other host is this one under another name, with a clock of its own, so that nothing can be seen
of its processes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Result
from hpctrain.errors import SupersededError
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import read_status
from tests.waiting import wait_until

PATIENCE_S = 90.0
ELSEWHERE = "elsewhere"
SCRIPT = """
import sys, time
skew_s = float(sys.argv[5])
now = time.time
time.time = lambda: now() + skew_s

import hpctrain
from hpctrain import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

def train(config):
    import random
    import time
    generator, value, first = random.Random(7), 0.0, 0
    if checkpoint := hpctrain.get_checkpoint():
        state = checkpoint.to_dict()
        first, value = state["step"] + 1, state["value"]
        generator.setstate(state["random"])
    rank = hpctrain.get_context().get_world_rank()
    for step in range(first, config["steps"]):
        value = 0.9 * value + generator.gauss(0.0, 1.0)
        saved = None
        if step % 3 == 2 and rank == 0:
            state = {"step": step, "value": value, "random": generator.getstate()}
            saved = Checkpoint.from_dict(state)
        hpctrain.report({"step": step, "value": value}, saved)
        time.sleep(config["pause"])
    return value

result = DataParallelTrainer(
    train,
    train_loop_config={"steps": int(sys.argv[2]), "pause": float(sys.argv[3])},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(
        storage_path=sys.argv[1],
        name="run",
        failure_config=FailureConfig(node_timeout_s=float(sys.argv[4])),
    ),
).fit()
print(result.return_value)
"""

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("unshare") is None, reason="needs root, for another host name"
)
Fit = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def fit(tmp_path: Path) -> Iterator[Fit]:
    """Call ``fit()`` in a process, here or on the other host; none outlives the test."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with ExitStack() as stack:

        def start(
            storage: Path,
            *,
            elsewhere: bool = False,
            steps: int = 12,
            pause_s: float = 0.0,
            node_timeout_s: float = 5.0,
            skew_s: float = 0.0,
        ) -> subprocess.Popen[str]:
            values = (storage, steps, pause_s, node_timeout_s, skew_s)
            argv = [sys.executable, str(script), *map(str, values)]
            if elsewhere:
                named = f'hostname {ELSEWHERE} && exec "$@"'
                argv = ["unshare", "--uts", "sh", "-c", named, "sh", *argv]
            process = subprocess.Popen(
                argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            # One that is stopped is not ended by any other signal.
            stack.callback(process.send_signal, signal.SIGCONT)
            return process

        yield start


def await_reports(paths: RunPaths, number: int, *, attempt: int) -> None:
    def has_reported() -> bool:
        status = read_status(paths)
        return status is not None and status.attempt >= attempt and status.reports >= number

    wait_until(has_reported, lambda: str(read_status(paths)), timeout_s=PATIENCE_S)


def events_of(paths: RunPaths, name: str) -> list[dict[str, Any]]:
    return [event for event in read_events(paths) if event["event"] == name]


def content_of(result: Result) -> object:
    """Return all that a run has computed, but for the times."""
    assert result.checkpoint is not None
    return result.metrics_history, result.checkpoint.to_dict(), result.return_value


def test_a_live_run_on_a_host_whose_clock_is_90_s_behind_is_followed(fit: Fit, tmp_path: Path):
    paths = RunPaths(tmp_path / "run")
    there = fit(tmp_path, elsewhere=True, skew_s=-90.0, steps=60, pause_s=0.1)
    await_reports(paths, 3, attempt=1)
    here = fit(tmp_path, steps=60, pause_s=0.1)
    outputs = [process.communicate(timeout=PATIENCE_S) for process in (there, here)]
    assert [there.returncode, here.returncode] == [0, 0], outputs
    # One executor, one attempt: that of the other host.
    assert len(events_of(paths, "executor-started")) == 1
    (started,) = events_of(paths, "attempt-started")
    assert started["host"] == ELSEWHERE
    assert outputs[0][0].split()[-1] == outputs[1][0].split()[-1]


@pytest.mark.parametrize(
    ("node_timeout_s", "wakes_at_the_end"),
    [
        pytest.param(5.0, False, id="wakes while its successor is at work"),
        pytest.param(32.0, True, id="stands still for 64 s", marks=pytest.mark.long),
    ],
)
def test_an_executor_that_wakes_up_beside_its_successor_leaves(
    fit: Fit, tmp_path: Path, node_timeout_s: float, wakes_at_the_end: bool
):
    paths = RunPaths(tmp_path / "run")
    given: dict[str, Any] = {"steps": 45, "pause_s": 0.1, "node_timeout_s": node_timeout_s}
    first = fit(tmp_path, elsewhere=True, **given)
    await_reports(paths, 6, attempt=1)
    first.send_signal(signal.SIGSTOP)
    second = fit(tmp_path, **given)
    await_reports(paths, 12, attempt=2)
    if wakes_at_the_end:
        output = second.communicate(timeout=PATIENCE_S)
    first.send_signal(signal.SIGCONT)
    said = first.communicate(timeout=PATIENCE_S)[1]
    assert first.returncode == SupersededError.exit_code == 6, said
    owner = f"process {second.pid} on {os.uname().nodename}"
    assert f"another executor has taken over run 'run' in {tmp_path}: number" in said
    assert owner in said
    if not wakes_at_the_end:
        output = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 0, output
    assert f"on {ELSEWHERE} runs run, or has died. Waiting up to" in output[1]
    # Nothing of the first one came in between or afterwards.
    status = read_status(paths)
    assert status is not None
    assert (status.state, status.owner_pid, status.attempt) == (RunState.FINISHED, second.pid, 2)
    later = read_events(paths)
    later = later[max(n for n, event in enumerate(later) if event["event"] == "fit") :]
    assert [event["event"] for event in later] == [
        *("fit", "executor-started", "attempt-ended", "attempt-started"),
        *("attempt-ended", "executor-ended", "run-ended"),
    ]
    assert not list(paths.checkpoints.glob(".*"))
    # And what has come out is what comes out undisturbed.
    calm = tmp_path / "calm"
    assert fit(calm, **{**given, "pause_s": 0.0}).wait(PATIENCE_S) == 0
    assert content_of(Result.from_path(paths.root)) == content_of(Result.from_path(calm / "run"))
