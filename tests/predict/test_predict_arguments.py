"""An argument of ``BatchPredictor.predict()`` that nobody has is refused before ranks start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain import Checkpoint, ConfigError, RunConfig
from hpctrain.data import from_numpy
from hpctrain.predict import BatchPredictor, Predictor
from hpctrain.predict.predict_arguments import check_arguments
from hpctrain.torch import TorchPredictor
from hpctrain.xgboost import XGBoostPredictor

OWN = ("batch_size", "keep_columns", "output")


class Scaled(Predictor):
    """Takes one argument by name, and no others."""

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, **kwargs: Any) -> Scaled:
        return cls()

    def _predict_numpy(self, data: Any, factor: float = 1.0) -> Any:
        return data["x"] * factor


@pytest.mark.parametrize("method", ["predict", "submit"])
def test_a_slip_is_refused_with_the_name_that_is_meant_and_nothing_is_made(
    method: str, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    predictor = BatchPredictor(Checkpoint(tmp_path / "model"), Scaled)
    run_config = RunConfig(storage_path=tmp_path / "runs")
    with pytest.raises(TypeError, match=r"no argument 'batch_sise'.+ Did you mean 'batch_size'\?"):
        getattr(predictor, method)(
            from_numpy({"x": np.ones(3)}), batch_sise=2, run_config=run_config
        )
    assert not (tmp_path / "runs").exists()


def test_an_argument_of_the_predictor_is_taken_and_one_like_it_refused() -> None:
    check_arguments(Scaled, {"factor": 2.0}, own=OWN)
    with pytest.raises(ConfigError, match=r"neither has Scaled\. Did you mean 'factor'\?"):
        check_arguments(Scaled, {"facto": 2.0}, own=OWN)
    with pytest.raises(ConfigError, match=r"Use batch_size, keep_columns, output, factor, "):
        check_arguments(Scaled, {"quite_another": 2.0}, own=OWN)


def test_what_a_model_may_have_is_left_to_it_unless_it_is_a_slip() -> None:
    taken = {"output_margin": True, "pred_leaf": True, "iteration_range": (0, 1)}
    check_arguments(XGBoostPredictor, taken, own=OWN)
    check_arguments(TorchPredictor, {"dtype": None}, own=OWN)
    for slip, meant in (("dmatrix_kwarg", "dmatrix_kwargs"), ("max_scoring_worker", "max_")):
        with pytest.raises(ConfigError, match=f"no argument '{slip}'.+ Did you mean '{meant}"):
            check_arguments(XGBoostPredictor, {slip: 1}, own=OWN)


def test_a_predictor_with_a_predict_of_its_own_says_what_it_takes() -> None:
    class Own(Scaled):
        def predict(self, data: Any, *, threshold: float = 0.5) -> Any:
            return super().predict(data)

    check_arguments(Own, {"threshold": 0.1}, own=OWN)
    with pytest.raises(ConfigError, match="Did you mean 'threshold'"):
        check_arguments(Own, {"treshold": 0.1}, own=OWN)
