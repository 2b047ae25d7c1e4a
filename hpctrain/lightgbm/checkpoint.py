"""`LightGBMCheckpoint`: a directory with ``model.txt`` and ``features.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hpctrain.gbdt.checkpoint import BoosterCheckpoint
from hpctrain.gbdt.features import Features

if TYPE_CHECKING:
    from lightgbm import Booster


class LightGBMCheckpoint(BoosterCheckpoint["Booster"]):
    """A checkpoint that holds a booster, in LightGBM's own format: opening it runs no code."""

    framework: ClassVar[str] = "lightgbm"
    model_file: ClassVar[str] = "model.txt"

    @classmethod
    def features_of(cls, model: Booster) -> Features:
        """Return the features that a booster stores. Not collective."""
        return Features(names=tuple(model.feature_name()))
