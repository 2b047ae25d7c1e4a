from __future__ import annotations

import base64
import datetime
import decimal
import io
import json
import pickle
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import sklearn.preprocessing
from numpy.testing import assert_array_equal

from hpctrain import preprocessors
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.preprocessors import (
    BatchMapper,
    Categorizer,
    Chain,
    ColumnPreprocessor,
    Concatenator,
    CountVectorizer,
    CustomKBinsDiscretizer,
    FeatureHasher,
    HashingVectorizer,
    LabelEncoder,
    MaxAbsScaler,
    MinMaxScaler,
    MultiHotEncoder,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    Preprocessor,
    RobustScaler,
    SimpleImputer,
    SklearnPreprocessor,
    StandardScaler,
    Tokenizer,
    TorchVisionPreprocessor,
    UniformKBinsDiscretizer,
    encoding,
    load,
    save,
    storage,
)
from hpctrain.preprocessors.storage import load_same
from tests.preprocessors.example_batch import BATCH


def twice(value: Any) -> Any:
    return value * 2


OURS = [
    Categorizer(["c"], dtypes={"c": pandas.CategoricalDtype(["a", "$"], ordered=True)}),
    Categorizer(["c", "n"], output_columns=["c", "m"]),
    Chain(SimpleImputer(["x"]), Chain(RobustScaler(["x"], (0.1, 0.9)), Concatenator(["x", "n"]))),
    Concatenator(["x", "v"], "all", np.float32, flatten=True),
    Concatenator(include=["n", "x", "v"], exclude=["v"]),
    CountVectorizer(["t"], max_features=2),
    CustomKBinsDiscretizer(["x"], [0, 2, 4.5], include_lowest=True),
    FeatureHasher(["x", "n"], 4, "h"),
    HashingVectorizer(["t"], 5),
    LabelEncoder("c", output_column="y"),
    MaxAbsScaler(["v"]),
    MinMaxScaler(["x", "v"], ["a", "b"]),
    MultiHotEncoder(["c"]),
    Normalizer(["full", "v"], "l1"),
    OneHotEncoder(["n"], max_categories={"n": 2}),
    OrdinalEncoder(["n", "c"]),
    PowerTransformer(["full"], 0.5, "box-cox"),
    RobustScaler(["v"]),
    SimpleImputer(["x"], "constant", fill_value=-1.5),
    SimpleImputer(["c"], "most_frequent"),
    SklearnPreprocessor(sklearn.preprocessing.QuantileTransformer(n_quantiles=3), ["v"]),
    StandardScaler(["x", "v"]),
    Tokenizer(["t"]),
    UniformKBinsDiscretizer(["full"], 3, dtypes={"full": np.int16}),
]
NEED_TRUST = [
    BatchMapper(lambda batch: {**batch, "x": batch["x"] + 1}),
    Chain(StandardScaler(["x"]), Tokenizer(["t"], lambda text: text.split("t"))),
    TorchVisionPreprocessor(["v"], twice, batched=True),
]


def test_nothing_is_left_out_here():
    tested = {type(preprocessor).__name__ for preprocessor in [*OURS, *NEED_TRUST]}
    public = (getattr(preprocessors, name) for name in preprocessors.__all__)
    classes = {c for c in public if isinstance(c, type) and issubclass(c, Preprocessor)}
    assert tested == {c.__name__ for c in classes - {Preprocessor, ColumnPreprocessor}}


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert one.dtype == object or one.tobytes() == other.tobytes()
        assert one.dtype != object or one.tolist() == other.tolist()
    else:
        pandas.testing.assert_frame_equal(one, other)


@pytest.mark.parametrize("preprocessor", OURS, ids=lambda p: type(p).__name__)
def test_what_is_stored_does_the_same_to_the_last_bit(preprocessor: Preprocessor, tmp_path: Path):
    unfitted = Preprocessor.deserialize(preprocessor.serialize())
    assert unfitted.fit_status() == preprocessor.fit_status()
    fitted = unfitted.fit(BATCH)
    save(fitted, tmp_path)
    frame = pandas.DataFrame({name: list(values) for name, values in BATCH.items()})
    for copy in (
        load(tmp_path),
        Preprocessor.deserialize(fitted.serialize()),
        pickle.loads(pickle.dumps(fitted)),
    ):
        assert repr(copy) == repr(fitted) or isinstance(fitted, Categorizer)
        assert_same(copy.transform_batch(BATCH), fitted.transform_batch(BATCH))
        assert_same(copy.transform_batch(frame), fitted.transform_batch(frame))


@pytest.mark.parametrize("preprocessor", NEED_TRUST, ids=lambda p: type(p).__name__)
def test_functions_of_others_are_opened_only_if_they_are_trusted(
    preprocessor: Preprocessor, tmp_path: Path, in_another_process: Callable[[], None]
):
    fitted = Preprocessor.deserialize(preprocessor.serialize(), trusted=True).fit(BATCH)
    save(fitted, tmp_path)
    text = fitted.serialize()
    in_another_process(tmp_path)
    message = r"holds a pickle; opening it runs code\. .* open it with trusted=True"
    why = rf"{tmp_path} can be written by others \(mode 0775\)\..* chmod -R go-w {tmp_path}\."
    with pytest.raises(CheckpointError, match=message) as caught:
        load(tmp_path)
    assert re.search(why, str(caught.value))
    with pytest.raises(CheckpointError, match=message):
        Preprocessor.deserialize(text)
    assert_same(load(tmp_path, trusted=True).transform_batch(BATCH), fitted.transform_batch(BATCH))
    tmp_path.chmod(0o755)
    assert_same(load(tmp_path).transform_batch(BATCH), fitted.transform_batch(BATCH))


@pytest.mark.parametrize("preprocessor", NEED_TRUST, ids=lambda p: type(p).__name__)
def test_what_this_process_has_pickled_it_opens(preprocessor: Preprocessor, tmp_path: Path):
    fitted = Preprocessor.deserialize(preprocessor.serialize()).fit(BATCH)
    save(fitted, tmp_path)
    assert_same(load(tmp_path).transform_batch(BATCH), fitted.transform_batch(BATCH))


def test_one_changed_byte_makes_a_pickle_that_of_somebody_else(tmp_path: Path):
    text = BatchMapper(np.copy, batch_format="numpy").serialize()
    content = json.loads(text)
    ((name, stored),) = content["arrays"].items()
    changed = np.load(io.BytesIO(base64.b64decode(stored)))
    changed = np.append(changed, np.uint8(0))
    new = encoding.digest(changed)
    forged = text.replace(name, new).replace(stored, storage._array_text(changed))
    with pytest.raises(CheckpointError, match="holds a pickle"):
        Preprocessor.deserialize(forged)
    Preprocessor.deserialize(text)


def test_a_class_of_ones_own_is_stored_and_needs_trust_elsewhere(
    tmp_path: Path, in_another_process: Callable[..., None]
):
    class Doubler(ColumnPreprocessor):
        def __init__(self, columns: list[str]) -> None:
            self.columns = columns

        def _fit_columns(self, rows: Any, comm: Any) -> dict[str, Any]:
            return {"factor": 2}

        def _transform_columns(self, columns: Any) -> Any:
            return {name: values * self._stats["factor"] for name, values in columns.items()}

    save(Doubler(["x"]).fit(BATCH), tmp_path)
    in_another_process(tmp_path)
    with pytest.raises(CheckpointError, match="trusted=True"):
        load(tmp_path)
    made = load(tmp_path, trusted=True).transform_batch({"x": np.array([1.5])})
    assert_array_equal(made["x"], [3.0])


def test_large_statistics_are_beside_the_json(tmp_path: Path):
    save(StandardScaler(["v"]).fit({"v": np.ones((2, 5000))}), tmp_path)
    assert (tmp_path / "preprocessor.json").stat().st_size < 2000
    assert (tmp_path / "preprocessor.npz").stat().st_size > 80_000


def test_a_text_that_is_damaged_is_said_to_be(tmp_path: Path):
    with pytest.raises(CheckpointError, match="holds no preprocessor"):
        load(tmp_path)
    save(StandardScaler(["v"]).fit(BATCH), tmp_path)
    whole = (tmp_path / "preprocessor.json").read_text()
    for damaged in ("", "[]", "{}", whole[:-20], whole.replace("StandardScaler", "Other")):
        (tmp_path / "preprocessor.json").write_text(damaged)
        with pytest.raises(CheckpointError, match="is damaged"):
            load(tmp_path)


def test_arrays_that_are_damaged_are_said_to_be(tmp_path: Path):
    save(StandardScaler(["v"]).fit(BATCH), tmp_path)
    arrays = tmp_path / "preprocessor.npz"
    with np.load(arrays) as stored:
        changed = {name: values + 1 for name, values in stored.items()}
    whole = arrays.read_bytes()
    np.savez(arrays, **changed)
    with pytest.raises(CheckpointError, match="does not match its digest"):
        load(tmp_path)
    for damaged in (b"", whole[:100]):
        arrays.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="is damaged"):
            load(tmp_path)
    arrays.unlink()
    with pytest.raises(CheckpointError, match="is damaged"):
        load(tmp_path)


def test_a_later_format_is_refused(tmp_path: Path):
    save(Normalizer(["x"]), tmp_path)
    file = tmp_path / "preprocessor.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 2, "hpctrain": "9.9"}))
    with pytest.raises(CheckpointError, match=r"by hpctrain 9\.9 in format 2"):
        load(tmp_path)


def test_what_is_no_preprocessor_is_not_stored(tmp_path: Path):
    anything: Any = sklearn.preprocessing.StandardScaler()
    with pytest.raises(ConfigError, match="Wrap a transformer of scikit-learn"):
        save(anything, tmp_path)


@pytest.mark.parametrize("preprocessor", [*OURS, *NEED_TRUST], ids=lambda p: type(p).__name__)
def test_what_a_checkpoint_holds_is_known_again(preprocessor: Preprocessor, tmp_path: Path):
    fitted = Preprocessor.deserialize(preprocessor.serialize(), trusted=True).fit(BATCH)
    save(fitted, tmp_path)
    same = load_same(preprocessor, tmp_path)
    assert same is not None
    assert_same(same.transform_batch(BATCH), fitted.transform_batch(BATCH))
    assert load_same(StandardScaler(["other"]), tmp_path) is None


def test_a_pickle_that_was_exchanged_is_not_opened(tmp_path: Path):
    def harmless(text: str) -> list[str]:
        return text.split()

    def harmful(text: str) -> list[str]:
        raise AssertionError("it was opened")

    save(Tokenizer(["t"], harmful), tmp_path)
    harmful_arrays = (tmp_path / "preprocessor.npz").read_bytes()
    save(Tokenizer(["t"], harmless), tmp_path)
    with np.load(tmp_path / "preprocessor.npz") as stored:
        (name,) = stored.files
    (tmp_path / "preprocessor.npz").write_bytes(harmful_arrays)
    with np.load(tmp_path / "preprocessor.npz") as stored:
        (content,) = stored.values()
    np.savez(tmp_path / "preprocessor.npz", **{name: content})
    with pytest.raises(CheckpointError, match="does not match its digest"):
        load_same(Tokenizer(["t"], harmless), tmp_path)


@pytest.mark.parametrize("hasher", [HashingVectorizer(["t"], 5), FeatureHasher(["n"], 4, "h")])
def test_what_was_hashed_in_another_way_is_refused(tmp_path, hasher):
    save(hasher, tmp_path)
    path = tmp_path / "preprocessor.json"
    content = json.loads(path.read_text())
    # As it was written when words were hashed by SHA-1.
    assert content["preprocessor"]["$preprocessor"].pop("version") == 2
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"with version 1 of .*Hash.* train again"):
        load(tmp_path)


def test_decimals_clock_times_and_uuids_are_stored_without_a_pickle() -> None:
    values = [
        decimal.Decimal("0.10"),
        datetime.time(12, 30, 0, 5),
        uuid.UUID("12345678123456781234567812345678"),
    ]
    for value in values:
        batch = {"c": np.array([value, value], dtype=object)}
        fitted = OrdinalEncoder(["c"]).fit(batch)
        text = fitted.serialize()
        assert "$pickle" not in text
        again = Preprocessor.deserialize(text)
        assert again.stats_ == fitted.stats_
        assert again.transform_batch(batch)["c"].tolist() == [0.0, 0.0]
