from __future__ import annotations

import json
import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from hpctrain import Checkpoint, ConfigError
from hpctrain.data import from_numpy
from hpctrain.predict import Predictor, PredictorNotSerializableException
from hpctrain.preprocessors import MaxAbsScaler


class Doubles(Predictor):
    """Twice the only column."""

    framework = "doubles"

    @classmethod
    def from_checkpoint(cls, checkpoint, **kwargs):
        cls.check_checkpoint(checkpoint)
        return cls(preprocessor=checkpoint.get_preprocessor(), **kwargs)

    def _predict_numpy(self, data, times=2):
        values = data if isinstance(data, np.ndarray) else data["x"]
        return values * times


class HalvesFrames(Predictor):
    @classmethod
    def from_checkpoint(cls, checkpoint, **kwargs):
        return cls()

    def _predict_pandas(self, data):
        return pd.DataFrame({"half": data["x"] / 2})


class Plus10:
    """A preprocessor."""

    def transform_batch(self, batch):
        if isinstance(batch, dict):
            return {name: values + 10 for name, values in batch.items()}
        return batch + 10


X = np.arange(4.0)


def test_an_array_is_predicted_to_an_array():
    predicted = Doubles().predict(X)
    assert isinstance(predicted, np.ndarray)
    assert predicted.tolist() == [0, 2, 4, 6]


def test_columns_are_predicted_to_columns():
    predicted = Doubles().predict({"x": X})
    assert list(predicted) == ["predictions"]
    assert predicted["predictions"].tolist() == [0, 2, 4, 6]


def test_a_frame_is_predicted_to_a_frame_with_the_same_index():
    predicted = Doubles().predict(pd.DataFrame({"x": X}, index=[7, 5, 3, 1]))
    assert isinstance(predicted, pd.DataFrame)
    assert predicted["predictions"].to_dict() == {7: 0, 5: 2, 3: 4, 1: 6}


def test_a_table_is_predicted_to_a_table():
    predicted = Doubles().predict(pa.table({"x": X}))
    assert isinstance(predicted, pa.Table)
    assert predicted.to_pydict() == {"predictions": [0, 2, 4, 6]}


@pytest.mark.parametrize("make", [lambda x: {"x": x}, lambda x: pa.table({"x": x})])
def test_a_predictor_of_frames_takes_every_form_with_columns(make):
    batch = make(X)
    predicted = HalvesFrames().predict(batch)
    assert type(predicted) is type(batch)
    assert np.asarray(predicted["half"]).tolist() == [0, 0.5, 1, 1.5]


def test_several_outputs_in_a_frame_are_a_column_each():
    class Both(Doubles):
        def _predict_numpy(self, data):
            return {"p": np.stack([data["x"], 1 - data["x"]], axis=1)}

    predicted = Both().predict(pd.DataFrame({"x": X}))
    assert list(predicted.columns) == ["p_0", "p_1"]


def test_arguments_reach_the_hook():
    assert Doubles().predict(X, times=3).tolist() == [0, 3, 6, 9]


def test_a_batch_goes_through_the_preprocessor_first():
    predictor = Doubles(preprocessor=Plus10())
    assert predictor.predict({"x": X})["predictions"].tolist() == [20, 22, 24, 26]
    predictor.set_preprocessor(None)
    assert predictor.get_preprocessor() is None
    assert predictor.predict({"x": X})["predictions"].tolist() == [0, 2, 4, 6]


def test_the_preprocessor_of_the_checkpoint_is_used(tmp_path):
    checkpoint = Checkpoint(tmp_path)
    checkpoint.set_preprocessor(MaxAbsScaler(columns=["x"]).fit(from_numpy({"x": X * 2})))
    predicted = Doubles.from_checkpoint(checkpoint).predict({"x": X * 3})
    assert predicted["predictions"].tolist() == [0, 1, 2, 3]


def test_a_function_of_frames_is_a_predictor():
    predictor = Predictor.from_pandas_udf(lambda frame: frame * 3)
    assert predictor.predict({"x": X})["x"].tolist() == [0, 3, 6, 9]


def test_the_form_that_costs_least_is_that_of_the_hook():
    assert Doubles.preferred_batch_format() == "numpy"
    assert HalvesFrames.preferred_batch_format() == "pandas"


def test_a_predictor_is_not_pickled_but_its_class_is():
    assert pickle.loads(pickle.dumps(Predictor)) is Predictor
    with pytest.raises(PredictorNotSerializableException, match="Send the checkpoint"):
        pickle.dumps(Doubles())


def test_a_batch_of_another_type_is_refused():
    with pytest.raises(ConfigError, match="cannot score a batch of type list"):
        Doubles().predict([1.0, 2.0])


def test_a_prediction_with_another_number_of_rows_is_returned_as_it_is():
    class Short(Doubles):
        def _predict_numpy(self, data):
            return data[:-1] if isinstance(data, np.ndarray) else data["x"][:-1]

    assert Short().predict(X).tolist() == [0, 1, 2]
    frame = pd.DataFrame({"x": X}, index=[7, 5, 3, 1])
    assert Short().predict(frame)["predictions"].to_dict() == {0: 0, 1: 1, 2: 2}


def test_outputs_of_unlike_lengths_and_without_rows_are_refused():
    class Odd(Doubles):
        output = None

        def _predict_numpy(self, data):
            return self.output

    odd = Odd()
    odd.output = {"a": X, "b": X[:1]}
    with pytest.raises(ConfigError, match="returned a dict"):
        odd.predict(X)
    odd.output = np.array(1.0)
    with pytest.raises(ConfigError, match="a single value as 'predictions' for 4 rows"):
        odd.predict(X)


def test_a_predictor_that_predicts_nothing_says_so():
    class Nothing(Predictor):
        @classmethod
        def from_checkpoint(cls, checkpoint, **kwargs):
            return cls()

    with pytest.raises(ConfigError, match="Define _predict_numpy or _predict_pandas"):
        Nothing().predict(X)


def test_a_checkpoint_of_another_framework_is_refused(tmp_path):
    (tmp_path / "features.json").write_text(
        json.dumps({"framework": "xgboost", "features": ["a"], "label": None})
    )
    with pytest.raises(
        ConfigError, match="a model of xgboost, but Doubles loads models of doubles"
    ):
        Doubles.from_checkpoint(Checkpoint(tmp_path))


def test_damaged_features_are_said_to_be(tmp_path):
    (tmp_path / "features.json").write_text("{")
    with pytest.raises(ConfigError, match="is damaged"):
        Doubles.from_checkpoint(Checkpoint(tmp_path))
