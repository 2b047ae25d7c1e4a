"""The columns of a batch that are the features of a model, as a matrix or a frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from hpctrain.data.batch import flat_rows
from hpctrain.data.pandas_batches import from_pandas
from hpctrain.data.schema import check_columns
from hpctrain.errors import ConfigError

# Feature names that XGBoost and LightGBM make up.
_MADE_UP = ("f", "Column_")


def expand_names(columns: Mapping[str, Sequence[int]]) -> dict[str, list[str]]:
    """Return the features that each column holds.

    Not collective.

    Parameters
    ----------
    columns
        Shape of a row, by column; ``()`` for a plain column.

    Examples
    --------
    >>> expand_names({"age": (), "pixels": (2,)})
    {'age': ['age'], 'pixels': ['pixels_0', 'pixels_1']}
    """
    return {
        name: [f"{name}_{i}" for i in range(int(np.prod(shape)))] if len(shape) else [name]
        for name, shape in columns.items()
    }


def columns_of_features(
    columns: Mapping[str, Sequence[int]],
    features: Sequence[str],
    *,
    ignore: Iterable[str] = (),
    where: str = "the input",
) -> list[str]:
    """Return the columns that hold all features of a model.

    Not collective.

    Parameters
    ----------
    columns
        Shape of a row, by column.
    features
        Features that the model was trained on.
    ignore
        Columns that may exist without being a feature: the label, and columns to keep.
    where
        Owner of the columns, for the error.

    Raises
    ------
    ConfigError
        If a feature is missing, or one is unknown.

    Notes
    -----
    A model that was trained without names has made-up ones of its library, ``f0`` or ``Column_0``.
    It takes all columns in order, if their number is right.
    """
    expanded = expand_names(columns)
    wanted, ignored = set(features), set(ignore)
    chosen = [name for name, parts in expanded.items() if wanted.intersection(parts)]
    if not chosen and _are_made_up(features):
        chosen = [name for name in expanded if name not in ignored]
        if sum(len(expanded[name]) for name in chosen) == len(features):
            return chosen
    found = {part for name in chosen for part in expanded[name]}
    vanished = [name for name in features if name not in found]
    others = [n for n in expanded if n not in chosen and n not in ignored]
    appeared = others + sorted(found - wanted)
    complaints = []
    if vanished:
        complaints.append(f"{where} has no {_some(vanished)}, which the model was trained on")
    if appeared:
        complaints.append(f"{where} has {_some(appeared)}, which the model was not trained on")
    if complaints:
        raise ConfigError(
            f"{'; '.join(complaints)}. The model has {len(features)} features: "
            f"{_some(list(features))}. Choose its columns with feature_columns=[...], or rename "
            f"them."
        )
    return chosen


def feature_matrix(
    batch: Mapping[str, np.ndarray[Any, Any]], features: Sequence[str] | None
) -> np.ndarray[Any, Any]:
    """Return columns side by side, in the order of a model's features.

    Not collective. A single column that holds all features is returned without a copy.

    Parameters
    ----------
    batch
        Arrays of shape ``(rows,)`` or ``(rows, ...)``.
    features
        Names in order; None takes all columns in order.

    Returns
    -------
    numpy.ndarray
        Shape ``(rows, features)``.

    Raises
    ------
    ConfigError
        If a feature is missing, or the model was not trained on a column.
    """
    flat = {name: flat_rows(values) for name, values in batch.items()}
    if features is None:
        order = tuple(flat)
    else:
        order, position = _arrange(_shapes_of(batch), tuple(features))
        if position is not None:
            _check_common_type(batch, [name for name, _ in position])
            return np.stack([flat[name][:, i] for name, i in position], axis=1)
    if len(order) == 1:
        return flat[order[0]]
    _check_common_type(batch, order)
    return np.concatenate([flat[name] for name in order], axis=1)


def _shapes_of(batch: Mapping[str, np.ndarray[Any, Any]]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, values.shape[1:]) for name, values in batch.items())


def _check_common_type(batch: Mapping[str, np.ndarray[Any, Any]], columns: Iterable[str]) -> None:
    """Raise if NumPy would have to change values to give the columns one type."""
    kinds = {batch[name].dtype.kind for name in columns}
    if len(kinds) > 1 and not kinds <= set("biufc") and kinds & set("MmUSV"):
        types = ", ".join(f"{name!r} {batch[name].dtype}" for name in dict.fromkeys(columns))
        raise ConfigError(
            f"these features have no common type: {types}. Encode those that are not numbers with "
            f"a preprocessor, or leave them out with feature_columns=[...]."
        )


def feature_frame(batch: Mapping[str, np.ndarray[Any, Any]], features: Sequence[str] | None) -> Any:
    """Return columns as a DataFrame; each feature keeps its type.

    Not collective. The arguments and errors are those of `feature_matrix`.
    """
    import pandas

    flat = {name: flat_rows(values) for name, values in batch.items()}
    place = {
        part: (name, i)
        for name, parts in expand_names(dict(_shapes_of(batch))).items()
        for i, part in enumerate(parts)
    }
    if features is not None:
        order, position = _arrange(_shapes_of(batch), tuple(features))
        if not place.keys() >= set(features):
            # Made-up names.
            position = tuple((name, i) for name in order for i in range(flat[name].shape[1]))
        if position is None:
            position = tuple(place[feature] for feature in features)
        place = dict(zip(features, position, strict=True))
    return pandas.DataFrame({part: flat[name][:, i] for part, (name, i) in place.items()})


# Called for every batch; all batches of a dataset have the same columns.
@lru_cache(maxsize=64)
def _arrange(
    shapes: tuple[tuple[str, tuple[int, ...]], ...], features: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...] | None]:
    """Return columns in the order of the features; and the place of each, unless contiguous."""
    chosen = columns_of_features(dict(shapes), features, where="the batch")
    parts = expand_names({name: shape for name, shape in shapes if name in chosen})
    if set(features).isdisjoint(part for names in parts.values() for part in names):
        # Made-up names.
        return tuple(parts), None
    order = tuple(sorted(parts, key=lambda name: features.index(parts[name][0])))
    if [part for name in order for part in parts[name]] == list(features):
        return order, None
    place = {part: (name, i) for name in order for i, part in enumerate(parts[name])}
    return order, tuple(place[feature] for feature in features)


def check_width(matrix: np.ndarray[Any, Any], features: Sequence[str] | None) -> None:
    """Check that a bare array has as many columns as a model has features. Not collective.

    Raises
    ------
    ConfigError
        If it has not.
    """
    width = 1 if matrix.ndim == 1 else int(np.prod(matrix.shape[1:]))
    if features is not None and width != len(features):
        raise ConfigError(
            f"an array of shape {matrix.shape} has {width} columns, but the model was trained on "
            f"{len(features)} features: {_some(list(features))}. Give these, in this order."
        )


def _are_made_up(features: Sequence[str]) -> bool:
    return any(
        list(features) == [f"{start}{i}" for i in range(len(features))] for start in _MADE_UP
    )


def _some(names: list[str], *, most: int = 6) -> str:
    shown: list[Any] = names[:most]
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, shown)) + rest


def select_matrix(
    data: Any,
    features: Sequence[str] | None,
    feature_columns: Sequence[str] | Sequence[int] | None = None,
) -> np.ndarray[Any, Any]:
    """Return a batch as a matrix with the features of a model.

    Not collective.

    Parameters
    ----------
    data
        A bare array, whose columns are features by position, or a dict of arrays.
    features
        Names of the features, in order; None takes all columns.
    feature_columns
        Columns that hold them: names, or positions in a bare array. None takes all.

    Raises
    ------
    ConfigError
        If a feature is missing, or one is unknown.
    """
    if isinstance(data, np.ndarray):
        matrix = data if feature_columns is None else data[:, np.asarray(feature_columns)]
        check_width(matrix, features)
        return flat_rows(matrix)
    return feature_matrix(select_columns(data, feature_columns), features)


def select_columns(
    batch: Mapping[str, Any], feature_columns: Sequence[str] | Sequence[int] | None
) -> Mapping[str, Any]:
    """Return columns of a batch; None is all.

    Not collective.

    Raises
    ------
    ConfigError
        If one does not exist.
    """
    if feature_columns is None:
        return batch
    check_columns(map(str, feature_columns), list(batch))
    return {str(name): batch[str(name)] for name in feature_columns}


def select_frame(
    frame: Any,
    features: Sequence[str] | None,
    feature_columns: Sequence[str] | Sequence[int] | None = None,
) -> Any:
    """Return a DataFrame with the features of a model, in order; columns keep their types.

    Not collective. A column of arrays becomes one column for each component.

    Raises
    ------
    ConfigError
        If a feature is missing, or one is unknown.
    """
    if feature_columns is not None:
        check_columns(map(str, feature_columns), [str(name) for name in frame.columns])
        frame = frame[list(feature_columns)]
    frame = flatten_frame(frame)
    if features is None:
        return frame
    names = {str(name): name for name in frame.columns}
    columns_of_features(dict.fromkeys(names, ()), features, where="the batch")
    return frame[[names[feature] for feature in features]]


def flatten_frame(frame: Any) -> Any:
    """Return a DataFrame with a column of numbers for each component of its columns of arrays.

    Not collective. ``name`` becomes ``name_0``, ``name_1``, ... in its place.
    """
    arrays = array_columns(frame)
    if not arrays:
        return frame
    import pandas

    parts = []
    for name in frame.columns:
        part = frame[[name]]
        if (values := arrays.get(str(name))) is not None:
            (names,) = expand_names({str(name): values.shape[1:]}).values()
            part = pandas.DataFrame(flat_rows(values), index=frame.index, columns=names)
        parts.append(part)
    return pandas.concat(parts, axis=1)


def array_columns(frame: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return the columns of a DataFrame whose cells are arrays, stacked. Not collective."""
    objects = [
        name
        for name, dtype in zip(frame.columns, frame.dtypes, strict=True)
        if isinstance(dtype, np.dtype) and dtype.kind == "O"
    ]
    if not len(frame) or not objects:
        return {}
    return {n: values for n, values in from_pandas(frame[objects]).items() if values.ndim > 1}
