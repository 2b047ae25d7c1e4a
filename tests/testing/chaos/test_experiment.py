"""The harness finds what is wrong: it would be worth nothing if every run passed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain import ConfigError
from hpctrain.testing.chaos.experiment import Experiment
from hpctrain.testing.chaos.fault import Point
from hpctrain.testing.chaos.kinds import KINDS
from hpctrain.testing.chaos.leftovers import can_mount
from hpctrain.testing.chaos.trial import Script

MODEL = Path(__file__).parents[2] / "chaos" / "numpy_model.py"

pytestmark = pytest.mark.mpi


def begin(tmp_path: Path, path: Path, *args: str) -> Experiment:
    script = Script(path=path, args=args, cwd=tmp_path)
    return Experiment.begin(tmp_path / "trials", script=script, timeout_s=60)


def at_report(rank: int, number: int) -> Point:
    return Point(role=f"rank-{rank}", op="report", path=f"report-{number}", moment="before")


def test_a_script_that_does_not_resume_its_random_state_is_found(tmp_path: Path) -> None:
    experiment = begin(tmp_path, MODEL, "--workers", "2", "--forgetful")

    comparison = experiment.disturb([KINDS["kill-rank"].at(at_report(1, 5))])

    assert not comparison.passed
    assert any("report 4: loss is" in problem for problem in comparison.problems), (
        comparison.explain()
    )
    assert any("the last checkpoint differs in" in problem for problem in comparison.problems)
    assert "kill-rank: rank-1 before report-5" in comparison.explain()


def test_a_fault_that_never_comes_about_is_not_a_success(tmp_path: Path) -> None:
    experiment = begin(tmp_path, MODEL, "--workers", "2")

    comparison = experiment.disturb([KINDS["kill-rank"].at(at_report(1, 99))])

    assert comparison.problems == ("no fault came about: the run never came by such a point",)
    assert "The undisturbed run took" not in comparison.explain()


def test_a_run_that_restarts_undisturbed_is_said_where_a_fault_never_comes_about(
    tmp_path: Path,
) -> None:
    """Its points may be of the second attempt, to which no other run comes."""
    experiment = begin(tmp_path, MODEL, "--workers", "2")
    (run,) = experiment.undisturbed.outcome.values()
    twice = replace(run, first_reports=[0, 3])
    undisturbed = replace(experiment.undisturbed, outcome={"run": twice})
    said = replace(experiment, undisturbed=undisturbed).disturb(
        [KINDS["kill-rank"].at(at_report(1, 99))]
    )
    assert "The undisturbed run took 2 attempts." in said.explain()
    assert f"The end of {undisturbed.log}" in said.explain()


def test_a_run_that_nobody_can_save_is_a_failure(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, hpctrain\n"
        "from hpctrain import DataParallelTrainer, ScalingConfig\n"
        "def train():\n"
        "    hpctrain.report({'attempt': hpctrain.get_context().world.attempt})\n"
        "    assert hpctrain.get_context().world.attempt == 1\n"
        "if __name__ == '__main__':\n"
        "    DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=1)).fit()\n"
    )
    experiment = begin(tmp_path, script)

    comparison = experiment.disturb([KINDS["kill-rank"].at(at_report(0, 1))])

    assert any("it is failed, not finished" in problem for problem in comparison.problems)
    assert comparison.result.starts > 1


def test_an_attempt_too_many_and_what_is_left_behind_are_found(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import tempfile, hpctrain\n"
        "from pathlib import Path\n"
        "from hpctrain import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig\n"
        "def train():\n"
        "    if hpctrain.get_context().world.attempt == 2:\n"
        "        Path(tempfile.gettempdir(), 'hpctrain-left').touch()\n"
        "        Path('/dev/shm/mpich_shm_0_0').touch()\n"
        "        raise RuntimeError('an MPI library that does not start')\n"
        "    hpctrain.report({'step': 1})\n"
        "if __name__ == '__main__':\n"
        "    DataParallelTrainer(\n"
        "        train,\n"
        "        scaling_config=ScalingConfig(num_workers=1),\n"
        "        run_config=RunConfig(failure_config=FailureConfig(max_failures=3)),\n"
        "    ).fit()\n"
    )
    experiment = begin(tmp_path, script)

    comparison = experiment.disturb([KINDS["kill-rank"].at(at_report(0, 1))])

    told = "\n".join(comparison.problems)
    assert "it took 3 attempts, where 2 are enough" in told
    assert re.search(r"left behind: \S+/hpctrain-left", told)
    if can_mount():
        assert re.search(r"left behind: \S+/mpich_shm_0_0", told)
        assert not Path("/dev/shm/mpich_shm_0_0").exists(), "it has a /dev/shm of its own"
    else:
        Path("/dev/shm/mpich_shm_0_0").unlink()


def test_a_script_that_is_never_twice_the_same_is_refused_with_the_metric(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import time, hpctrain\n"
        "from hpctrain import DataParallelTrainer, ScalingConfig\n"
        "def train():\n"
        "    hpctrain.report({'seconds': time.time()})\n"
        "if __name__ == '__main__':\n"
        "    DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=1)).fit()\n"
    )
    experiment = begin(tmp_path, script)

    with pytest.raises(ConfigError, match=r"report 1: seconds is .*--ignore NAME"):
        experiment.check_repeatable()


def test_a_script_that_does_not_finish_is_refused_with_what_it_said(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('no data in /scratch')\n")

    with pytest.raises(ConfigError, match=r"(?s)no run of it is finished.*no data in /scratch"):
        begin(tmp_path, script)
