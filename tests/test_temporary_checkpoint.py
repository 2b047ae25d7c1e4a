"""Whose temporary checkpoints may be removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain import Checkpoint
from hpctrain.temporary_checkpoint import (
    remove_dead_checkpoints,
    remove_temporary_checkpoints,
    temporary_owner,
    temporary_prefix,
)

MAKE = """
import os, sys
from hpctrain import Checkpoint
checkpoint = Checkpoint.from_dict({"a": 1})
print(checkpoint.path, checkpoint.to_directory(), flush=True)
sys.stdin.read(1)
os._exit(0)
"""
TRAIN = """
import sys
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig
DataParallelTrainer(
    print,
    train_loop_config={},
    scaling_config=ScalingConfig(num_workers=int(sys.argv[2])),
    run_config=RunConfig(storage_path=sys.argv[1], name="run"),
).fit()
"""
MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))
NOBODY = 65534


class Maker:
    """A process that makes a temporary checkpoint, and a copy of it."""

    def __init__(self, tmp: Path, *command: str) -> None:
        self._process = subprocess.Popen(
            [*command, sys.executable, "-c", MAKE],
            env={**os.environ, "TMPDIR": str(tmp)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.checkpoint, self.copy = map(Path, self._process.stdout.readline().split())

    @property
    def owner(self) -> str:
        name = self.checkpoint.name.removeprefix("hpctrain-checkpoint-")
        return name.rpartition("-")[0]

    def end(self) -> None:
        self._process.communicate("x")


def test_the_checkpoint_of_a_dead_process_is_removed_and_its_copy_stays(tmp_path: Path) -> None:
    maker = Maker(tmp_path)
    remove_dead_checkpoints(str(tmp_path))
    assert maker.checkpoint.exists()
    maker.end()
    assert maker.checkpoint.exists()
    remove_dead_checkpoints(str(tmp_path))
    assert not maker.checkpoint.exists()
    remove_temporary_checkpoints(str(tmp_path), maker.owner)
    assert Checkpoint(maker.copy).to_dict() == {"a": 1}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a namespace")
def test_the_checkpoint_of_a_process_in_a_container_is_left_alone(tmp_path: Path) -> None:
    unshare = ("unshare", "--pid", "--fork", "--mount-proc")
    maker = Maker(tmp_path, *unshare)
    # It is alive; its number, 1 or 2, is that of another process here, or of none.
    numbered = [maker.checkpoint]
    for pid in range(2, 50):
        if not Path(f"/proc/{pid}").exists():
            _, _, space = maker.checkpoint.name.removeprefix("hpctrain-checkpoint-").partition("-")
            numbered.append(tmp_path / f"hpctrain-checkpoint-{pid}-{space}")
            numbered[-1].mkdir()
            break
    remove_dead_checkpoints(str(tmp_path))
    assert all(path.exists() for path in numbered)
    maker.end()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_the_checkpoint_of_another_user_is_left_alone(tmp_path: Path) -> None:
    maker = Maker(tmp_path)
    maker.end()
    os.chown(maker.checkpoint, NOBODY, NOBODY)
    remove_dead_checkpoints(str(tmp_path))
    assert maker.checkpoint.exists()


def test_the_checkpoints_of_one_process_are_removed_and_no_others(tmp_path: Path) -> None:
    pid, _, space = temporary_owner().partition("-")
    mine, longer, link, of_other_host = (
        tmp_path / f"{temporary_prefix()}abc",
        tmp_path / f"hpctrain-checkpoint-{pid}0-{space}-abc",
        tmp_path / f"{temporary_prefix()}link",
        tmp_path / f"hpctrain-checkpoint-{pid}-0{space[1:]}0-abc",
    )
    mine.mkdir()
    longer.mkdir()
    of_other_host.mkdir()
    link.symlink_to(longer)
    remove_temporary_checkpoints(str(tmp_path), temporary_owner())
    assert not mine.exists()
    assert of_other_host.exists(), "which may share the directory"
    assert longer.exists()


def test_a_directory_that_cannot_be_listed_is_left_alone(tmp_path: Path) -> None:
    remove_dead_checkpoints(str(tmp_path / "not there"))


@pytest.mark.mpi
@pytest.mark.parametrize(("start", "workers"), [([], 0), ([MPIEXEC, "-n", "2"], 2)])
def test_a_start_without_an_agent_removes_the_checkpoints_of_the_dead(
    start: list[str], workers: int, tmp_path: Path
) -> None:
    tmp, script = tmp_path / "tmp", tmp_path / "train.py"
    tmp.mkdir()
    script.write_text(TRAIN)
    maker = Maker(tmp)
    maker.end()
    subprocess.run(
        [*start, sys.executable, str(script), str(tmp_path), str(workers)],
        env={**os.environ, "TMPDIR": str(tmp)},
        check=True,
        timeout=100,
    )
    assert not maker.checkpoint.exists()
    assert maker.copy.exists()
