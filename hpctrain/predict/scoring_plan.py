"""Makes a `Scoring` from the user's arguments and the description of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpctrain import pickle_trust
from hpctrain.checks import check_count
from hpctrain.data.dataset import Dataset
from hpctrain.data.identity import identify_files
from hpctrain.data.schema import Schema, check_columns
from hpctrain.errors import ConfigError
from hpctrain.plan.spec import make_fingerprint, pack
from hpctrain.predict.batches import PREDICTIONS
from hpctrain.predict.feature_columns import columns_of_features
from hpctrain.predict.features import ModelFeatures
from hpctrain.predict.identity import Identity
from hpctrain.predict.input import schema_after
from hpctrain.predict.output import Output
from hpctrain.predict.predictor import Predictor
from hpctrain.predict.scoring import Scoring
from hpctrain.preprocessors import storage


def plan_scoring(
    dataset: Dataset,
    *,
    predictor_cls: type[Predictor],
    predictor_kwargs: Mapping[str, Any],
    predict_kwargs: Mapping[str, Any],
    checkpoint: Path | None,
    model: ModelFeatures | None,
    preprocessor: Any,
    replaces_preprocessor: Any,
    feature_columns: Sequence[str] | None,
    keep_columns: Sequence[str],
    batch_size: int,
    rows_per_part: int | None,
    output: Output | None,
) -> Scoring:
    """Return a checked batch prediction, with its identity.

    Not collective.

    Parameters
    ----------
    model
        The checkpoint's description of the model.
    preprocessor
        Preprocessor of batches.
    replaces_preprocessor
        The preprocessor if it is not the checkpoint's, else None.
    rows_per_part
        Rows of a part; rounded up to whole batches.

    Raises
    ------
    ConfigError
        If a value is impossible, there are no rows, or a column is missing.
    """
    check_count("batch_size", batch_size, at_least=1)
    check_count("rows_per_part", rows_per_part, at_least=1, optional=True)
    for name, given in (("feature_columns", feature_columns), ("keep_columns", keep_columns)):
        if isinstance(given, str):
            raise ConfigError(f"{name}={given!r} is a text, not a list of names. Give [{given!r}].")
    if dataset.source.num_rows == 0:
        raise ConfigError(
            "the input has no rows, so there is nothing to predict. Check its paths and filters."
        )
    schema = schema_after(preprocessor, dataset)
    columns = _choose_columns(schema, model, feature_columns, tuple(keep_columns))
    if preprocessor is None:
        dataset = dataset.select_columns(list(dict.fromkeys((*columns, *keep_columns))))
    if rows_per_part is not None:
        rows_per_part = -(-rows_per_part // batch_size) * batch_size
    scoring = Scoring(
        dataset=dataset,
        predictor_cls=predictor_cls,
        checkpoint=checkpoint,
        predictor_kwargs=predictor_kwargs,
        predict_kwargs=predict_kwargs,
        preprocessor=replaces_preprocessor,
        own_pickles=frozenset() if checkpoint is None else _own_pickles(checkpoint),
        feature_columns=columns,
        keep_columns=tuple(keep_columns),
        batch_size=batch_size,
        rows_per_part=rows_per_part,
        output=output,
        identity=Identity(whole="", inputs="", model="", about=""),
    )
    about = f"{predictor_cls.__name__} of {checkpoint}, {dataset!r}"
    return replace(scoring, identity=_identify(scoring, about))


def _choose_columns(
    schema: Schema,
    model: ModelFeatures | None,
    feature_columns: Sequence[str] | None,
    keep_columns: tuple[str, ...],
) -> tuple[str, ...]:
    """Return the columns for the predictor."""
    check_columns(keep_columns, schema.names)
    if PREDICTIONS in keep_columns:
        raise ConfigError(
            f"keep_columns={list(keep_columns)} has {PREDICTIONS!r}, the name of the output. "
            f"Rename this column of the input, or leave it out of keep_columns."
        )
    names = None if model is None else model.features
    label = None if model is None else model.label
    if feature_columns is not None:
        check_columns(feature_columns, schema.names)
        chosen = list(feature_columns)
    else:
        not_features = {*keep_columns, label} if names is None else set()
        chosen = [name for name in schema.names if name not in not_features]
    if names is not None:
        shapes = {name: schema[name].shape for name in chosen}
        labels = () if label is None else (label,)
        ignore = () if feature_columns is not None else (*keep_columns, *labels)
        chosen = columns_of_features(shapes, names, ignore=ignore)
    return tuple(chosen)


def _own_pickles(checkpoint: Path) -> frozenset[str]:
    """Return the digests of the pickles in a checkpoint that this process has made."""
    return storage.recognized_in(checkpoint) | pickle_trust.made_here_in(checkpoint)


def _identify(scoring: Scoring, about: str) -> Identity:
    """Return digests of all that predictions depend on, including the files of input and model."""
    inputs, model = map(identify_files, (scoring.input_files(), scoring.model_files()))
    # Predictions depend neither on the partition into parts nor on the path of the output. The
    # digest of the checkpoint's files does not depend on their owner.
    content = replace(scoring, output=None, rows_per_part=None, own_pickles=frozenset())
    whole = make_fingerprint(pack(content, what="the prediction"), f"{inputs} {model}".encode())
    return Identity(whole=whole, inputs=inputs, model=model, about=about)
