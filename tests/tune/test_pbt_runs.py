"""Population Based Training of real runs: a trial goes on from the checkpoint of another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Checkpoint, Result
from hpctrain.rundir.bulk import clone as reflink
from hpctrain.tune.ledger import SweepPaths, read_record
from tests.waiting import wait_until

TIMEOUT_S = 120.0
# The state is the list of all steps that have led to it: who made them, and with which rate.
SCRIPT = """
    import sys, time
    from pathlib import Path
    import hpctrain
    from hpctrain import Checkpoint, RunConfig, tune
    from hpctrain.tune.schedulers import PopulationBasedTraining

    def train(config):
        own, folder = hpctrain.get_context().get_trial_name(), Path(config["folder"])
        checkpoint = hpctrain.get_checkpoint()
        state = [] if checkpoint is None else checkpoint.to_dict()["state"]
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline:
            state.append([own, config["lr"]])
            saved = Checkpoint.from_dict({"state": state})
            # As a training function that writes its files itself under a umask for groups.
            with hpctrain.checkpoint_dir() as directory:
                saved.to_directory(directory)
                (Path(directory) / "weights").write_text(own)
                (Path(directory) / "weights").chmod(0o664)
                hpctrain.report({"m": config["lr"]}, Checkpoint(directory))
            if any(who != own for who, _ in state):
                (folder / "gate").touch()
            if (folder / "gate").exists():
                return
            if (folder / "held").exists() and config["lr"] == 1:
                hold(folder, len(state))
            time.sleep(0.05)

    def hold(folder, steps):
        # The first time until the other one is surely compared, then until this one is.
        other, until = folder / "s/trial_00001/checkpoints", time.monotonic() + 20
        while (folder / "held").exists() and time.monotonic() < until:
            is_decided = "trial-perturbed" in (folder / "s/tune.jsonl").read_text()
            if steps == 1 and other.exists() and len(list(other.glob("0*"))) > 9:
                return
            until += 1000 * is_decided
            time.sleep(0.02)

    if __name__ == "__main__":
        folder = Path(sys.argv[1])
        if tune.Tuner.can_restore(folder / "s"):
            tuner = tune.Tuner.restore(folder / "s", train)
        else:
            tuner = tune.Tuner(
                train,
                param_space={"lr": tune.grid_search([1, 4.0]), "folder": str(folder)},
                run_config=RunConfig(storage_path=folder, name="s"),
                tune_config=tune.TuneConfig(
                    metric="m",
                    mode="max",
                    max_concurrent_trials=2,
                    scheduler=PopulationBasedTraining(
                        time_attr="training_iteration",
                        perturbation_interval=1,
                        quantile_fraction=0.5,
                        hyperparam_mutations={"lr": [0.5, 4.0, 8.0]},
                        resample_probability=0,
                    ),
                ),
            )
        grid = tuner.fit()
        print("ENDED", grid.num_terminated, grid.num_errors)
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """Start the script above, and end what it has left."""
    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    started: list[subprocess.Popen[str]] = []

    def run() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(script), str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
        )
        started.append(process)
        return process

    yield run
    (tmp_path / "gate").touch()
    (tmp_path / "held").unlink(missing_ok=True)
    for process in started:
        process.kill()
        process.communicate()


def events(root: Path, kind: str) -> list[dict[str, Any]]:
    path = root / "s/tune.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def state_of(run: Path, name: str = "") -> list[Any]:
    checkpoints = run / "checkpoints"
    found = checkpoints / (name or max(os.listdir(checkpoints)))
    state: list[Any] = Checkpoint(found).to_dict()["state"]
    return state


def check(root: Path) -> None:
    """Check that the worst trial has gone on from the checkpoint of the best."""
    first = events(root, "trial-perturbed")[0]
    assert (first["trial"], first["donor"]) == ("trial_00000", "trial_00001")
    assert first["config"]["lr"] in (0.5, 8.0), "a neighbour of 4"
    (cloned, *_) = events(root, "trial-cloned")
    inherited = state_of(root / "s/trial_00001", first["checkpoint"])
    assert inherited == [["trial_00001", 4.0]] * first["iteration"]
    state = state_of(root / "s/trial_00000")
    assert state[: len(inherited)] == inherited
    assert state[len(inherited)] == ["trial_00000", first["config"]["lr"]]
    assert read_record(SweepPaths(root=root / "s")).trials["trial_00000"].origins
    result = Result.from_path(root / "s/trial_00000")
    assert len(result.metrics_history) > cloned["report"]
    assert [line["m"] for line in result.metrics_history[: cloned["report"]]] == [1] * cloned[
        "report"
    ], "its own reports stay"
    assert result.metrics["m"] == state[-1][1]
    clone = state_of(root / "s/trial_00000", f"{cloned['report']:06d}")
    assert clone == inherited, "it lies where the trial's own checkpoint was"
    donor = root / "s/trial_00001/checkpoints" / first["checkpoint"]
    lies = root / f"s/trial_00000/checkpoints/{cloned['report']:06d}"
    # The filesystem of the tests has no reflinks, or these would be other inodes.
    assert reflink(lies / "weights", root / "reflink") or all(
        (lies / path.name).samefile(path) for path in donor.iterdir() if path.name[0] != "."
    ), "nothing is copied"


def test_the_worst_trial_goes_on_from_the_checkpoint_of_the_best(
    start: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    tuner = start()
    said, _ = tuner.communicate(timeout=TIMEOUT_S)
    assert "ENDED 2 0" in said
    assert "trial_00000 goes on as trial_00001 after report" in said
    check(tmp_path)


def test_a_tuner_that_is_killed_before_the_clone_does_it_when_it_is_restored(
    start: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    (tmp_path / "held").touch()
    tuner = start()
    wait_until(lambda: events(tmp_path, "trial-perturbed"), process=tuner)
    tuner.kill()
    tuner.wait()
    assert not events(tmp_path, "trial-cloned")
    (tmp_path / "held").unlink()
    # It was asked to stop before the tuner died, or is asked now.
    said, _ = start().communicate(timeout=TIMEOUT_S)
    assert "ENDED 2 0" in said
    check(tmp_path)
