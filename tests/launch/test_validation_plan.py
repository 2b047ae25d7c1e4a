"""What the job of a validation asks for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpctrain import ConfigError, ScalingConfig, SlurmConfig, ValidationConfig
from hpctrain.launch.validation_plan import plan_validation_job
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.plan.resources import NodeRange, make_placement
from hpctrain.plan.spec import ValidationJob
from hpctrain.slurm import probe
from hpctrain.slurm.partitions import parse_partitions

SITE = """
account_suffix = "@a100"
setup = ["module load site"]
[environment]
OF_SITE = "1"
[directives]
constraint = "x"
"""
# As sinfo prints it.
PARTITIONS = "cpu*|up|infinite|4|8|(null)|1\ngpu|up|1:00:00|2|16|gpu:4|1\n"


@pytest.fixture(autouse=True)
def partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        probe, "query_partition", lambda name, *, meanwhile: parse_partitions(PARTITIONS, name)
    )
    monkeypatch.delenv("SLURM_JOB_ACCOUNT", raising=False)


def plan(
    scaling: ScalingConfig, slurm: SlurmConfig, launcher: str = "slurm", **options: Any
) -> ValidationJob | None:
    config = ValidationConfig(fn=print, slurm_config=slurm, **options)
    of_run = LaunchPlan(
        launcher=launcher,
        placement=make_placement(scaling, (1,)),
        job_nodes=NodeRange(fewest=1, most=1, enough=1, min_workers=1),
        threads_per_task=1,
        mpi="auto",
        directives={"account": "of-run@v100"},
        first_job_directives={},
        setup=(),
        srun_args=(),
        environment={},
    )
    return plan_validation_job(config, scaling, of_run, run_dir=Path("/runs/one"))


def directives(*args: Any, **options: Any) -> dict[str, str | None]:
    job = plan(*args, **options)
    assert job is not None
    return dict(job.directives)


def test_it_is_one_process_with_the_cpus_of_a_worker() -> None:
    scaling = ScalingConfig(num_workers=8, resources_per_worker={"CPU": 4})
    assert directives(scaling, SlurmConfig(partition="gpu", time="30")) == {
        "no-requeue": None,
        "job-name": "one-validation",
        "nodes": "1",
        "ntasks-per-node": "1",
        "cpus-per-task": "4",
        "time": "30",
        "partition": "gpu",
        "account": "of-run@v100",
    }


@pytest.mark.parametrize(
    ("of_worker", "resources", "gpus"), [(0, {}, "1"), (2, {}, "2"), (2, {"GPU": 4}, "4")]
)
def test_it_has_the_gpus_of_a_worker_or_those_that_it_asks_for(
    of_worker: int, resources: dict[str, int], gpus: str
) -> None:
    scaling = ScalingConfig()
    if of_worker:
        scaling = ScalingConfig(use_gpu=True, resources_per_worker={"GPU": of_worker})
    slurm = SlurmConfig(partition="gpu")
    found = directives(scaling, slurm, use_gpu=True, resources=resources)
    assert found["gpus-per-node"] == gpus
    assert "gpus-per-node" not in directives(scaling, slurm)


def test_it_has_the_site_the_account_and_the_setup_of_the_training(tmp_path: Path) -> None:
    profile = tmp_path / "site.toml"
    profile.write_text(SITE)
    shared = SlurmConfig(site=str(profile), account="me", setup=["module load mine"], qos="long")
    job = plan(ScalingConfig(slurm=shared), SlurmConfig())
    assert job is not None
    assert job.setup == ("module load site", "module load mine")
    assert job.environment == {"OF_SITE": "1"}
    assert (job.directives["account"], job.directives["constraint"]) == ("me@a100", "x")
    assert "qos" not in job.directives
    own = SlurmConfig(account="other", setup=["module load own"])
    job = plan(ScalingConfig(slurm=shared), own)
    assert job is not None
    assert job.setup == ("module load site", "module load own")
    assert job.directives["account"] == "other@a100"


def test_a_user_may_let_slurm_queue_it_again() -> None:
    found = directives(ScalingConfig(), SlurmConfig(sbatch_args=["--requeue"]))
    assert "requeue" in found
    assert "no-requeue" not in found


@pytest.mark.parametrize("launcher", ["local", "mpiexec", "spmd", "inline"])
def test_outside_of_jobs_there_is_none(launcher: str) -> None:
    assert plan(ScalingConfig(), SlurmConfig(partition="nowhere"), launcher) is None


@pytest.mark.parametrize(
    ("slurm", "complaint"),
    [
        (SlurmConfig(partition="nowhere"), "this cluster has cpu, gpu"),
        (SlurmConfig(partition="gpu", time="2:00:00"), "ends jobs after 60"),
        (SlurmConfig(site="nowhere"), "known profiles are"),
        (SlurmConfig(sbatch_args=["--array=1-2"]), "one run for each value"),
    ],
)
def test_what_slurm_would_never_start_is_refused(slurm: SlurmConfig, complaint: str) -> None:
    with pytest.raises(ConfigError, match=r"^ValidationConfig\(slurm_config=...\): .*" + complaint):
        plan(ScalingConfig(), slurm)


def test_what_no_node_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^ValidationConfig\(slurm_config=...\)"):
        plan(ScalingConfig(), SlurmConfig(partition="cpu"), resources={"CPU": 99})


def test_it_has_as_much_as_a_worker_of_an_elastic_run() -> None:
    scaling = ScalingConfig(num_workers=(2, 4), slurm=SlurmConfig(spare_nodes=2))
    assert directives(scaling, replace(SlurmConfig(), partition="gpu"))["nodes"] == "1"
