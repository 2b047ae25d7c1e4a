"""Copies runs of MLflow from the file store of a run directory to a server."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from hpctrain.callbacks.mlflow_store import file_store, find_or_make_experiment
from hpctrain.errors import ConfigError

_SOURCE = "hpctrain.copy_of"
_MOST_AT_A_TIME = 100


def copy_file_store(root: Path, uri: str) -> Counter[str]:
    """Copy the data that a server lacks.

    Not collective. The server is asked what it has, so any later copy continues one that was
    interrupted.

    Parameters
    ----------
    root
        The run directory.
    uri
        Where to copy to.

    Returns
    -------
    Counter
        How much was sent, by kind.

    Raises
    ------
    ConfigError
        If there is no run.
    """
    from mlflow.tracking import MlflowClient

    source, target = MlflowClient(file_store(root)), MlflowClient(uri)
    found = [
        (run, experiment.name)
        for experiment in source.search_experiments()
        for run in source.search_runs([experiment.experiment_id], max_results=1000)
    ]
    if not found:
        # MLflow skips damaged files.
        raise ConfigError(f"there is no run in {root / 'mlruns'} that MLflow can read.")
    sent: Counter[str] = Counter()
    for run, experiment_name in found:
        sent += _copy_run(source, target, run, experiment_name)
    return sent


def _copy_run(source: Any, target: Any, run: Any, experiment: str) -> Counter[str]:
    experiment_id = find_or_make_experiment(target, experiment)
    run_id = run.info.run_id
    found = target.search_runs([experiment_id], f"tags.`{_SOURCE}` = '{run_id}'", max_results=1)
    there = found[0] if found else None
    sent: Counter[str] = Counter()
    if there is None:
        there = target.create_run(
            experiment_id,
            start_time=run.info.start_time,
            tags={**run.data.tags, _SOURCE: run_id},
            run_name=run.info.run_name,
        )
        sent["run"] += 1
    copy_id = there.info.run_id
    params = [(k, v) for k, v in run.data.params.items() if k not in there.data.params]
    for name, value in params:
        target.log_param(copy_id, name, value)
    sent["parameter"] += len(params)
    for name in run.data.metrics:
        present = {_identity(m) for m in target.get_metric_history(copy_id, name)}
        new = [m for m in source.get_metric_history(run_id, name) if _identity(m) not in present]
        for first in range(0, len(new), _MOST_AT_A_TIME):
            target.log_batch(copy_id, metrics=new[first : first + _MOST_AT_A_TIME])
        sent["value"] += len(new)
    sent["artifact"] += _copy_artifacts(target, run, copy_id)
    if run.info.status != there.info.status or run.info.end_time != there.info.end_time:
        if run.info.end_time is None:
            target.update_run(copy_id, status=run.info.status)
        else:
            target.set_terminated(copy_id, run.info.status, run.info.end_time)
    return sent


def _identity(metric: Any) -> tuple[int, int]:
    return metric.step, metric.timestamp


def _copy_artifacts(target: Any, run: Any, copy_id: str) -> int:
    root = Path(unquote(urlparse(run.info.artifact_uri).path))
    present: dict[str, set[tuple[str, int]]] = {}
    sent = 0
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        folder = path.parent.relative_to(root).as_posix()
        folder = "" if folder == "." else folder
        if folder not in present:
            listed = target.list_artifacts(copy_id, folder or None)
            present[folder] = {(file.path, file.file_size) for file in listed}
        name = path.relative_to(root).as_posix()
        if (name, path.stat().st_size) not in present[folder]:
            target.log_artifact(copy_id, str(path), folder or None)
            sent += 1
    return sent
