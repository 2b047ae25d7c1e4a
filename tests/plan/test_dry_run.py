from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain import Container, RunConfig, ScalingConfig, SlurmConfig
from hpctrain.backend import BackendConfig
from hpctrain.launch.dry_run import render_plan
from hpctrain.launch.request import Request, Submission
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.plan.resources import NodeShape, node_range, place_on_one_node, place_workers
from hpctrain.plan.sbatch import make_directives
from hpctrain.plan.site import known_shape, load_site, site_srun_args
from hpctrain.plan.spec import RunSpec, WorkerSpec
from tests.plans import SETTINGS

GIB = 2**30
CASES = {
    "laptop": ("local", ScalingConfig(num_workers=4)),
    "debugger": ("inline", ScalingConfig(num_workers=0)),
    "own-mpiexec": (
        "allocation",
        ScalingConfig(num_workers=4, slurm=SlurmConfig(nodes=2, mpi="/opt/mpich/bin/mpiexec")),
    ),
    "allocation": (
        "allocation",
        ScalingConfig(num_workers=4, slurm=SlurmConfig(nodes=2, srun_args=["--label"])),
    ),
    "job": (
        "slurm",
        ScalingConfig(
            num_workers=8,
            use_gpu=True,
            resources_per_worker={"memory": 2.5 * GIB},
            accelerator_type="a100",
            slurm=SlurmConfig(
                nodes=2,
                partition="gpu",
                time="2:00:00",
                mpi="pmix",
                setup=["module load cuda"],
                sbatch_args=["--mail-type=END", "--comment=it's a #1 run", "-H"],
            ),
        ),
    ),
    "job-with-a-spare-node": (
        "slurm",
        ScalingConfig(num_workers=4, slurm=SlurmConfig(nodes=2, spare_nodes=1)),
    ),
    "job-on-unequal-nodes": ("slurm", ScalingConfig(num_workers=5, slurm=SlurmConfig(nodes=2))),
    "job-in-a-container": (
        "slurm",
        ScalingConfig(
            num_workers=4,
            use_gpu=True,
            slurm=SlurmConfig(
                nodes=2,
                container=Container(
                    image="/images/my torch.sif", mounts=["/data:/data:ro"], options=["--cleanenv"]
                ),
            ),
        ),
    ),
    "allocation-with-pyxis": (
        "allocation",
        ScalingConfig(
            num_workers=4,
            slurm=SlurmConfig(
                nodes=2,
                mpi="pmix",
                container=Container(image="nvcr.io#nvidia/pytorch:26.10-py3", runtime="pyxis"),
            ),
        ),
    ),
    "elastic-job": (
        "slurm",
        ScalingConfig(num_workers=(4, 16), use_gpu=True),
    ),
    "elastic-laptop": ("local", ScalingConfig(num_workers=(2, 4))),
    "job-at-a-site": (
        "slurm",
        ScalingConfig(num_workers=16, use_gpu=True, slurm=SlurmConfig(site="frontier")),
    ),
}


def submission(launcher: str, scaling: ScalingConfig) -> Submission:
    slurm = scaling.slurm
    site = load_site(slurm.site)
    in_job = launcher in ("slurm", "allocation")
    node = known_shape(site, NodeShape(cpus=64, gpus=4))
    placement = place_workers(scaling, node) if in_job else place_on_one_node(scaling)
    directives = {}
    if launcher == "slurm":
        directives = make_directives(scaling, placement, site, job_name="digits")
    plan = LaunchPlan(
        launcher=launcher,
        placement=placement,
        job_nodes=node_range(scaling, placement),
        threads_per_task=1,
        mpi=slurm.mpi,
        directives={n: v for n, v in directives.items() if n != "hold"},
        first_job_directives={n: v for n, v in directives.items() if n == "hold"},
        setup=(*site.setup, *slurm.setup),
        srun_args=(
            *site_srun_args(site, placement, gpu_request=slurm.gpu_request),
            *slurm.srun_args,
        ),
        environment=site.environment,
        container=slurm.container,
    )
    worker = WorkerSpec(
        train_loop=print,
        train_loop_config=None,
        takes_config=False,
        backend_config=BackendConfig(),
        datasets={},
        datasets_to_split="all",
        preprocessor=None,
        metadata={},
    )
    request = Request(
        trainer="hpctrain.trainer.DataParallelTrainer",
        scaling_config=scaling,
        run_config=RunConfig(name="digits", storage_path="/shared/my runs"),
        worker_spec=worker,
        resume_from=None,
    )
    spec = RunSpec(
        trainer=request.trainer,
        backend="",
        fingerprint="",
        digests={},
        settings=replace(SETTINGS, name="digits"),
        worker=b"",
        executor=b"",
    )
    return Submission(request=request, plan=plan, site=site, spec=spec)


@pytest.mark.parametrize("case", sorted(CASES))
def test_what_a_dry_run_prints(golden, case: str):
    text = render_plan(submission(*CASES[case]))
    golden(f"dry-run/{case}.txt", text.replace(sys.executable, "PYTHON") + "\n")


def test_the_commands_can_be_pasted_into_a_shell():
    text = render_plan(submission(*CASES["allocation"]))
    for line in text.splitlines():
        if line.startswith(("srun", "env")):
            assert str(Path("/shared/my runs/digits")) in shlex.split(line) or "agent" in line
