"""A trainer's use of its preprocessor: check it, fit it on the ranks, apply it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpctrain.data.shard import is_dataset, shard_dataset
from hpctrain.errors import CheckpointError, ConfigError, MissingDatasetError
from hpctrain.log import log
from hpctrain.preprocessors import storage
from hpctrain.preprocessors.batches import names_of, rows_of
from hpctrain.preprocessors.preprocessor import FitStatus, Preprocessor
from hpctrain.world import Communicator

FIT_ON = "train"
"""Name of the dataset that a trainer's preprocessor learns from."""


def check_preprocessor(preprocessor: Any, datasets: Mapping[str, Any]) -> None:
    """Check before a run starts that it can use a preprocessor.

    Not collective.

    Parameters
    ----------
    preprocessor
        The trainer's preprocessor.
    datasets
        Datasets by name. None is read.

    Raises
    ------
    ConfigError
        If it is not a preprocessor, has no dataset to learn from, or needs a missing column.
    """
    storage.check_is_preprocessor(preprocessor)
    # check_can_learn() handles a preprocessor that defines no fit.
    if needs_fit(preprocessor) and FIT_ON not in datasets and not preprocessor._lacks_fit():
        raise MissingDatasetError(
            f"preprocessor={preprocessor!r} learns from a dataset {FIT_ON!r}, but the trainer has "
            f"{sorted(datasets) or 'none'}. Give it datasets={{{FIT_ON!r}: ...}}, or a fitted "
            f"preprocessor."
        )
    for name, dataset in datasets.items():
        if callable(dataset) and not is_dataset(dataset):
            continue
        _check_form(name, dataset)
    train: Any = datasets.get(FIT_ON)
    # The columns after steps are known only after trying the steps, which the ranks do.
    if is_dataset(train) and not getattr(train, "steps", ()):
        missing = [c for c in preprocessor.get_input_columns() if c not in train.columns()]
        if missing:
            raise ConfigError(
                f"preprocessor={preprocessor!r} needs columns {missing}, but dataset {FIT_ON!r} "
                f"has {train.columns()}. Name some of these."
            )


def check_can_learn(preprocessor: Preprocessor, datasets: Mapping[str, Any]) -> None:
    """Check before a run starts that a preprocessor that must be fitted defines a fit.

    Not collective. Without datasets it is not applied: each checkpoint stores it unfitted, as in
    Ray Train.

    Raises
    ------
    ConfigError
        If it does not; the message says what to define.
    """
    if datasets and preprocessor._lacks_fit():
        # The method of the base class, which raises the error.
        preprocessor._fit(None)


def needs_fit(preprocessor: Preprocessor) -> bool:
    """Return whether a preprocessor must be fitted before it is applied. Not collective."""
    return preprocessor.fit_status() in (FitStatus.NOT_FITTED, FitStatus.PARTIALLY_FITTED)


def fit_for_training(
    preprocessor: Preprocessor,
    datasets: Mapping[str, Any],
    *,
    comm: Communicator,
    checkpoint: Path | None,
    heartbeat: Callable[[], None],
) -> Preprocessor:
    """Return a trainer's preprocessor, fitted.

    Collective. A fitted preprocessor is returned unchanged. If the checkpoint that the run resumes
    from holds the same preprocessor, that one is used, so that a run that resumes with other ranks
    has the same numbers. Else it learns from the dataset "train", of which each rank reads a part;
    rank 0 reads all of it if the preprocessor is a user's class that needs it whole.

    Parameters
    ----------
    preprocessor
        The trainer's preprocessor.
    datasets
        Datasets by name.
    comm
        The communicator of the ranks.
    checkpoint
        Checkpoint that the run resumes from.
    heartbeat
        Called after each batch that is read.

    Raises
    ------
    ConfigError
        If it cannot learn from the dataset.
    """
    if not needs_fit(preprocessor) or (not datasets and preprocessor._lacks_fit()):
        return preprocessor
    # One rank reads for all, to spare a shared filesystem.
    text = comm.bcast(_stored(preprocessor, checkpoint) if comm.rank == 0 else None)
    if text is not None:
        # Rank 0 has already read it as untrusted.
        return storage.deserialize(text, trusted=True)
    dataset = _made(datasets[FIT_ON])
    _check_form(FIT_ON, dataset)
    if preprocessor._learns_from_whole():
        fitted = None
        if comm.rank == 0:
            # A user's fit() need not return the preprocessor.
            returned: Preprocessor | None = preprocessor.fit(dataset)
            fitted = (preprocessor if returned is None else returned).serialize()
        return storage.deserialize(comm.bcast(fitted), trusted=True)
    columns = preprocessor._columns_to_read()
    if is_dataset(dataset) and columns is not None:
        dataset = dataset.select_columns(columns)
    shard = shard_dataset(dataset, rank=comm.rank, world_size=comm.size)
    rows = rows_of(shard, columns)

    def rows_with_heartbeat() -> Iterator[Any]:
        for batch in rows():
            heartbeat()
            yield batch

    return preprocessor._fit_rows(rows_with_heartbeat, comm)


def transformed(preprocessor: Preprocessor, name: str, dataset: Any) -> Any:
    """Return a dataset, or a part of one, with a preprocessor applied.

    Not collective. A Dataset is transformed when it is read.

    Raises
    ------
    ConfigError
        If it has no named columns.
    """
    _check_form(name, dataset)
    return preprocessor.transform(dataset)


def _stored(preprocessor: Preprocessor, checkpoint: Path | None) -> str | None:
    if checkpoint is None:
        return None
    try:
        stored = storage.load_same(preprocessor, checkpoint)
    except CheckpointError as error:
        log(f"{error} The preprocessor is fitted again.")
        return None
    return None if stored is None else stored.serialize()


def _made(dataset: Any) -> Any:
    return dataset() if callable(dataset) and not is_dataset(dataset) else dataset


def _check_form(name: str, dataset: Any) -> None:
    if is_dataset(dataset) or hasattr(dataset, "iloc"):
        return
    try:
        columns = f" with columns {names_of(dataset)}"
    except ConfigError:
        columns = ""
    raise ConfigError(
        f"dataset {name!r} is a {type(dataset).__name__}{columns}; a preprocessor needs a dataset "
        f"of rows with named columns. Give a hpctrain.data.Dataset, such as "
        f"hpctrain.data.from_numpy({{'x': array}}), or a pandas data frame."
    )
