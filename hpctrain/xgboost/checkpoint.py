"""`XGBoostCheckpoint`: a directory with ``model.ubj`` and ``features.json``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hpctrain.gbdt.checkpoint import ModelCheckpoint
from hpctrain.gbdt.features import Features
from hpctrain.gbdt.model_file import read_model_file

if TYPE_CHECKING:
    from xgboost import Booster


class XGBoostCheckpoint(ModelCheckpoint):
    """A checkpoint that holds a booster, in XGBoost's own format: opening it runs no code."""

    framework: ClassVar[str] = "xgboost"
    model_file: ClassVar[str] = "model.ubj"

    @classmethod
    def write_model(cls, model: Booster, path: Path) -> None:
        """Write a booster into a file. Not collective."""
        model.save_model(path)

    @classmethod
    def read_model(cls, path: Path) -> Booster:
        """Return the booster of a file. Not collective.

        Raises
        ------
        CheckpointError
            If it is damaged.
        """
        from xgboost import Booster

        return read_model_file(path, lambda path: Booster(model_file=path), framework=cls.framework)

    @classmethod
    def features_of(cls, model: Booster) -> Features:
        """Return what a booster knows of its features. Not collective."""
        names = model.feature_names or [f"f{index}" for index in range(model.num_features())]
        return Features(names=tuple(names))
