"""A restart is announced: who failed and how, which restart it is, and from which checkpoint."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import run_python

SCRIPT = """
import os, signal, sys, time
import hpctrain, hpctrain.collective
from hpctrain import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

def train(config):
    checkpoint = hpctrain.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint else 0
    rank, attempt = hpctrain.get_context().get_world_rank(), hpctrain.get_context().world.attempt
    while step < 5:
        step += 1
        hpctrain.collective.barrier(timeout_s=60)
        if rank == 1 and attempt <= len(config["ends"]) and step == 3:
            how = config["ends"][attempt - 1]
            if how.startswith("SIG"):
                os.kill(os.getpid(), getattr(signal, how))
            elif how == "exit":
                os._exit(7)
            else:
                raise ValueError(how)
        saved = Checkpoint.from_dict({"step": step}) if rank == 0 else None
        hpctrain.report({"step": step}, saved)

if __name__ == "__main__":
    DataParallelTrainer(
        train,
        train_loop_config={"ends": sys.argv[1:]},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="run", storage_path=".", failure_config=FailureConfig(max_failures=3)
        ),
    ).fit()
"""


def restarts(output: str) -> list[str]:
    return [line for line in output.splitlines() if "; restart " in line]


def run(*argv: str, cwd: Path) -> str:
    return run_python(*argv, cwd=cwd, environ={"HPCTRAIN_LAUNCHER": "local"}).stdout


def hpctrain(*argv: str, cwd: Path) -> str:
    return run("-m", "hpctrain.cli", *argv, cwd=cwd)


@pytest.mark.mpi
def test_the_terminal_the_status_and_the_history_name_each_failure(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    printed = run("train.py", "SIGKILL", "the loss is gone", cwd=tmp_path)
    node = os.uname().nodename
    said = [
        f"rank 1 on {node} was killed (SIGKILL); restart 1 of 3 from checkpoint 000002",
        f"rank 1 on {node} raised ValueError: the loss is gone; restart 2 of 3 from checkpoint "
        "000002",
    ]
    assert restarts(printed) == [f"hpctrain: run: {sentence}" for sentence in said]
    lines = printed.splitlines()
    # A report that was held back may come in between. An attempt may be over before it is looked
    # at: then the next thing that is shown is how it ended.
    after = lines[lines.index(f"hpctrain: run: {said[0]}") + 1 :]
    told = [line for line in after if line.startswith("hpctrain: ")]
    assert told[0] in (
        "hpctrain: run starting",
        f"hpctrain: run running attempt 2: 2 ranks on {node}",
        f"hpctrain: run: {said[1]}",
    )
    view = json.loads(hpctrain("status", "run", "-s", ".", "--json", cwd=tmp_path))
    assert view["last_restart"] == said[1]
    shown = hpctrain("history", "run", "-s", ".", cwd=tmp_path)
    assert shown.startswith("run: finished, 3 attempts, 2 restarts\n")
    flat = " ".join(shown.split())
    assert all(sentence in flat for sentence in said)
    # Whoever attaches later sees it, too.
    attached = hpctrain("attach", "run", "-s", ".", cwd=tmp_path)
    assert restarts(attached) == restarts(printed)


@pytest.mark.mpi
def test_a_checkpoint_that_was_not_committed_is_not_announced(tmp_path: Path) -> None:
    script = """
import tempfile
import hpctrain
from hpctrain import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig, UserCallback

class Seen(UserCallback):
    def after_report(self, context, metrics, checkpoint=None):
        print("callback", checkpoint, flush=True)

def train():
    hpctrain.report({"step": 1}, Checkpoint.from_dict({"step": 1}))
    with tempfile.TemporaryDirectory() as empty:
        hpctrain.report({"step": 2}, Checkpoint.from_directory(empty))

if __name__ == "__main__":
    DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(name="run", storage_path=".", callbacks=[Seen()]),
    ).fit()
"""
    (tmp_path / "train.py").write_text(script)
    ended = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env={**os.environ, "HPCTRAIN_LAUNCHER": "local"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "its directory holds no file" in ended.stderr
    assert "checkpoint 000002" not in ended.stdout
    assert "checkpoint 000001\n" in ended.stdout
    assert "callback None" in ended.stdout


@pytest.mark.slurm
def test_a_follower_on_the_login_node_announces_a_kill(virtual_slurm: Any, tmp_path: Path) -> None:
    script = SCRIPT.replace("while step < 5", "while step < 9").replace(
        "step == 3", "step in (3, 7)"
    )
    script = script.replace("            how = ", "            time.sleep(1)\n            how = ")
    (tmp_path / "train.py").write_text(
        script.replace("num_workers=2", "num_workers=2, slurm=hpctrain.SlurmConfig(nodes=2)")
    )
    environment = {**os.environ, **virtual_slurm.environ, "HPCTRAIN_LAUNCHER": ""}
    process = subprocess.Popen(
        [sys.executable, "train.py", "SIGKILL"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output, _ = process.communicate(timeout=150)
    assert process.returncode == 0, output
    (line,) = restarts(output)
    assert re.fullmatch(
        r"hpctrain: run: rank 1 on node\d was killed \(SIGKILL\); restart 1 of 3 from checkpoint "
        r"000002",
        line,
    ), output
    shown = hpctrain("history", "run", "-s", ".", cwd=tmp_path)
    assert re.search(r"^run: finished, 2 attempts, 1 restart, 1 job$", shown, re.MULTILINE), shown
    assert "was submitted" in shown
