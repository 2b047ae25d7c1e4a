"""MLflow: `MLflowLoggerCallback`, and `setup_mlflow` for inside a training function."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from hpctrain import environ
from hpctrain.callback import RunContext
from hpctrain.callbacks.logger import encodable, numbers, require_package
from hpctrain.callbacks.mlflow_store import (
    allow_file_store,
    file_store,
    find_or_make_experiment,
    is_file_store,
)
from hpctrain.callbacks.position import Position
from hpctrain.callbacks.tracker import TrackerCallback
from hpctrain.log import log
from hpctrain.metric_names import flatten
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.sweep import sweep_of
from hpctrain.worker.context import get_context

if TYPE_CHECKING:
    from hpctrain.checkpoint import Checkpoint

_STATUS = {"finished": "FINISHED", "failed": "FAILED"}
_MOST_CHARACTERS_OF_NAME = 250
_MOST_CHARACTERS_OF_VALUE = 6000
_MOST_AT_A_TIME = 100
_REFUSED_FOR_GOOD = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")
T = TypeVar("T")


class MLflowLoggerCallback(TrackerCallback):
    """Logs into one run of MLflow, by ``mlflow-skinny`` or ``mlflow``.

    Without `tracking_uri` and ``MLFLOW_TRACKING_URI`` it is a file store in the run directory,
    ``mlruns/``, which ``hpctrain sync`` copies to a server. Metrics that are no numbers are left
    out. In a name, ``_`` takes the place of what MLflow does not allow.

    Parameters
    ----------
    tracking_uri, registry_uri
        As of ``mlflow.set_tracking_uri`` and ``mlflow.set_registry_uri``.
    experiment_name
        Experiment of the run; made if there is none. ``MLFLOW_EXPERIMENT_NAME``, else the name of
        the sweep of which the run is a trial, else ``Default``.
    tags
        Tags of the run.
    tracking_token
        ``MLFLOW_TRACKING_TOKEN``.
    save_artifact
        Whether the kept checkpoints, and what is in ``artifacts/`` of the run directory, become
        artifacts at the end of the run.
    """

    package = "mlflow"
    extra = "mlflow"
    tracker = "mlflow"

    _client: Any = None
    _record = ""
    _metric_files: set[str] | None = None
    """Names of metrics that are files in a file store; None for another store."""

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        registry_uri: str | None = None,
        experiment_name: str | None = None,
        tags: Mapping[str, Any] | None = None,
        tracking_token: str | None = None,
        save_artifact: bool = False,
    ) -> None:
        self._tracking_uri = tracking_uri
        self._registry_uri = registry_uri
        self._experiment_name = experiment_name
        self._tags = dict(tags or {})
        self._tracking_token = tracking_token
        self._save_artifact = save_artifact

    def describe_record(self) -> str:
        """Return what it writes; see `hpctrain.UserCallback`."""
        uri = self._tracking_uri or environ.variable("MLFLOW_TRACKING_URI")
        return f"a run of MLflow with tracking_uri={uri!r}"

    def store(self, run_context: RunContext) -> str:
        """Return the URI that is logged to."""
        return _tracking_uri(run_context.path, self._tracking_uri)

    def begin(self, run_context: RunContext, position: Position) -> None:
        """Create the MLflow run, or open the one that this run continues."""
        from mlflow.tracking import MlflowClient

        if self._tracking_token:
            environ.export({"MLFLOW_TRACKING_TOKEN": self._tracking_token})
        allow_file_store(self._registry_uri)
        self._client = MlflowClient(self.store(run_context), self._registry_uri)
        if position.record is None:
            run = self._client.create_run(
                self._experiment(run_context),
                tags={**_tags_of(run_context, position), **self._tags},
                run_name=run_context.name,
            )
            position.begin(run.info.run_id)
        assert position.record is not None
        self._record = position.record
        self._client.update_run(self._record, status="RUNNING")
        if is_file_store(self.store(run_context)):
            self._metric_files = set(self._client.get_run(self._record).data.metrics)
        else:
            self._metric_files = None
        self._log_parameters()

    def send(
        self, report: int, time_s: float, metrics: dict[str, Any], checkpoint: Checkpoint | None
    ) -> None:
        """Log the numbers."""
        from mlflow.entities import Metric
        from mlflow.exceptions import MlflowException

        found = numbers(metrics)
        self.say_left_out(metrics.keys() - found.keys(), "MLflow takes numbers")
        named: dict[str, float] = {}
        for name, value in found.items():
            named.setdefault(mlflow_name(name), value)
        if len(named) < len(found):
            kept = {mlflow_name(name): name for name in reversed(found)}
            self.say_left_out(found.keys() - kept.values(), "MLflow's name for it is taken")
        if self._metric_files is not None:
            named = self._without_clashes(named, self._metric_files)
        rows = [Metric(name, value, int(time_s * 1000), report) for name, value in named.items()]
        for first in range(0, len(rows), _MOST_AT_A_TIME):
            try:
                self._client.log_batch(self._record, metrics=rows[first : first + _MOST_AT_A_TIME])
            except MlflowException as error:
                if error.error_code not in _REFUSED_FOR_GOOD:
                    raise
                log(f"warning: MLflow refuses report {report}: {error}. It is left out.")

    def end(self, run_context: RunContext, state: str) -> None:
        """Log the artifacts to keep, and end the MLflow run."""
        paths = RunPaths(run_context.path)
        if self._save_artifact:
            for directory in (paths.checkpoints, paths.artifacts):
                for path in sorted(directory.glob("[!.]*")):
                    log = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
                    folder = directory.name + (f"/{path.name}" if path.is_dir() else "")
                    log(self._record, str(path), folder)
        self._client.set_terminated(self._record, _STATUS.get(state, "KILLED"))

    def _without_clashes(self, named: Mapping[str, T], taken: set[str]) -> dict[str, T]:
        """Leave out what a file store cannot keep: each name is the path of a file in it."""
        kept = {}
        for name, value in named.items():
            folders = {parent.as_posix() for parent in PurePosixPath(name).parents}
            is_folder = any(other.startswith(f"{name}/") for other in taken)
            if name not in taken and (is_folder or not taken.isdisjoint(folders)):
                why = "a file store of MLflow cannot have a name and names below it"
                self.say_left_out([name], why)
                continue
            taken.add(name)
            kept[name] = value
        return kept

    def _experiment(self, run_context: RunContext) -> str:
        name = self._experiment_name or _default_experiment(run_context)
        return find_or_make_experiment(self._client, name)

    def _log_parameters(self) -> None:
        from mlflow.entities import Param

        # A parameter that is logged cannot be changed.
        present = self._client.get_run(self._record).data.params
        wanted = mlflow_parameters(self.parameters)
        if self._metric_files is not None:
            wanted = self._without_clashes(wanted, set(present))
        new = [Param(name, value) for name, value in wanted.items() if name not in present]
        for first in range(0, len(new), _MOST_AT_A_TIME):
            self._client.log_batch(self._record, params=new[first : first + _MOST_AT_A_TIME])
        changed = {name for name in wanted if present.get(name, wanted[name]) != wanted[name]}
        self.say_left_out(changed, "MLflow keeps the first value of a parameter")


def setup_mlflow(
    config: Mapping[str, Any] | None = None,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
    experiment_id: str | None = None,
    experiment_name: str | None = None,
    tracking_token: str | None = None,
    artifact_location: str | None = None,
    run_name: str | None = None,
    create_experiment_if_not_exists: bool = False,
    tags: Mapping[str, Any] | None = None,
    rank_zero_only: bool = True,
) -> Any:
    """Begin an MLflow run inside a training function, or continue that of an earlier attempt.

    Not collective. Without a URI it is the file store in the run directory.

    Parameters
    ----------
    config
        Hyperparameters.
    tracking_uri, registry_uri
        As of `MLflowLoggerCallback`.
    experiment_id, experiment_name
        Experiment of the run; that of a file store is made if there is none.
    tracking_token
        As of `MLflowLoggerCallback`.
    artifact_location
        Where an experiment that is made keeps its artifacts.
    run_name
        Name of the run of MLflow; by default that of this one.
    create_experiment_if_not_exists
        Whether an experiment of a server is made.
    tags
        Tags of the run of MLflow.
    rank_zero_only
        Whether the other ranks log nothing.

    Returns
    -------
    module
        ``mlflow``; on ranks that log nothing, an object of which each attribute and each call does
        nothing.

    Raises
    ------
    ConfigError
        If MLflow is not installed, or there is no such experiment.
    """
    context = get_context()
    rank = context.get_world_rank()
    if rank_zero_only and rank:
        return _Nothing()
    require_package("setup_mlflow()", "mlflow", "mlflow")
    uri = _tracking_uri(context.get_storage(), tracking_uri)
    import mlflow

    if tracking_token:
        environ.export({"MLFLOW_TRACKING_TOKEN": tracking_token})
    mlflow.set_tracking_uri(uri)
    if registry_uri is not None:
        allow_file_store(registry_uri)
        mlflow.set_registry_uri(registry_uri)
    client = mlflow.MlflowClient()
    run_context = RunContext(
        name=context.get_trial_name(),
        path=context.get_storage(),
        attempt=0,
        world_size=context.get_world_size(),
        sweep=sweep_of(context.get_storage()),
    )
    if experiment_id is None:
        name = experiment_name or _default_experiment(run_context)
        may_make = create_experiment_if_not_exists or is_file_store(uri)
        experiment_id = find_or_make_experiment(client, name, artifact_location, make=may_make)
    position = Position(run_context, f"mlflow-rank-{rank}", store=uri)
    run = mlflow.start_run(
        run_id=position.record,
        experiment_id=experiment_id,
        run_name=run_name or run_context.name,
        tags={**_tags_of(run_context, position), **(tags or {})},
    )
    position.begin(run.info.run_id)
    present = client.get_run(run.info.run_id).data.params
    wanted = mlflow_parameters(config or {})
    mlflow.log_params({name: value for name, value in wanted.items() if name not in present})
    return mlflow


def _default_experiment(run_context: RunContext) -> str:
    return environ.variable("MLFLOW_EXPERIMENT_NAME") or run_context.sweep or "Default"


def _tags_of(run_context: RunContext, position: Position) -> dict[str, str]:
    tags = {"hpctrain.run_id": position.run_id}
    if run_context.sweep is not None:
        tags["hpctrain.sweep"] = run_context.sweep
    return tags


def _tracking_uri(run: Path, given: str | None) -> str:
    """Return MLflow's tracking URI: the given one, else a file store in the run directory.

    Not collective.
    """
    if uri := given or environ.variable("MLFLOW_TRACKING_URI"):
        allow_file_store(uri)
        return uri
    return file_store(run)


def mlflow_name(name: str) -> str:
    """Return a name that MLflow takes for a metric or a parameter. Not collective.

    Examples
    --------
    >>> mlflow_name("val/loss (%)")
    'val/loss ___'
    """
    name = posixpath.normpath("/" + re.sub(r"[^/\w.\- :]", "_", name)).strip("/")
    return name[:_MOST_CHARACTERS_OF_NAME] or "_"


def mlflow_parameters(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return parameters as MLflow takes them. Not collective."""
    flat = flatten(parameters)
    texts = {mlflow_name(name): encodable(str(value)) for name, value in flat.items()}
    return {name: text[:_MOST_CHARACTERS_OF_VALUE] for name, text in texts.items()}


class _Nothing:
    """Stands for ``mlflow`` on a rank that logs nothing."""

    def __getattr__(self, name: str) -> _Nothing:
        return self

    def __call__(self, *_: Any, **__: Any) -> _Nothing:
        return self

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        pass
