"""The RunConfig of a run, as its directory keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from hpctrain.checks import check_type
from hpctrain.config import CheckpointConfig, FailureConfig, RunConfig, SyncConfig
from hpctrain.log import log
from hpctrain.plan import spec
from hpctrain.plan.spec import RunSpec
from hpctrain.rundir.paths import RunPaths


def stored_request(
    paths: RunPaths, plan: Mapping[str, Any], run_spec: RunSpec, given: RunConfig | None
) -> tuple[RunConfig, Path | None]:
    """Return the RunConfig of a run, and the checkpoint of another run that it began with.

    Not collective. The content of the run's spec is unpickled. The checkpoint may be deleted.

    Parameters
    ----------
    plan
        Content of ``plan.json``. It has what can be had of a run whose spec has no RunConfig: one
        of an older version, or of a callback that cannot be pickled.
    given
        What replaces the stored RunConfig.
    """
    resume_from: Path | None = None
    stored: RunConfig | None = None
    if run_spec.executor:
        stored, _, resume_from = spec.unpack(run_spec.executor)
    if given is not None:
        check_type("restore(run_config=...)", given, RunConfig)
        stored = given
    if stored is None:
        stored = _read_plan(paths, plan["run_config"])
    # However the run was begun, it is to go on.
    own = replace(
        stored, name=paths.root.name, storage_path=str(paths.root.parent), existing="auto"
    )
    return own, resume_from


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
