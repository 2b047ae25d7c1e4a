"""`StoredRun`: what a run was begun with, as its directory keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from hpctrain.checks import check_type
from hpctrain.config import (
    CheckpointConfig,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    SyncConfig,
)
from hpctrain.container import Container
from hpctrain.errors import ConfigError
from hpctrain.log import log
from hpctrain.plan import spec
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.plan.spec import RunSpec, WorkerSpec
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.plan import read_plan
from hpctrain.rundir.trust import read_spec
from hpctrain.slurm_config import SlurmConfig
from hpctrain.validation_config import ValidationConfig

NEEDED_OF_PLAN = ("run_config", "scaling_config")
"""Fields of ``plan.json`` without which a run cannot be begun again."""


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """What a run was begun with."""

    spec: RunSpec
    """Content of ``spec.pkl``."""
    worker_spec: WorkerSpec
    run_config: RunConfig
    launch_plan: LaunchPlan | None
    """On what it ran; None where it could not be pickled."""
    resume_from: Path | None
    """The checkpoint of another run that it began with, which may be deleted."""
    validation_config: ValidationConfig | None
    plan: Path
    """The file with the fields of its ScalingConfig."""
    written_scaling: Mapping[str, Any]
    """Those fields."""

    def scaling_config(self) -> ScalingConfig:
        """Return the ScalingConfig. Not collective.

        Raises
        ------
        ConfigError
            If it is damaged, or has what this version does not allow.
        """
        try:
            written = dict(self.written_scaling["slurm"])
            if (hidden := len(written.get("setup", ()))) and self.launch_plan is not None:
                # plan.json, which others may read, does not show them. The site's come first.
                written["setup"] = self.launch_plan.setup[-hidden:]
            if (container := written.get("container")) is not None:
                written["container"] = Container(**container)
            slurm = SlurmConfig(**written)
            return ScalingConfig(**{**self.written_scaling, "slurm": slurm})
        except (KeyError, TypeError, ConfigError) as error:
            why = f"{type(error).__name__}: {error}".rstrip(".")
            raise ConfigError(
                f"the ScalingConfig in {self.plan} cannot be used: {why}. Give one: "
                f"restore(..., scaling_config=ScalingConfig(...))."
            ) from error


def read_stored(paths: RunPaths, run_config: RunConfig | None) -> StoredRun:
    """Return what a run was begun with, as its directory keeps it.

    Not collective. The content of the run's spec is unpickled.

    Parameters
    ----------
    run_config
        What replaces the stored RunConfig.

    Raises
    ------
    ConfigError
        If others can have written the spec, or `run_config` is not one.
    """
    plan = read_plan(paths, needs=NEEDED_OF_PLAN)
    stored = unpack_stored(paths, plan, RunSpec.from_bytes(read_spec(paths)), run_config)
    # However the run was begun, it is to go on.
    going_on = replace(
        stored.run_config,
        name=paths.root.name,
        storage_path=str(paths.root.parent),
        existing="auto",
    )
    return replace(stored, run_config=going_on)


def unpack_stored(
    paths: RunPaths, plan: Mapping[str, Any], run_spec: RunSpec, run_config: RunConfig | None
) -> StoredRun:
    """Return what a run was begun with, from the content of its files.

    Not collective. The content of the run's spec is unpickled.

    Parameters
    ----------
    plan
        Content of ``plan.json``, with `NEEDED_OF_PLAN`.
    run_spec
        Content of ``spec.pkl``.
    run_config
        What replaces the stored RunConfig.

    Raises
    ------
    ConfigError
        If `run_config` is not one.
    """
    worker_spec: WorkerSpec = spec.unpack(run_spec.worker)
    resume_from: Path | None = None
    stored: RunConfig | None = None
    launch_plan: LaunchPlan | None = None
    if run_spec.executor:
        stored, launch_plan, resume_from = spec.unpack(run_spec.executor)
    if run_config is not None:
        check_type("restore(run_config=...)", run_config, RunConfig)
        stored = run_config
    if stored is None:
        # A run of an older version, or of a callback that cannot be pickled.
        stored = _read_plan(paths, plan["run_config"])
    return StoredRun(
        spec=run_spec,
        worker_spec=worker_spec,
        launch_plan=launch_plan,
        plan=paths.plan,
        written_scaling=plan["scaling_config"],
        run_config=stored,
        resume_from=resume_from,
        validation_config=_validation_config(run_spec),
    )


def _validation_config(run_spec: RunSpec) -> ValidationConfig | None:
    stored = run_spec.validation
    if stored is None:
        return None
    return ValidationConfig(
        fn=spec.unpack(stored.fn),
        task_config=stored.task_config,
        use_gpu=stored.use_gpu,
        wait_timeout_s=stored.wait_timeout_s,
        slurm_config=stored.slurm_config,
        resources=stored.resources or {},
        max_jobs=stored.max_jobs,
    )


def _read_plan(paths: RunPaths, written: Mapping[str, Any]) -> RunConfig:
    lost = [*written.get("callbacks", ())]
    if written.get("stop", "None") != "None":
        lost.append(f"stop={written['stop']}")
    if lost:
        log(
            f"warning: {paths.root} does not hold {', '.join(lost)} of its RunConfig. Give them: "
            f"restore(..., run_config=RunConfig(...))."
        )
    return RunConfig(
        failure_config=FailureConfig(**_known(FailureConfig, written.get("failure_config", {}))),
        checkpoint_config=CheckpointConfig(
            **_known(CheckpointConfig, written.get("checkpoint_config", {}))
        ),
        sync_config=SyncConfig(**_known(SyncConfig, written.get("sync_config", {}))),
    )


def _known(kind: Any, written: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    present = {kind._former_names.get(name, name): value for name, value in written.items()}
    return {name: value for name, value in present.items() if name in names}
