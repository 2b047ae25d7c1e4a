"""Ctrl-C in the second of three ``fit()`` of a script, and the same command again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from hpctrain import RunStoppedError
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import read_status
from hpctrain.testing.slurm import VirtualCluster
from hpctrain.uncaught import INTERRUPTED
from tests.terminal import press

TIMEOUT_S = 120.0
MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))
SCRIPT = """
import os, sys, time
import hpctrain
from hpctrain import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig

def train(config):
    checkpoint = hpctrain.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint else 0
    save = hpctrain.get_context().get_world_rank() == 0
    while step < 3:
        step += 1
        hpctrain.report({"step": step}, Checkpoint.from_dict({"step": step}) if save else None)
        deadline = time.monotonic() + 100
        while config["name"] == "two" and step == 2 and not os.path.exists("go"):
            assert time.monotonic() < deadline
            time.sleep(0.1)

for name in ("one", "two", "three"):
    result = DataParallelTrainer(
        train,
        train_loop_config={"name": name},
        scaling_config=ScalingConfig(num_workers=int(sys.argv[1])),
        run_config=RunConfig(name=name, storage_path="runs", verbose=0),
    ).fit()
    # At once: of two ranks one may print between the text and the end of line of the other.
    said = f"{name}: step {result.metrics['step']}, attempts {len(result.attempts)}"
    sys.stdout.write(said + os.linesep)
    sys.stdout.flush()
"""
RESUMES = "interrupted; fit() with name='two' and the same storage_path resumes from"
BY_SIGNAL = 128 + signal.SIGINT


def press_ctrl_c(folder: Path, argv: list[str], environ: Mapping[str, str]) -> tuple[str, int]:
    """Run a command in a terminal, and press Ctrl-C in its second fit."""
    run = RunPaths(folder / "runs" / "two")

    def has_saved() -> bool:
        status = read_status(run)
        return status is not None and status.checkpoint == "000002"

    shown, code = press(
        b"\x03", argv, once=has_saved, cwd=folder, environ=environ, timeout_s=TIMEOUT_S
    )
    return shown, code if code >= 0 else 128 - code


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("home", "code"),
    [
        ("laptop", BY_SIGNAL),
        ("mpiexec", RunStoppedError.exit_code),
        pytest.param("interpreter", BY_SIGNAL, marks=pytest.mark.long),
        pytest.param("hpctrain run", INTERRUPTED, marks=pytest.mark.long),
        pytest.param("login node", BY_SIGNAL, marks=pytest.mark.slurm),
        # Slurm's own: 0 for a command that Ctrl-C has ended.
        pytest.param("salloc", 0, marks=[pytest.mark.slurm, pytest.mark.long]),
    ],
)
def test_the_second_of_three_fits_is_interrupted_and_the_same_command_goes_on(
    home: str, code: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    is_local = home in ("laptop", "hpctrain run")
    environ = {**os.environ, "HPCTRAIN_LAUNCHER": "local" if is_local else ""}
    if home in ("login node", "salloc"):
        cluster: VirtualCluster = request.getfixturevalue("virtual_slurm")
        environ.update(cluster.environ)
    command = [sys.executable, "train.py", "0" if home == "interpreter" else "2"]
    argv = {
        "mpiexec": [MPIEXEC, "-n", "2", *command],
        "hpctrain run": [sys.executable, "-m", "hpctrain.cli", "run", *command[1:]],
        "salloc": ["salloc", "--quiet", "--ntasks=2", *command],
    }.get(home, command)
    shown, ended = press_ctrl_c(tmp_path, argv, environ)
    saved = f"{tmp_path}/runs/two/checkpoints/000002"
    assert ended == code, shown
    assert shown.startswith("one: step 3, attempts 1\n"), shown
    assert "Traceback" not in shown
    if home == "mpiexec":
        (line,) = [line for line in shown.splitlines() if "RunStoppedError" in line]
        assert line == (
            "hpctrain.errors.RunStoppedError: the run was interrupted (Ctrl-C) after report 2; "
            f"fit() with name='two' and the same storage_path resumes from {saved}."
        )
    elif home == "login node":
        assert "hpctrain: detached from two, which goes on." in shown
    else:
        assert shown.splitlines()[1:] == ["^C", f"hpctrain: {RESUMES} {saved}"]
    assert not (tmp_path / "runs" / "three").exists()

    (tmp_path / "go").touch()
    again = subprocess.run(
        argv, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert again.returncode == 0, again.stderr
    attempts = 1 if home == "login node" else 2
    results = re.findall(r"^\w+: step.*$", again.stdout, re.MULTILINE)
    assert list(dict.fromkeys(results)) == [
        "one: step 3, attempts 1",
        f"two: step 3, attempts {attempts}",
        "three: step 3, attempts 1",
    ]
