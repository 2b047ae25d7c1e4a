"""Which features a model was trained on: ``features.json`` beside the model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hpctrain.errors import ConfigError

if TYPE_CHECKING:
    from hpctrain.checkpoint import Checkpoint

C = TypeVar("C", bound="Checkpoint")

FEATURES_NAME = "features.json"


@dataclass(frozen=True, kw_only=True)
class ModelFeatures:
    """What a checkpoint says of its model."""

    framework: str
    """``torch``, ``lightning``, ``xgboost``, ``lightgbm``, ``sklearn``, ``transformers``, ``jax``
    or ``tensorflow``."""
    features: tuple[str, ...] | None = None
    """Names of the features, in order; None if the model has no names for them. Column `x` of shape
    ``(rows, k)`` is the features ``x_0`` to ``x_{k-1}``."""
    label: str | None = None
    """Column that the model predicts, if the trainer knew."""
    categories: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of columns with categories: a value's place is its code, and others are missing."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """xxh3_128 of the model's file, by name, where it is looked at before the file is read."""

    @staticmethod
    def read(directory: str | PathLike[str]) -> ModelFeatures | None:
        """Return what a checkpoint says; None if it says nothing. Not collective.

        Raises
        ------
        ConfigError
            If the file is not what it should be.
        """
        path = Path(directory) / FEATURES_NAME
        try:
            content = json.loads(path.read_bytes())
            names = content.get("features")
            return ModelFeatures(
                framework=str(content["framework"]),
                features=None if names is None else tuple(map(str, names)),
                label=content.get("label"),
                categories={k: tuple(v) for k, v in content.get("categories", {}).items()},
                digests=dict(content.get("digests", {})),
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path} is damaged ({type(error).__name__}: {error}). It has to hold "
                f'{{"framework": ..., "features": [...], "label": ...}}.'
            ) from error

    def write(self, directory: str | PathLike[str]) -> None:
        """Write it beside a model. Not collective."""
        content = {key: value for key, value in asdict(self).items() if value != {}}
        (Path(directory) / FEATURES_NAME).write_text(json.dumps(content), encoding="utf-8")


def describe_model(
    checkpoint: C,
    *,
    framework: str,
    preprocessor: Any = None,
    features: Sequence[str] | None = None,
    label: str | None = None,
) -> C:
    """Write beside a model what it is of, and what batches go through before it.

    Not collective. Returns the checkpoint.
    """
    names = None if features is None else tuple(features)
    ModelFeatures(framework=framework, features=names, label=label).write(checkpoint.path)
    if preprocessor is not None:
        checkpoint.set_preprocessor(preprocessor)
    return checkpoint
