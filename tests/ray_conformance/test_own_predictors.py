"""Predictors as the documentation of Ray 2.6 shows how to write them."""

import numpy as np
import pandas
import pytest

from hpctrain import Checkpoint, ConfigError
from hpctrain.predict import Predictor
from hpctrain.preprocessors import BatchMapper


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
    assert predictor.predict(np.array([1, 2])).tolist() == [3, 6]


def test_the_preprocessor_comes_first():
    plus_one = BatchMapper(lambda df: df + 1, batch_format="pandas")
    predictor = Scaled.from_checkpoint(Checkpoint.from_dict({"factor": 3}), preprocessor=plus_one)
    assert predictor.get_preprocessor() is plus_one
    assert predictor.predict(pandas.DataFrame({"x": [1]})).to_dict("list") == {"made": [6]}


def test_one_that_forgets_its_base_says_so():
    class Forgetful(Scaled):
        def __init__(self):
            pass

    with pytest.raises(ConfigError, match=r"call super\(\)\.__init__\(preprocessor\)"):
        Forgetful().predict({"x": np.array([1])})
