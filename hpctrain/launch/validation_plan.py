"""`plan_validation_job`: the resources and directives of validations that are jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hpctrain import environ
from hpctrain.config import ScalingConfig
from hpctrain.container import Container
from hpctrain.errors import ConfigError
from hpctrain.launch.container import plan_container
from hpctrain.plan.container import RUNTIMES
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.plan.sbatch import make_directives
from hpctrain.plan.sbatch_options import merge_directives, parse_sbatch_args
from hpctrain.plan.site import load_site
from hpctrain.plan.spec import ValidationJob
from hpctrain.slurm_config import SlurmConfig
from hpctrain.validation_config import ValidationConfig


def plan_validation_job(
    config: ValidationConfig, scaling: ScalingConfig, plan: LaunchPlan, *, run_dir: Path
) -> ValidationJob | None:
    """Return the job of a validation; None where it is a process beside the executor.

    Not collective. Asks Slurm once, for the partition.

    Parameters
    ----------
    config
        How checkpoints are validated.
    scaling
        What the workers have: by default a validation has as much as one of them.
    plan
        On what the run runs.
    run_dir
        The run directory.

    Raises
    ------
    ConfigError
        If the partition never starts such a job, or it contradicts itself.
    LaunchError
        If Slurm does not answer.
    """
    if config.slurm_config is None:
        refuse_pyxis(plan.container)
        return None
    try:
        # A mistake in it is one in every home.
        parse_sbatch_args(config.slurm_config.sbatch_args)
        wanted = _as_one_worker(config, config.slurm_config, scaling, plan)
        site = load_site(wanted.slurm.site)
        if not plan.in_job:
            return None
        from hpctrain.slurm.probe import place_on_partition

        needs_answer = not environ.dry_run_requested()
        placement, _ = place_on_partition(wanted, site, needs_answer=needs_answer)
        container = plan_container(wanted.slurm.container, launcher=plan.launcher, run_dir=run_dir)
        refuse_pyxis(container)
        directives = make_directives(wanted, placement, site, job_name=f"{run_dir.name}-validation")
    except ConfigError as error:
        raise ConfigError(f"ValidationConfig(slurm_config=...): {error}") from error
    return ValidationJob(
        # What ended it is reported, and a site may queue a job again after the loss of its node.
        directives=merge_directives({"no-requeue": None}, directives),
        setup=(*site.setup, *wanted.slurm.setup),
        environment=site.environment,
        cpus=wanted.num_cpus_per_worker,
        container=container,
    )


def refuse_pyxis(container: Container | None) -> None:
    """Refuse a container that only srun enters: a validation is no step of it. Not collective.

    Raises
    ------
    ConfigError
        If it is one.
    """
    if container is not None and not RUNTIMES[container.runtime].program:
        raise ConfigError(
            f"a validation starts without srun, and Container(runtime={container.runtime!r}) is "
            f"entered by options of srun. Validate in the training function, or use another "
            f"runtime, such as runtime='apptainer'."
        )


def _as_one_worker(
    config: ValidationConfig, slurm: SlurmConfig, scaling: ScalingConfig, plan: LaunchPlan
) -> ScalingConfig:
    """Return a validation as a run of one worker, with what it shares with the training."""
    of_training = scaling.slurm
    account = of_training.account or plan.directives.get("account")
    resources = {"CPU": scaling.num_cpus_per_worker, **config.resources}
    if config.use_gpu:
        resources.setdefault("GPU", max(1, scaling.num_gpus_per_worker))
    return ScalingConfig(
        num_workers=1,
        use_gpu=config.use_gpu,
        resources_per_worker=resources,
        slurm=replace(
            slurm,
            account=slurm.account or account or environ.variable("SLURM_JOB_ACCOUNT"),
            site=slurm.site or of_training.site,
            setup=slurm.setup or of_training.setup,
            skip_directives=slurm.skip_directives or of_training.skip_directives,
            container=slurm.container or of_training.container,
            nodes=1,
        ),
    )
