"""Slurm's warning comes while a run starts, and has not one step yet."""

from __future__ import annotations

import os
from typing import Any

import pytest

pytestmark = pytest.mark.slurm

# Python imports it before all else. One process of a kind waits, once, for the warning.
WAITS = """
import os, signal, sys, time

PLACE = os.environ["PLACE_OF_TEST"]

def wait(kind):
    try:
        os.close(os.open(f"{PLACE}/{kind}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    deadline = time.monotonic() + 100
    while not os.path.exists(f"{PLACE}/warned") and time.monotonic() < deadline:
        time.sleep(0.02)

class WaitsForMPI:
    def find_spec(name, path=None, target=None):
        if name != "mpi4py.MPI":
            return
        handle = signal.getsignal(signal.SIGUSR2)
        if callable(handle):
            def note(*given):
                handle(*given)
                open(f"{PLACE}/warned", "w").close()
            signal.signal(signal.SIGUSR2, note)
        wait("rank")

if "hpctrain.execute.agent" in sys.orig_argv:
    wait("agent")
if "hpctrain.worker.main" in sys.orig_argv:
    sys.meta_path.insert(0, WaitsForMPI)
"""


@pytest.mark.parametrize("kind", ["agent", "rank"])
def test_a_run_that_is_warned_while_it_starts_goes_on_in_its_job_queued_again(
    disturbed: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    modules = disturbed.path / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(WAITS)
    other = "rank" if kind == "agent" else "agent"
    (disturbed.path / other).touch()
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{modules}:{before}" if before else str(modules))
    monkeypatch.setenv("PLACE_OF_TEST", str(disturbed.path))
    disturbed.start("--time=1", "--notice=30", "--steps=10")
    disturbed.wait_for((disturbed.path / kind).exists, f"a process of the {kind}s")
    disturbed.slurm("scancel", "--signal=USR2", disturbed.job_id())
    result = disturbed.finish(steps=10)
    *kinds, last = (event["kind"] for event in disturbed.events("attempt-ended"))
    # On a busy machine Slurm may warn the second attempt, too.
    assert (set(kinds), last) == ({"time-limit"}, None), disturbed.logs()
    assert len(result.job_ids) == 1
