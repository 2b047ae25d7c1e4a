from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain.config import EXISTING_POLICIES, ExistingPolicy
from hpctrain.errors import ConfigError
from hpctrain.execute.process import process_start_time
from hpctrain.launch import existing
from hpctrain.launch.digests import MODULES
from hpctrain.launch.existing import Existing
from hpctrain.launch.life import LifeTest
from hpctrain.plan.spec import RunSpec
from hpctrain.rundir.ledger import append_event
from hpctrain.rundir.paths import RunPaths
from tests.plans import SETTINGS

DIGESTS = {"training function": "f1", "train_loop_config": "c1", "number of workers": "2"}


def make_spec(**changes: Any) -> RunSpec:
    return RunSpec(
        **{
            "trainer": "hpctrain.TorchTrainer",
            "backend": "hpctrain.TorchConfig",
            "fingerprint": "1",
            "digests": DIGESTS,
            "settings": SETTINGS,
            "worker": b"",
            "executor": b"",
            **changes,
        }
    )


SAME = make_spec()
OTHER = make_spec(fingerprint="2", digests={**DIGESTS, "train_loop_config": "c2"})


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path / "run")


def write_run(paths: RunPaths, state: str, **changes: Any) -> None:
    """Write by hand what an executor of this process would have left."""
    paths.root.mkdir()
    plan = {
        "trainer": SAME.trainer,
        "backend": SAME.backend,
        "fingerprint": SAME.fingerprint,
        "digests": DIGESTS,
    }
    paths.plan.write_text(json.dumps(plan))
    status = {
        "name": "run",
        "state": state,
        "launcher": "local",
        "nodes": [],
        "owner_host": socket.gethostname(),
        "owner_pid": os.getpid(),
        "owner_start": process_start_time(os.getpid()),
        "updated_at": time.time(),
        **changes,
    }
    paths.status.write_text(json.dumps(status))


def decide_on_existing(
    paths: RunPaths,
    spec: RunSpec,
    job_is_alive: Callable[[str], bool | None],
    policy: ExistingPolicy = "auto",
) -> tuple[Existing, list[str]]:
    life = LifeTest(paths, job_is_alive, silence_s=0.2)
    return existing.decide_on_existing(paths, spec, life, policy)


def a_dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def never_asked(job_id: str) -> bool:
    raise AssertionError(f"asked for job {job_id}")


def test_a_run_that_is_not_there_is_new(paths: RunPaths):
    assert decide_on_existing(paths, SAME, never_asked) == (Existing.NEW, [])
    paths.root.mkdir()
    assert decide_on_existing(paths, SAME, never_asked) == (Existing.NEW, [])


@pytest.mark.parametrize("state", ["starting", "running"])
def test_a_live_run_is_followed_by_the_same_request(paths: RunPaths, state: str):
    write_run(paths, state)
    assert decide_on_existing(paths, SAME, never_asked) == (Existing.FOLLOW, [])


def test_a_live_run_is_not_disturbed_by_another_request(paths: RunPaths):
    write_run(paths, "running")
    message = (
        rf"run 'run' in .* is running \(process {os.getpid()} on .*\), and this fit\(\) asks for "
        rf"something else:\n  train_loop_config\nChoose another .* hpctrain cancel {paths.root}"
    )
    with pytest.raises(ConfigError, match=message):
        decide_on_existing(paths, OTHER, never_asked)


@pytest.mark.parametrize("state", ["submitted", "starting", "running"])
def test_a_job_that_slurm_knows_is_live(paths: RunPaths, state: str):
    asked = []

    def is_alive(job_id: str) -> bool:
        asked.append(job_id)
        return True

    write_run(paths, state, launcher="slurm", job_id="4711", owner_pid=0)
    assert decide_on_existing(paths, SAME, is_alive) == (Existing.FOLLOW, [])
    assert asked == ["4711"]
    with pytest.raises(ConfigError, match=r"is running \(job 4711\)"):
        decide_on_existing(paths, OTHER, is_alive)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"owner_pid": a_dead_pid()}, id="its process is gone"),
        pytest.param({"owner_start": 1}, id="its pid belongs to another process now"),
        pytest.param({"owner_host": "elsewhere"}, id="silent on another host"),
        pytest.param({"launcher": "slurm", "job_id": "4711"}, id="Slurm has forgotten its job"),
        pytest.param({"launcher": "slurm", "job_id": None}, id="it was never submitted"),
    ],
)
def test_an_interrupted_run_is_resumed(paths: RunPaths, changes: dict[str, Any]):
    write_run(paths, "running", **changes)
    assert decide_on_existing(paths, SAME, lambda _: False) == (Existing.RESUME, [])
    assert decide_on_existing(paths, OTHER, lambda _: False) == (
        Existing.RESUME,
        ["train_loop_config"],
    )


@pytest.mark.parametrize("state", ["failed", "stopped"])
def test_a_run_that_failed_or_was_stopped_is_resumed_and_what_changed_is_said(
    paths: RunPaths, state: str
):
    write_run(paths, state)
    assert decide_on_existing(paths, SAME, never_asked) == (Existing.RESUME, [])
    assert decide_on_existing(paths, OTHER, never_asked) == (
        Existing.RESUME,
        ["train_loop_config"],
    )


@pytest.mark.parametrize(
    ("what", "other"), [("trainer", "hpctrain.XGBoostTrainer"), ("backend", "hpctrain.JaxConfig")]
)
def test_a_run_of_another_trainer_or_backend_is_not_resumed(paths: RunPaths, what: str, other: str):
    write_run(paths, "failed")
    spec = make_spec(fingerprint="2", **{what: other})
    message = rf"belongs to {what} hpctrain\..*, and this fit\(\) has {other}\. Choose another"
    with pytest.raises(ConfigError, match=message):
        decide_on_existing(paths, spec, never_asked)


def test_a_finished_run_is_returned_to_the_same_request(paths: RunPaths):
    write_run(paths, "finished")
    assert decide_on_existing(paths, SAME, never_asked) == (Existing.FINISHED, [])


def test_a_finished_run_is_not_overwritten_by_another_request(paths: RunPaths):
    write_run(paths, "finished")
    message = (
        r"is finished, and this fit\(\) asks for something else:\n  train_loop_config\n"
        r"To keep it, choose another .*resume_from_checkpoint=.*\nOr: existing='restart' "
    )
    with pytest.raises(ConfigError, match=message):
        decide_on_existing(paths, OTHER, never_asked)


def test_a_finished_run_goes_on_with_another_request_where_that_is_wanted(paths: RunPaths):
    write_run(paths, "finished")
    assert decide_on_existing(paths, SAME, never_asked, "resume") == (Existing.FINISHED, [])
    assert decide_on_existing(paths, OTHER, never_asked, "resume") == (
        Existing.RESUME,
        ["train_loop_config"],
    )


@pytest.mark.parametrize("state", ["finished", "failed", "stopped"])
@pytest.mark.parametrize("spec", [SAME, make_spec(trainer="hpctrain.Other")])
def test_a_run_that_is_over_is_begun_anew_where_that_is_wanted(
    paths: RunPaths, state: str, spec: RunSpec
):
    assert decide_on_existing(paths, spec, never_asked, "restart") == (Existing.NEW, [])
    write_run(paths, state)
    assert decide_on_existing(paths, spec, never_asked, "restart")[0] is Existing.RESTART


@pytest.mark.parametrize("spec", [SAME, OTHER])
def test_a_live_run_is_not_begun_anew(paths: RunPaths, spec: RunSpec):
    write_run(paths, "running")
    message = r"is running \(process .*\), and only a run that is over can be begun anew"
    with pytest.raises(ConfigError, match=message):
        decide_on_existing(paths, spec, never_asked, "restart")


@pytest.mark.parametrize("state", ["running", "finished", "stopped"])
def test_any_run_is_an_error_where_that_is_wanted(paths: RunPaths, state: str):
    assert decide_on_existing(paths, SAME, never_asked, "error") == (Existing.NEW, [])
    write_run(paths, state)
    with pytest.raises(ConfigError, match=rf"is there already \({state}\), and .*'error'"):
        decide_on_existing(paths, SAME, never_asked, "error")


@pytest.mark.parametrize("policy", EXISTING_POLICIES)
def test_a_job_that_slurm_starts_again_goes_on_whatever_was_edited_or_asked_for(
    paths: RunPaths, policy: ExistingPolicy, monkeypatch: pytest.MonkeyPatch
):
    write_run(paths, "finished")
    append_event(paths, "fit", launcher="allocation", job_id="7", continues=False)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    edited = make_spec(digests={**DIGESTS, MODULES: "2"}, modules={"model.py": "2"})
    paths.plan.write_text(
        json.dumps({**json.loads(paths.plan.read_text()), "digests": {**DIGESTS, MODULES: "1"}})
    )
    expected = (Existing.FINISHED, ["model.py: not used before"])
    assert decide_on_existing(paths, edited, never_asked, policy) == expected
    # Another job does not.
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    with contextlib.suppress(ConfigError):
        assert decide_on_existing(paths, edited, never_asked, policy) != expected


def test_a_run_of_an_older_version_lacks_nothing(paths: RunPaths):
    write_run(paths, "finished")
    newer = make_spec(
        digests={**DIGESTS, MODULES: "1", "stop": "2"},
        modules={"model.py": "1"},
        values={"stop['loss']": "1"},
    )
    assert decide_on_existing(paths, newer, never_asked) == (Existing.FINISHED, [])


def test_values_and_files_that_differ_are_named(paths: RunPaths):
    write_run(paths, "failed")
    before = make_spec(values={"train_loop_config['lr']": "0.1", "train_loop_config['n']": "1"})
    paths.spec.write_bytes(before.to_bytes())
    plan = json.loads(paths.plan.read_text())
    plan["digests"][MODULES], plan["modules"] = "1", {"a.py": "1", "b.py": "1"}
    paths.plan.write_text(json.dumps(plan))
    now = make_spec(
        digests={**DIGESTS, "train_loop_config": "c2", MODULES: "2"},
        values={"train_loop_config['lr']": "0.2", "train_loop_config['n']": "1"},
        modules={"a.py": "2", "c.py": "1"},
    )
    said = [
        "train_loop_config['lr']: 0.1, now 0.2",
        "a.py: edited",
        "c.py: not used before",
        "b.py: not used any more",
    ]
    assert decide_on_existing(paths, now, never_asked) == (Existing.RESUME, said)
    # What is not this user's own is not opened, nor what is damaged.
    paths.spec.write_bytes(b"damaged")
    assert decide_on_existing(paths, now, never_asked)[1] == ["train_loop_config", *said[1:]]
