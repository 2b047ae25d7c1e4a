"""What nodes do not see of a run is found by the first action there, and told in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from site import getsitepackages

import pytest

from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.testing.pytest_plugin import require_components
from hpctrain.testing.slurm import ClusterSpec, VirtualCluster
from tests.clusters import own_cluster

pytestmark = pytest.mark.slurm

SCRIPT = """
import sys
from hpctrain import DataParallelTrainer, HpctrainError, RunConfig, ScalingConfig, SlurmConfig

def train():
    pass

if __name__ == "__main__":
    try:
        DataParallelTrainer(
            train,
            scaling_config=ScalingConfig(num_workers=2, slurm=SlurmConfig(nodes=2)),
            run_config=RunConfig(storage_path=sys.argv[1], name="run", verbose=0),
        ).fit()
    except HpctrainError as error:
        print(f"{type(error).__name__}: {error}")
        sys.exit(4)
"""
SALLOC = ("salloc", "-Q", "-N2", "--ntasks-per-node=1")
WAYS_OUT = {
    "the working directory": "Start the script from a directory on a filesystem that login and "
    "compute nodes share (as a rule its own: cd there first).",
    "the Python of this run,": "The virtual environment, and the Python that it was made with, "
    "have to lie on a filesystem that login and compute nodes share.",
    "the run directory": "Choose a RunConfig(storage_path=...) on a filesystem that login and "
    "compute nodes share.",
}


@dataclass
class Site:
    """A login node, and nodes that see only a part of its ``/tmp``."""

    cluster: VirtualCluster
    shared: Path
    private: Path
    python: Path
    """Of a virtual environment that nodes do not see."""

    def fit(
        self, *prefix: str, python: Path, cwd: Path, storage: Path
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*prefix, str(python), str(self.shared / "train.py"), str(storage)],
            env={**os.environ, **self.cluster.environ},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=90,
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    shared, private = tmp_path_factory.mktemp("shared"), tmp_path_factory.mktemp("private")
    spec = ClusterSpec(num_nodes=2, gpus_per_node=0, private_tmp=True, shared=(shared,))
    require_components(spec)
    if os.geteuid() != 0:
        pytest.skip("a /tmp of its own for each node needs root")
    (shared / "train.py").write_text(SCRIPT)
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(private / "venv")], check=True
    )
    (packages,) = private.glob("venv/lib/python*/site-packages")
    # Debian's too, where this environment sees them.
    mine = [f"import site; site.addsitedir({path!r})\n" for path in getsitepackages()]
    (packages / "mine.pth").write_text("".join(mine))
    with own_cluster(spec) as cluster:
        yield Site(cluster, shared, private, private / "venv/bin/python")


@pytest.mark.parametrize("prefix", [(), SALLOC], ids=["login", "salloc"])
@pytest.mark.parametrize("thing", ["the working directory", "the Python of this run,"])
def test_what_no_node_sees_is_named_with_the_way_out(
    site: Site, tmp_path: Path, thing: str, prefix: tuple[str, ...]
) -> None:
    storage = Path(tempfile.mkdtemp(dir=site.shared))
    is_python = thing.startswith("the Python")
    done = site.fit(
        *prefix,
        python=site.python if is_python else Path(sys.executable),
        cwd=site.shared if is_python else site.private,
        storage=storage,
    )
    assert done.returncode == 4, done.stdout + done.stderr
    where = site.python if is_python else site.private
    who = "no node of this job sees" if prefix else "node1 does not see"
    assert f"{who} {thing} {where}. {WAYS_OUT[thing]}" in done.stdout
    assert len(done.stdout.splitlines()) == 1, "one sentence"
    assert "Traceback" not in done.stderr
    assert not [event for event in read_events(RunPaths(storage / "run")) if "node" in event]
    assert not list((storage / "run").glob("logs/*/rank*")), "no rank was started"


def test_a_storage_that_only_the_login_node_sees_is_no_fault_of_its_nodes(
    site: Site, tmp_path: Path
) -> None:
    done = site.fit(*SALLOC, python=Path(sys.executable), cwd=site.shared, storage=tmp_path)
    assert done.returncode == 4, done.stdout + done.stderr
    assert f"no node of this job sees the run directory {tmp_path}/run: No such" in done.stdout
    assert WAYS_OUT["the run directory"] in done.stdout
    assert "--exclude" not in done.stdout


SWEEP = """
import sys
from hpctrain import DataParallelTrainer, HpctrainError, RunConfig, ScalingConfig, SlurmConfig, tune

def train(config):
    pass

if __name__ == "__main__":
    try:
        tune.Tuner(
            DataParallelTrainer(
                train, scaling_config=ScalingConfig(slurm=SlurmConfig(time="5:00"))
            ),
            param_space={"train_loop_config": {"x": tune.grid_search([1, 2, 3, 4, 5])}},
            tune_config=tune.TuneConfig(launcher="jobs", max_jobs=2),
            run_config=RunConfig(storage_path=sys.argv[1], name="sweep", verbose=0),
        ).fit()
    except HpctrainError as error:
        print(f"{type(error).__name__}: {error}")
        sys.exit(4)
"""


@pytest.mark.long
def test_a_sweep_whose_storage_no_node_sees_ends_with_its_first_jobs(
    site: Site, tmp_path: Path
) -> None:
    """The last word of an executor may come late over NFS: that is waited for, half a minute."""
    script = site.shared / "sweep.py"
    script.write_text(SWEEP)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, **site.cluster.environ},
        cwd=site.shared,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 4, done.stdout + done.stderr
    assert "LaunchError: trial_0000" in done.stdout
    assert WAYS_OUT["the run directory"] in done.stdout
    assert "All trials would fail like this one: no more are begun" in done.stdout
    begun = sorted(path.name for path in (tmp_path / "sweep").glob("trial_*"))
    assert begun == ["trial_00000", "trial_00001"]
