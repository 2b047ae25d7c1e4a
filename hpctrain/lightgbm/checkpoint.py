"""`LightGBMCheckpoint`: a directory with ``model.txt`` and ``features.json``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hpctrain.gbdt.checkpoint import ModelCheckpoint
from hpctrain.gbdt.features import Features
from hpctrain.gbdt.model_file import read_model_file

if TYPE_CHECKING:
    from lightgbm import Booster


class LightGBMCheckpoint(ModelCheckpoint):
    """A checkpoint that holds a booster, in LightGBM's own format: opening it runs no code."""

    framework: ClassVar[str] = "lightgbm"
    model_file: ClassVar[str] = "model.txt"

    @classmethod
    def write_model(cls, model: Booster, path: Path) -> None:
        """Write a booster into a file: its best rounds, if it knows them. Not collective."""
        model.save_model(path)

    @classmethod
    def read_model(cls, path: Path) -> Booster:
        """Return the booster of a file. Not collective.

        Raises
        ------
        CheckpointError
            If it is damaged.
        """
        from lightgbm import Booster

        return read_model_file(path, lambda path: Booster(model_file=path), framework=cls.framework)

    @classmethod
    def features_of(cls, model: Booster) -> Features:
        """Return what a booster knows of its features. Not collective."""
        return Features(names=tuple(model.feature_name()))
