"""``features.json``: the features that a model was trained on."""

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
    """A checkpoint's description of its model."""

    framework: str
    """``torch``, ``lightning``, ``xgboost``, ``lightgbm``, ``sklearn``, ``transformers``, ``jax``
    or ``tensorflow``."""
    features: tuple[str, ...] | None = None
    """Names of the features, in order; None if they have no names. Column `x` of shape
    ``(rows, k)`` is the features ``x_0`` to ``x_{k-1}``."""
    label: str | None = None
    """Column that the model predicts, if known."""
    categories: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of columns with categories: the index of a value is its code; others are missing."""
    missing: float | None = None
    """Value that stands for a missing one, beside NaN."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """xxh3_128 of model files, by name, to check before a file is parsed."""

    @staticmethod
    def read(directory: str | PathLike[str]) -> ModelFeatures | None:
        """Return a checkpoint's description; None if it has none. Not collective.

        Raises
        ------
        ConfigError
            If the file is damaged.
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
                missing=None if content.get("missing") is None else float(content["missing"]),
                digests=dict(content.get("digests", {})),
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path} is damaged ({type(error).__name__}: {error}). Use another checkpoint, or "
                f'write {{"framework": ..., "features": [...], "label": ...}} there.'
            ) from error

    def write(self, directory: str | PathLike[str]) -> None:
        """Write it beside a model. Not collective."""
        content = {key: value for key, value in asdict(self).items() if value != {}}
        if self.missing is None:
            del content["missing"]
        (Path(directory) / FEATURES_NAME).write_text(json.dumps(content), encoding="utf-8")


def describe_model(
    checkpoint: C,
    *,
    framework: str,
    preprocessor: Any = None,
    features: Sequence[str] | None = None,
    label: str | None = None,
) -> C:
    """Write the description of a model, and its preprocessor, beside it.

    Not collective. Returns the checkpoint.
    """
    names = None if features is None else tuple(features)
    ModelFeatures(framework=framework, features=names, label=label).write(checkpoint.path)
    if preprocessor is not None:
        checkpoint.set_preprocessor(preprocessor)
    return checkpoint
