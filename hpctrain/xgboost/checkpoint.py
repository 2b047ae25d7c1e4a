"""`XGBoostCheckpoint`: a directory with ``model.ubj`` and ``features.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hpctrain.gbdt.checkpoint import BoosterCheckpoint
from hpctrain.gbdt.features import Features

if TYPE_CHECKING:
    from xgboost import Booster


class XGBoostCheckpoint(BoosterCheckpoint["Booster"]):
    """A checkpoint that holds a booster, in XGBoost's own format: opening it runs no code."""

    framework: ClassVar[str] = "xgboost"
    model_file: ClassVar[str] = "model.ubj"

    @classmethod
    def features_of(cls, model: Booster) -> Features:
        """Return the features that a booster stores. Not collective."""
        names = model.feature_names or [f"f{index}" for index in range(model.num_features())]
        return Features(names=tuple(names))
