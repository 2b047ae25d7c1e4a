"""Predictors as the documentation of Ray 2.6 shows how to write them."""

import pickle
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from lightning.pytorch import LightningModule
from sklearn.linear_model import LinearRegression

from hpctrain import Checkpoint, ConfigError
from hpctrain.lightning import LightningCheckpoint, LightningPredictor
from hpctrain.predict import Predictor
from hpctrain.preprocessors import BatchMapper
from hpctrain.sklearn import SklearnPredictor
from hpctrain.torch import TorchPredictor


class Scaled(Predictor):
    def __init__(self, factor, preprocessor=None):
        self.factor = factor
        super().__init__(preprocessor)

    @classmethod
    def from_checkpoint(cls, checkpoint, **kwargs):
        return cls(checkpoint.to_dict()["factor"], **kwargs)

    def _predict_pandas(self, df, offset=0):
        return pandas.DataFrame({"made": df.iloc[:, 0] * self.factor + offset})


class ScaledArrays(Scaled):
    _predict_pandas = Predictor._predict_pandas

    def _predict_numpy(self, data, offset=0):
        values = data if isinstance(data, np.ndarray) else data["x"]
        return {"made": values * self.factor + offset}


@pytest.mark.parametrize("kind", [Scaled, ScaledArrays])
def test_predictions_have_the_form_of_the_batch(kind):
    predictor = kind.from_checkpoint(Checkpoint.from_dict({"factor": 3}))
    frame = pandas.DataFrame({"x": [1, 2]})
    assert predictor.predict(frame).to_dict("list") == {"made": [3, 6]}
    assert predictor.predict({"x": np.array([1, 2])}, offset=1)["made"].tolist() == [4, 7]


def test_the_preprocessor_comes_first():
    plus_one = BatchMapper(lambda df: df + 1, batch_format="pandas")
    predictor = Scaled.from_checkpoint(Checkpoint.from_dict({"factor": 3}), preprocessor=plus_one)
    assert predictor.get_preprocessor() is plus_one
    assert predictor.predict(pandas.DataFrame({"x": [1]})).to_dict("list") == {"made": [6]}


def test_one_that_forgets_its_base_says_so():
    class Forgetful(Scaled):
        def __init__(self):
            pass

    with pytest.raises(ConfigError, match=r"Call super\(\)\.__init__\(preprocessor\)"):
        Forgetful().predict({"x": np.array([1])})


def test_an_array_is_predicted_to_what_ray_s_predictors_make_of_it():
    made = TorchPredictor(torch.nn.Identity()).predict(np.array([[1.0], [2.0]]))
    assert list(made) == ["predictions"]
    assert type(made["predictions"]) is np.ndarray
    assert made["predictions"].tolist() == [[1.0], [2.0]]
    named = ScaledArrays.from_checkpoint(Checkpoint.from_dict({"factor": 3}))
    assert named.predict(np.array([1, 2]))["made"].tolist() == [3, 6]
    # The only column of a frame is an array again.
    framed = Scaled.from_checkpoint(Checkpoint.from_dict({"factor": 3}))
    assert framed.predict(np.array([1, 2])).tolist() == [3, 6]
    assert framed.predict(np.array([1, 2]))["made"].tolist() == [3, 6]


def test_the_array_of_an_estimator_is_found_by_the_name_that_some_versions_have():
    made = SklearnPredictor(LinearRegression().fit([[0], [1]], [0, 1])).predict(np.array([[2.0]]))
    assert len(made) == 1
    assert made.tolist() == pytest.approx([2.0])
    assert type(made["predictions"]) is np.ndarray
    with pytest.raises(IndexError):
        made["other"]
    assert type(pickle.loads(pickle.dumps(made))) is np.ndarray


class Twice(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, batch):
        return batch * 2


def test_lightning_s_predictor_takes_another_preprocessor(tmp_path: Path):
    module = Twice()
    content = {"state_dict": module.state_dict(), "pytorch-lightning_version": "2.0.0"}
    torch.save(content, tmp_path / "last.ckpt")
    checkpoint = LightningCheckpoint.from_path(tmp_path / "last.ckpt")
    plus_one = BatchMapper(lambda array: array + 1, batch_format="numpy")
    predictor = LightningPredictor.from_checkpoint(
        checkpoint, model_class=Twice, preprocessor=plus_one
    )
    assert predictor.predict(np.ones((2, 1), np.float32))["predictions"].tolist() == [[4.0]] * 2


def test_a_function_is_given_a_bare_array_in_batches():
    assert BatchMapper(lambda array: array * 2).transform_batch(np.arange(3)).tolist() == [0, 2, 4]
    sizes = []
    mapper = BatchMapper(lambda array: sizes.append(len(array)) or array, batch_size=2)
    assert mapper.transform_batch(np.arange(5)).tolist() == [0, 1, 2, 3, 4]
    assert sizes == [2, 2, 1]
    as_columns = BatchMapper(lambda array: {"x": array}, batch_size=2)
    assert as_columns.transform_batch(np.arange(3))["x"].tolist() == [0, 1, 2]
    assert mapper.transform_batch(np.empty((0, 2))).shape == (0, 2)
    with pytest.raises(ConfigError, match="no columns with names"):
        BatchMapper(lambda df: df, batch_format="pandas").transform_batch(np.arange(3))
