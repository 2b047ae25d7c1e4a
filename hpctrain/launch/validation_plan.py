"""`plan_validation_job`: the resources and directives of validations that are jobs."""

from __future__ import annotations

from dataclasses import replace

from hpctrain import environ
from hpctrain.config import ScalingConfig
from hpctrain.errors import ConfigError
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.plan.sbatch import make_directives
from hpctrain.plan.sbatch_options import merge_directives, parse_sbatch_args
from hpctrain.plan.site import load_site
from hpctrain.plan.spec import ValidationJob
from hpctrain.slurm_config import SlurmConfig
from hpctrain.validation_config import ValidationConfig


def plan_validation_job(
    config: ValidationConfig, scaling: ScalingConfig, plan: LaunchPlan, *, name: str
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
    name
        Of the run.

    Raises
    ------
    ConfigError
        If the partition never starts such a job, or it contradicts itself.
    LaunchError
        If Slurm does not answer.
    """
    if config.slurm_config is None:
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
        directives = make_directives(wanted, placement, site, job_name=f"{name}-validation")
    except ConfigError as error:
        raise ConfigError(f"ValidationConfig(slurm_config=...): {error}") from error
    return ValidationJob(
        # What ended it is reported, and a site may queue a job again after the loss of its node.
        directives=merge_directives({"no-requeue": None}, directives),
        setup=(*site.setup, *wanted.slurm.setup),
        environment=site.environment,
        cpus=wanted.num_cpus_per_worker,
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
            nodes=1,
        ),
    )
