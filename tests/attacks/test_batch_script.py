"""Text that becomes a program, or is read by others: batch script, directives, ``plan.json``."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpctrain import ConfigError, ScalingConfig, SlurmConfig
from hpctrain.plan.resources import NodeShape, place_workers
from hpctrain.plan.sbatch import make_directives
from hpctrain.plan.site import load_site
from hpctrain.plan.visibility import EXIT_INVISIBLE, process_checks, run_directory_check
from hpctrain.testing.slurm import VirtualCluster

NASTY = (
    "$(touch MARK)",
    "`touch MARK`",
    "'; touch MARK; '",
    '"; touch MARK; "',
    "a\ntouch MARK\n",
    "$HOME",
    "\\",
    "%j",
    "# two words",
)


@pytest.mark.parametrize("text", NASTY)
def test_no_part_of_a_path_is_run_by_the_script(text: str, tmp_path: Path) -> None:
    path = f"/nowhere/{text}"
    for line in (
        run_directory_check(path),
        process_checks(path, "/bin/sh")[0],
        process_checks("/", path)[1],
    ):
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == EXIT_INVISIBLE
        assert path in done.stderr
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "asked",
    [
        {"slurm": {"sbatch_args": ["--comment=a\n#SBATCH --uid=0"]}},
        {"slurm": {"sbatch_args": ["--comment=a\x1b[2K"]}},
        {"slurm": {"partition": "p\ntouch MARK"}},
        {"slurm": {"account": "a\r"}},
        {"slurm": {"constraint": "c\x1b[2J"}},
        {"slurm": {"mem": "1\n"}},
        {"slurm": {"time": "1\n2"}},
        {"accelerator_type": "a\ntouch MARK", "use_gpu": True},
        {"label_selector": {"a": "b\nc"}},
    ],
    ids=str,
)
def test_no_directive_is_two_lines(asked: dict[str, Any]) -> None:
    def directives() -> dict[str, str | None]:
        slurm = SlurmConfig(**asked.get("slurm", {}))
        scaling = ScalingConfig(num_workers=2, **{**asked, "slurm": slurm})
        placement = place_workers(scaling, NodeShape(cpus=64, gpus=4))
        return make_directives(scaling, placement, load_site("generic"), job_name="one")

    with pytest.raises(ConfigError):
        directives()


SCRIPT = """
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig

def train(config):
    pass

if __name__ == "__main__":
    slurm = SlurmConfig(setup=["export TOKEN=s3cret"], sbatch_args=["--hold"])
    DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=1, slurm=slurm),
        run_config=RunConfig(name="one", storage_path="runs"),
    ).fit()
"""


@pytest.mark.slurm
def test_what_a_setup_line_exports_is_read_by_the_owner_only(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    submit = [sys.executable, "-m", "hpctrain.cli", "submit", "train.py"]
    done = virtual_slurm.run_on("head", submit, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "one"
    try:
        holding = {
            path for path in run.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()
        }
        assert run / "slurm" / "batch.sh" in holding
        assert {stat.S_IMODE(path.stat().st_mode) for path in holding} == {0o600}
        plan = json.loads((run / "plan.json").read_text())
        assert plan["launch_plan"]["setup"] == ["not shown"]
    finally:
        cancel = [sys.executable, "-m", "hpctrain.cli", "cancel", str(run)]
        virtual_slurm.run_on("head", cancel, cwd=tmp_path)
