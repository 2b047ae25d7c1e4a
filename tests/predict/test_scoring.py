"""What a rank computes of a batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from hpctrain.predict import Predictor
from hpctrain.predict.scoring import Scorer
from hpctrain.torch import TorchPredictor


class InPlace(Predictor):
    @classmethod
    def from_checkpoint(cls, checkpoint, **kwargs):
        return cls()

    def _predict_numpy(self, data):
        for values in data.values():
            values -= 100
        return {"p": next(iter(data.values()))}


class InPlaceOfFrames(InPlace):
    def _predict_pandas(self, data):
        for cell in data.iloc[:, 0]:
            cell -= 100
        return pd.DataFrame({"p": data.iloc[:, 0]})

    _predict_numpy = Predictor._predict_numpy


class Subtracts(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sub_(100.0)


class ViewOfX:
    def transform_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "f": batch["x"][:, :1]}


@pytest.mark.parametrize(
    ("predictor", "features"),
    [
        (InPlace(), "x"),
        (InPlace(ViewOfX()), "f"),
        (InPlaceOfFrames(), "x"),
        (TorchPredictor(Subtracts()), "x"),
    ],
)
def test_kept_columns_are_those_of_the_input_if_a_predictor_works_in_place(
    predictor: Predictor, features: str
):
    scoring: Any = SimpleNamespace(
        feature_columns=(features,), keep_columns=("x",), predict_kwargs={}
    )
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    scored = Scorer(predictor, scoring)({"x": x.copy()})
    predictions = scored.get("p", scored.get("predictions"))
    assert predictions.tolist() == (x[:, : predictions.shape[1]] - 100).tolist()
    assert scored["x"].tolist() == x.tolist()
