"""What is used of submitit, and not promised by it: the reason of the bound in pyproject.toml."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

from hpctrain.slurm.executor import ScriptExecutor, SubmissionError


@pytest.fixture
def sbatch(tmp_path: Path):
    """Return a maker of programs in the place of sbatch, which keep what they were given."""

    def make(end: str) -> list[str]:
        (tmp_path / "copy").mkdir()
        program = tmp_path / "sbatch"
        program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/argv\n{end}\n')
        program.chmod(0o755)
        return [str(program), "--hold"]

    return make


def test_submitit_is_bounded_to_the_versions_that_this_was_tried_with():
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '"submitit>=1.5.3,<1.6",' in project
    assert importlib.metadata.version("submitit").startswith("1.5.")


def test_a_script_is_submitted_as_it_is(tmp_path: Path, sbatch):
    text = "#!/bin/bash\n#SBATCH --comment='a\\\\b'\necho $HOME\n"
    stored = tmp_path / "batch.sh"
    stored.write_text(text)
    command = sbatch("echo Submitted batch job 42 on cluster here")
    assert ScriptExecutor(tmp_path / "copy", sbatch=command).submit_script(stored) == "42"
    assert (tmp_path / "argv").read_text().split() == ["--hold", str(stored)]
    assert (tmp_path / "copy" / "42_submission.sh").read_text() == text


@pytest.mark.parametrize(
    ("end", "printed", "status"),
    [
        ("echo sbatch: error: Invalid qos >&2; exit 1", "sbatch: error: Invalid qos", 1),
        ("echo 42", 'Could not make sense of sbatch output "42"', 0),
    ],
)
def test_a_refusal_says_what_sbatch_printed(tmp_path: Path, sbatch, end, printed, status):
    stored = tmp_path / "batch.sh"
    stored.write_text("#!/bin/bash\n")
    executor = ScriptExecutor(tmp_path / "copy", sbatch=sbatch(end))
    with pytest.raises(SubmissionError, match=re.escape(printed)) as refusal:
        executor.submit_script(stored)
    assert refusal.value.returncode == status


def test_a_script_has_no_srun_and_nothing_of_the_defaults_of_submitit(tmp_path: Path):
    executor = ScriptExecutor(tmp_path / "%j", sbatch=["sbatch"])
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
