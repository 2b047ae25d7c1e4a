"""Weights & Biases: `WandbLoggerCallback`, and `setup_wandb` for inside a training function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain import environ, timeouts
from hpctrain.callback import RunContext
from hpctrain.callbacks.logger import require_package
from hpctrain.callbacks.position import Position
from hpctrain.callbacks.tracker import TrackerCallback
from hpctrain.callbacks.wandb_file import last_step, wait_for_step
from hpctrain.log import log
from hpctrain.metric_names import flatten
from hpctrain.rundir.directory import read_run_id
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.sweep import sweep_of
from hpctrain.worker.context import get_context

if TYPE_CHECKING:
    from hpctrain.checkpoint import Checkpoint


class WandbLoggerCallback(TrackerCallback):
    """Logs into one run of Weights & Biases, by ``wandb``.

    Without ``mode=`` and ``WANDB_MODE`` it is offline: files in ``wandb/`` of the run directory,
    one set for each job, which ``hpctrain sync`` uploads as one run.

    Parameters
    ----------
    project, group
        As of ``wandb.init``. The trials of a sweep are in a group of its name by default.
    api_key_file, api_key
        For ``mode="online"``; else ``WANDB_API_KEY`` and ``wandb login`` count.
    excludes
        Metrics that are not logged.
    log_config
        Whether the configuration is logged with each report too.
    upload_checkpoints, save_checkpoints
        Either logs each checkpoint as an artifact; offline that is a copy in ``wandb-data/`` of the
        run directory.
    upload_timeout
        Without a meaning here.
    **kwargs
        Further arguments of ``wandb.init``.
    """

    package = "wandb"
    extra = "wandb"
    tracker = "wandb"

    _run: Any = None
    _last = 0

    def __init__(
        self,
        project: str | None = None,
        group: str | None = None,
        api_key_file: str | None = None,
        api_key: str | None = None,
        excludes: Sequence[str] | None = None,
        log_config: bool = False,
        upload_checkpoints: bool = False,
        save_checkpoints: bool = False,
        upload_timeout: int = 1800,
        **kwargs: Any,
    ) -> None:
        self._excludes = frozenset(excludes or ())
        self._log_config = log_config
        self._save_checkpoints = upload_checkpoints or save_checkpoints
        self._api_key = _read_key(api_key, api_key_file)
        self._arguments = {"project": project, "group": group, **kwargs}

    def describe_record(self) -> str:
        """Return what it writes; see `hpctrain.UserCallback`."""
        # Of one id, a process has one run, in whatever project.
        if (self._arguments.get("mode") or environ.variable("WANDB_MODE")) == "disabled":
            return ""
        return f"a run of W&B with id={self._arguments.get('id')!r}"

    def store(self, run_context: RunContext) -> str:
        """Return the id that the user has given to the run of W&B."""
        return self._arguments.get("id") or ""

    def begin(self, run_context: RunContext, position: Position) -> None:
        """Create the W&B run, or continue it; offline, create a further part of it."""
        if self._run is None:
            if self._save_checkpoints:
                # Else it is a folder below HOME.
                data = str(run_context.path / "wandb-data")
                environ.export({"WANDB_DATA_DIR": data}, keep_existing=True)
            arguments = {"id": position.run_id, "name": run_context.name, **self._arguments}
            # None is left out.
            arguments["group"] = arguments["group"] or run_context.sweep
            config = dict(self.parameters)
            self._run = _init(run_context.path, config, self._api_key, arguments)
        # Offline it writes in the background, and a process that is killed loses some of it.
        self.is_kept_at_once = not self._run.offline
        if self._run.offline:
            position.report = max(position.report, last_step(_parts(self._run), self._run.id))
        if position.record is None and self.is_kept_at_once:
            position.begin(self._run.id)
        position.record = self._run.id

    def send(
        self, report: int, time_s: float, metrics: dict[str, Any], checkpoint: Checkpoint | None
    ) -> None:
        """Log all metrics that are not excluded."""
        import wandb

        row = {name: value for name, value in metrics.items() if name not in self._excludes}
        if self._log_config:
            row.update(flatten({"config": self.parameters}))
        self._run.log(row, step=report)
        self._last = report
        if checkpoint is not None and self._save_checkpoints:
            artifact = wandb.Artifact(f"checkpoint_{self._run.id}", type="model")
            artifact.add_dir(str(checkpoint.path))
            self._run.log_artifact(artifact, aliases=["latest", f"report_{report}"])

    def end(self, run_context: RunContext, state: str) -> None:
        """End the run of W&B, or this part of it."""
        run, self._run = self._run, None
        if state == "stopped":
            run.mark_preempting()
        last, self._last = self._last, 0
        run.finish(exit_code=0 if state == "finished" else 1)
        limit_s = timeouts.WANDB_WRITE_S
        if run.offline and not wait_for_step(_parts(run), run.id, last, timeout_s=limit_s):
            log(
                f"WandbLoggerCallback: wandb has not written report {last} into {_parts(run)} "
                f"within {timeouts.describe(limit_s)}. metrics.jsonl has it."
            )


def setup_wandb(
    config: Mapping[str, Any] | None = None,
    api_key: str | None = None,
    api_key_file: str | None = None,
    rank_zero_only: bool = True,
    **kwargs: Any,
) -> Any:
    """Begin a W&B run inside a training function, or continue that of an earlier attempt.

    Not collective. It is offline unless ``mode=`` or ``WANDB_MODE`` sets another mode.

    Parameters
    ----------
    config
        Hyperparameters.
    api_key, api_key_file
        As of `WandbLoggerCallback`.
    rank_zero_only
        Whether the other ranks log nothing. Otherwise each has its own run, in a group.
    **kwargs
        Further arguments of ``wandb.init``.

    Returns
    -------
    wandb.Run
        The run; on ranks that log nothing, one that is disabled.

    Raises
    ------
    ConfigError
        If wandb is not installed.
    """
    context = get_context()
    rank = context.get_world_rank()
    require_package("setup_wandb()", "wandb", "wandb")
    if rank_zero_only and rank:
        import wandb

        return wandb.init(mode="disabled")
    name = context.get_trial_name()
    run_id = read_run_id(RunPaths(context.get_storage())) or name
    sweep = sweep_of(context.get_storage())
    arguments: dict[str, Any] = {"id": f"{run_id}-{rank}", "name": name, "group": sweep}
    if not rank_zero_only:
        arguments.update(group=sweep or name, name=f"{name}-{rank}")
    key = _read_key(api_key, api_key_file)
    return _init(context.get_storage(), dict(config or {}), key, {**arguments, **kwargs})


def _parts(run: Any) -> Path:
    """Return the directory in which each process leaves a part of an offline run."""
    return Path(run.dir).parents[1]


def _read_key(api_key: str | None, api_key_file: str | None) -> str | None:
    if api_key is None and api_key_file is not None:
        return Path(api_key_file).expanduser().read_text().strip()
    return api_key


def _init(run: Path, config: dict[str, Any], api_key: str | None, given: dict[str, Any]) -> Any:
    import wandb

    arguments: dict[str, Any] = {
        "mode": environ.variable("WANDB_MODE") or "offline",
        "dir": str(run),
        "config": config,
        "resume": "allow",
        # Another run of this process, such as a rank's own, stays as it is.
        "reinit": "create_new",
        "settings": wandb.Settings(silent=True, console="off"),
        **{name: value for name, value in given.items() if value is not None},
    }
    if api_key and arguments["mode"] == "online":
        environ.export({"WANDB_API_KEY": api_key})
    return wandb.init(**arguments)
