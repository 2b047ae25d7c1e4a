from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpctrain.cli.main import app

# A folder of the repository that is mapped into the package when it is installed.
pytest.importorskip("hpctrain.slurm_templates")


def test_templates_and_sites_are_listed_with_what_they_are_for() -> None:
    result = CliRunner().invoke(app, ["template", "--list"])
    assert result.exit_code == 0, result.output
    assert "  train.sbatch" in result.stdout
    assert "site profiles" in result.stdout


def test_a_template_is_filled_in_with_slurms_own_letters() -> None:
    args = ["template", "train.sbatch", "mine.py", "--workers", "4", "-N", "2"]
    result = CliRunner().invoke(app, [*args, "-p", "long", "-A", "proj", "-t", "2:00:00"])
    assert result.exit_code == 0, result.output
    for line in ("--partition=long", "--account=proj", "--time=2:00:00", "--nodes=2"):
        assert f"#SBATCH {line}" in result.stdout.splitlines()
    assert "mine.py" in result.stdout


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    output = str(tmp_path / "job.sbatch")
    assert (
        CliRunner().invoke(app, ["template", "train.sbatch", "-N", "1", "-o", output]).exit_code
        == 0
    )
    result = CliRunner().invoke(app, ["template", "train.sbatch", "-N", "1", "-o", output])
    assert result.exit_code == 2
    assert "exists. Choose another file" in result.stderr


def test_an_unknown_template_is_a_usage_error() -> None:
    result = CliRunner().invoke(app, ["template", "nothing"])
    assert result.exit_code == 2
    assert "train.sbatch" in result.stderr
