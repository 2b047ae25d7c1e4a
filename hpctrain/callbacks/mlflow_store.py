"""Where MLflow keeps runs: file stores, and the experiments of any store."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from hpctrain import environ, timeouts
from hpctrain.errors import ConfigError
from hpctrain.own_time import Deadline

_LOOK_INTERVAL_S = 0.05
# MLflow's names of a server, which it finds by other means.
_NO_PATHS = ("databricks", "databricks-uc")


def file_store(run: Path) -> str:
    """Return the URI of the file store in a run directory. Not collective."""
    # A database would need locks of the filesystem.
    uri = (run.absolute() / "mlruns").as_uri()
    allow_file_store(uri)
    return uri


def allow_file_store(uri: str | None) -> None:
    """Let MLflow use a URI if that is a file store. Not collective."""
    if uri and is_file_store(uri):
        # MLflow 3 refuses its own file store otherwise.
        environ.export({"MLFLOW_ALLOW_FILE_STORE": "true"}, keep_existing=True)


def is_file_store(uri: str) -> bool:
    """Return whether a URI of MLflow is a directory: without a scheme it is a path. Pure.

    Examples
    --------
    >>> is_file_store("./mlruns"), is_file_store("file:///mlruns"), is_file_store("sqlite:///m.db")
    (True, True, False)
    """
    return uri not in _NO_PATHS and urlsplit(uri).scheme in ("", "file")


def find_or_make_experiment(
    client: Any, name: str, artifact_location: str | None = None, *, make: bool = True
) -> str:
    """Return the identifier of an experiment of MLflow. Not collective.

    Raises
    ------
    ConfigError
        If there is none, and none is to be made.
    """
    experiment = client.get_experiment_by_name(name)
    if experiment is None and not make:
        raise ConfigError(
            f"MLflow has no experiment {name!r}. Make it there, or give "
            f"create_experiment_if_not_exists=True."
        )
    if experiment is not None:
        return str(experiment.experiment_id)
    from mlflow.exceptions import MlflowException

    # Trials of a sweep begin at the same time, and a file store takes a name twice.
    with _alone_in(client.tracking_uri):
        if (experiment := client.get_experiment_by_name(name)) is None:
            try:
                return str(client.create_experiment(name, artifact_location=artifact_location))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                experiment = client.get_experiment_by_name(name)
    return str(experiment.experiment_id)


@contextmanager
def _alone_in(store: str) -> Iterator[None]:
    """Keep out other processes that make an experiment in a file store, where it has locks."""
    if not is_file_store(store):
        yield
        return
    folder = Path(unquote(urlsplit(store).path if store.startswith("file:") else store))
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".hpctrain-lock", "ab") as file:
        deadline = Deadline(timeouts.MLFLOW_EXPERIMENT_S)
        while not deadline.is_over:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_LOOK_INTERVAL_S)
            except OSError:
                break
        yield
