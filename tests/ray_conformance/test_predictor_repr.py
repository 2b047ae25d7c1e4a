"""A predictor shows its class and its preprocessor, as in Ray Train."""

from typing import Any

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
