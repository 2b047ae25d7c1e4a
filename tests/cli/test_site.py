"""``hpctrain site probe``: on virtual clusters, and where there is no Slurm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hpctrain.cli.main import app
from hpctrain.plan.site import load_site
from hpctrain.testing.slurm import ClusterSpec, VirtualCluster
from tests.clusters import own_cluster
from tests.slurm.test_site_profile import DATE, GOLDEN, LARGE

SCRIPT = """
import sys

from hpctrain import DataParallelTrainer, ScalingConfig


def train():
    raise AssertionError("nothing is trained")


if __name__ == "__main__":
    DataParallelTrainer(
        train, scaling_config=ScalingConfig(num_workers=2, use_gpu="gpu" in sys.argv)
    ).fit()
"""


def lines_of(output: str) -> set[str]:
    return {line for line in output.splitlines() if line.startswith("#SBATCH")}


@pytest.fixture
def on(login: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The login node of a cluster, in a shell with modules."""
    monkeypatch.setenv("LOADEDMODULES", "gcc/12.2:it's \\ odd")
    (login.path / "job.py").write_text(SCRIPT)
    return login


@pytest.mark.parametrize("columns", ["80", "120"])
def test_a_profile_is_toml_which_no_terminal_wraps(
    columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its text is that of the golden file of tests/slurm, whatever the width.
    monkeypatch.setattr("hpctrain.slurm.site_facts.query_site", lambda partition: LARGE)
    monkeypatch.setattr("time.strftime", lambda _: DATE)
    ended = CliRunner().invoke(app, ["site", "probe"], env={"COLUMNS": columns})
    assert ended.exit_code == 0, ended.stderr
    assert ended.stdout == (GOLDEN / "site-gpu.toml").read_text()
    assert max(map(len, ended.stdout.splitlines())) > 80


@pytest.mark.slurm
@pytest.mark.parametrize("resource", ["cpu", "gpu"])
def test_a_profile_is_written_and_used_by_the_next_submission(on: Any, resource: str) -> None:
    ended = on("site", "probe", "--output", "my site.toml")
    assert ended.returncode == 0, ended.stderr
    path = on.path / "my site.toml"
    assert f"hpctrain: wrote {path}\n" in ended.stderr
    assert f"SlurmConfig(site='{path}'), or --site '{path}'" in ended.stderr
    site = load_site(str(path))
    assert (site.cpus_per_node, site.gpus_per_node, site.cpus_per_gpu) == (4, 4, 1)
    assert site.directives == {"partition": "main"}
    assert site.setup == ("module load gcc/12.2", "module load 'it'\"'\"'s \\ odd'")
    shown = on("submit", "--dry-run", "--site", str(path), "job.py", resource)
    assert shown.returncode == 0, shown.stderr
    assert "#SBATCH --partition=main" in lines_of(shown.stdout)
    assert ("#SBATCH --gpus-per-node=2" in lines_of(shown.stdout)) is (resource == "gpu")
    assert set(site.setup) <= set(shown.stdout.splitlines())


@pytest.mark.slurm
def test_a_job_that_has_the_profile_looks_at_nodes(on: Any, virtual_slurm: Any) -> None:
    # Its nodes may have no command `module`; the batch script goes on, as on a cluster.
    ended = on("site", "probe", "--job", "-p", "short")
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"hpctrain: job \d+ looks at 2 of the nodes", ended.stderr)
    (on.path / "seen.toml").write_text(ended.stdout)
    site = load_site(str(on.path / "seen.toml"))
    assert (site.mpi, site.directives) == ("auto", {"partition": "short"})
    assert "# seen by a job: Slurm gave it GPUs" in ended.stdout
    assert re.search(r"# seen by a job: \S.* connected two ranks\nmpi = ", ended.stdout)
    assert re.search(r"^# Network interfaces: \w.*, seen by a job\.$", ended.stdout, re.MULTILINE)
    # The job is over, and has left nothing.
    assert not on.run_dir().parent.exists()
    left = virtual_slurm.run_on("head", ["squeue", "--noheader", "--name=hpctrain-doctor"])
    assert left.stdout.strip() == ""


@pytest.mark.slurm
def test_what_cannot_be_probed_is_refused_before_anything_is_written(on: Any) -> None:
    (on.path / "there.toml").write_text("# mine\n")
    (on.path / "folder.toml").mkdir()
    for words, code, message in (
        (("-o", "there.toml"), 2, "there.toml exists. Choose another file, or"),
        (("-o", "folder.toml", "--force"), 2, "folder.toml is a directory"),
        (("-o", "site.txt"), 2, "Use site.toml"),
        (("-o", "no/site.toml"), 2, "there is no directory no"),
        (("-p", "gone"), 2, "--partition gone: this cluster has main"),
        (("-A", "physics"), 2, "Add --job, or leave them out"),
        (("--job", "-p", "down"), 2, "partition down is down"),
    ):
        ended = on("site", "probe", *words)
        assert (ended.returncode, ended.stdout) == (code, ""), ended.stderr
        assert message in ended.stderr
    assert (on.path / "there.toml").read_text() == "# mine\n"
    ended = on("site", "probe", "-o", "there.toml", "--force")
    assert ended.returncode == 0, ended.stderr
    assert load_site(str(on.path / "there.toml")).cpus_per_node == 4


def test_without_slurm_it_says_where_to_run_it(
    workplace: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = workplace("site", "probe", "-o", "site.toml")
    assert ended.returncode == 3
    assert ended.stderr.startswith("hpctrain: scontrol is not on PATH")
    assert "on a login node" in ended.stderr
    assert not (workplace.path / "site.toml").exists()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SLURM_JOB_ID", "7", "this is inside job 7"),
        ("HPCTRAIN_LAUNCHER", "local", "HPCTRAIN_LAUNCHER=local. Unset it"),
    ],
)
def test_a_job_is_submitted_only_where_runs_become_jobs(
    name: str, value: str, message: str, workplace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    ended = workplace("site", "probe", "--job")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert message in ended.stderr


@pytest.fixture(scope="module")
def accounted() -> Iterator[VirtualCluster]:
    """A cluster with accounting, and without GPUs."""
    spec = ClusterSpec(num_nodes=1, cpus_per_node=2, gpus_per_node=0, accounting=True)
    with own_cluster(spec) as cluster:
        yield cluster


@pytest.mark.slurm
def test_a_cluster_with_accounts_and_without_gpus(accounted: Any, workplace: Any) -> None:
    on = workplace
    on.prefix = accounted.login_command([], cwd=on.path)
    (on.path / "job.py").write_text(SCRIPT)
    ended = on("site", "probe", "-o", "site.toml")
    assert ended.returncode == 0, ended.stderr
    text = (on.path / "site.toml").read_text()
    assert "# Account: needed, since AccountingStorageEnforce=associations,limits,qos" in text
    site = load_site(str(on.path / "site.toml"))
    assert (site.cpus_per_node, site.gpus_per_node) == (2, None)
    shown = on("submit", "--dry-run", "--site", "site.toml", "-A", "hpctrain", "job.py")
    assert shown.returncode == 0, shown.stderr
    assert {"#SBATCH --account=hpctrain", "#SBATCH --nodes=1"} <= lines_of(shown.stdout)
    refused = on("site", "probe", "--job", "-A", "gone")
    assert refused.returncode == 3
    assert "Slurm refused the job" in refused.stderr
    # On the one node.
    seen = on("site", "probe", "--job", "-A", "hpctrain")
    assert seen.returncode == 0, seen.stderr
    assert "gpu_request" not in seen.stdout
