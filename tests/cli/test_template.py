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


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (
            ["--workers", "4"],
            "hpctrain: --workers 4, but the number of workers per node is unknown. Give --nodes "
            "NODES or --ntasks-per-node NTASKS-PER-NODE, or a site profile with --site SITE.",
        ),
        (
            ["--workers", "4", "-N", "3", "--ntasks-per-node", "1"],
            "hpctrain: --workers 4, but --nodes 3 with --ntasks-per-node 1 is 3. Drop one of the "
            "three, or make them agree.",
        ),
        (
            ["-N", "1", "-t", "two hours"],
            "hpctrain: --time two hours: Slurm reads minutes, minutes:seconds, "
            "hours:minutes:seconds, days-hours, days-hours:minutes or days-hours:minutes:seconds.",
        ),
    ],
)
def test_errors_name_the_flags_of_the_command(args: list[str], text: str) -> None:
    result = CliRunner().invoke(app, ["template", "train.sbatch", *args])
    assert result.exit_code == 2
    assert result.stderr.split() == text.split()


def test_workers_of_a_node_decide_how_many_nodes_there_are() -> None:
    args = ["template", "train.sbatch", "--workers", "6", "--ntasks-per-node", "3"]
    assert "#SBATCH --nodes=2" in CliRunner().invoke(app, args).stdout.splitlines()
