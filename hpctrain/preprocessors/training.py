"""What a trainer does with its preprocessor: look at it, fit it on the ranks, apply it."""

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
    """Refuse what a run could not use, before it is started.

    Not collective.

    Parameters
    ----------
    preprocessor
        What the trainer was given.
    datasets
        Datasets by name. None is read.

    Raises
    ------
    ConfigError
        If it is no preprocessor, has nothing to learn from, or needs a column that is not there.
    """
    storage.check_is_preprocessor(preprocessor)
    # One that has no way to learn is looked at when it is to: see check_can_learn().
    if needs_fit(preprocessor) and FIT_ON not in datasets and not preprocessor._lacks_fit():
        raise MissingDatasetError(
            f"preprocessor={preprocessor!r} has to learn from a dataset {FIT_ON!r}, and the "
            f"trainer has {sorted(datasets) or 'none'}. Give it datasets={{{FIT_ON!r}: ...}}, or a "
            f"preprocessor that is fitted."
        )
    for name, dataset in datasets.items():
        if callable(dataset) and not is_dataset(dataset):
            continue
        _check_form(name, dataset)
    train: Any = datasets.get(FIT_ON)
    # What steps make of the columns is known after they were tried, which is for the ranks to do.
    if is_dataset(train) and not getattr(train, "steps", ()):
        missing = [c for c in preprocessor.get_input_columns() if c not in train.columns()]
        if missing:
            raise ConfigError(
                f"preprocessor={preprocessor!r} needs columns {missing}, and dataset {FIT_ON!r} "
                f"has {train.columns()}. Name some of these."
            )


def check_can_learn(preprocessor: Preprocessor, datasets: Mapping[str, Any]) -> None:
    """Refuse what has something to learn and no way to, before a run is started.

    Not collective. Without datasets there is nothing that it is applied to: it is stored as it is,
    with each checkpoint, as Ray Train does.

    Raises
    ------
    ConfigError
        The message says what it lacks.
    """
    if datasets and preprocessor._lacks_fit():
        # The base class's, which says what is to be defined.
        preprocessor._fit(None)


def needs_fit(preprocessor: Preprocessor) -> bool:
    """Return whether a preprocessor has to learn something before it is applied. Not collective."""
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

    Collective. One that is fitted is taken as it is. What the run resumes from is looked at first:
    if it holds the same preprocessor, that is taken, so that a run that goes on with other ranks
    has the same numbers. Else it learns from the dataset "train", of which each rank reads a part;
    rank 0 reads the whole where a preprocessor of the user's needs that.

    Parameters
    ----------
    preprocessor
        What the trainer was given.
    datasets
        Datasets by name.
    comm
        The ranks.
    checkpoint
        What the run resumes from.
    heartbeat
        Called for each batch.

    Raises
    ------
    ConfigError
        If it cannot learn from the dataset.
    """
    if not needs_fit(preprocessor) or (not datasets and preprocessor._lacks_fit()):
        return preprocessor
    # One rank reads for all: a shared filesystem need not be asked by each of them.
    text = comm.bcast(_stored(preprocessor, checkpoint) if comm.rank == 0 else None)
    if text is not None:
        # Rank 0 has opened it without trusting it.
        return storage.deserialize(text, trusted=True)
    dataset = _made(datasets[FIT_ON])
    _check_form(FIT_ON, dataset)
    if preprocessor._learns_from_whole():
        fitted = None
        if comm.rank == 0:
            # A fit() of one's own need not return the preprocessor.
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
    """Return a dataset, or a part of one, with a preprocessor applied; a Dataset when it is read.

    Not collective.

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
        log(f"{error} It is fitted again.")
        return None
    return None if stored is None else stored.serialize()


def _made(dataset: Any) -> Any:
    return dataset() if callable(dataset) and not is_dataset(dataset) else dataset


def _check_form(name: str, dataset: Any) -> None:
    if is_dataset(dataset) or hasattr(dataset, "iloc"):
        return
    try:
        columns = f", here {names_of(dataset)}"
    except ConfigError:
        columns = ""
    raise ConfigError(
        f"dataset {name!r} is a {type(dataset).__name__}; with a preprocessor, datasets need "
        f"columns with names{columns}, and rows. Give a hpctrain.data.Dataset, which "
        f"hpctrain.data.from_numpy({{'x': array}}) makes, or a pandas data frame."
    )
