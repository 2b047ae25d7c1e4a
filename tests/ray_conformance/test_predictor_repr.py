"""A predictor shows its class and its preprocessor, as in Ray Train."""

from typing import Any

import numpy as np
import pytest

from hpctrain import ConfigError
from hpctrain.huggingface import TransformersPredictor
from hpctrain.predict import Predictor
from hpctrain.preprocessors import StandardScaler


class Constant(Predictor):
    @classmethod
    def from_checkpoint(cls, checkpoint: Any, **kwargs: Any) -> Predictor:
        return cls()


class WithoutBase(Constant):
    def __init__(self) -> None:
        pass


def test_a_predictor_shows_its_class_and_its_preprocessor() -> None:
    scaler = StandardScaler(["x"])
    assert repr(Constant()) == "Constant()"
    assert repr(Constant(scaler)) == f"Constant(preprocessor={scaler!r})"
    assert repr(WithoutBase()) == "WithoutBase()"


def test_a_predictor_of_transformers_can_be_made_before_its_pipeline() -> None:
    predictor = TransformersPredictor()
    assert repr(predictor) == "TransformersPredictor()"
    with pytest.raises(ConfigError, match="has no pipeline"):
        predictor.predict(np.array(["a"]))
