"""What is used of submitit, and not promised by it: the reason of the bound in pyproject.toml."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from hpctrain.slurm.executor import ScriptExecutor


def test_submitit_is_bounded_to_the_versions_that_this_was_tried_with():
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '"submitit>=1.5.3,<1.6",' in project
    assert importlib.metadata.version("submitit").startswith("1.5.")


def test_a_script_has_no_srun_and_nothing_of_the_defaults_of_submitit(tmp_path: Path):
    executor = ScriptExecutor(tmp_path / "%j")
    executor.update_parameters(
        job_name="run", time=None, wckey=None, stderr_to_stdout=True, signal_delay_s=7,
        additional_parameters={"partition": "gpu", "exclusive": True}, use_srun=False,
        setup=["before"], teardown=["after"],
    )  # fmt: skip
    text = executor.render("command --of=mine")
    assert [line for line in text.splitlines() if line] == [
        "#!/bin/bash",
        "# Parameters",
        "#SBATCH --exclusive",
        "#SBATCH --job-name=run",
        "#SBATCH --nodes=1",
        "#SBATCH --open-mode=append",
        f"#SBATCH --output={tmp_path}/%j/%j_0_log.out",
        "#SBATCH --partition=gpu",
        "#SBATCH --signal=USR2@7",
        "# setup",
        "before",
        "# command",
        "export SUBMITIT_EXECUTOR=slurm",
        "command --of=mine",
        "# teardown",
        "after",
    ]
