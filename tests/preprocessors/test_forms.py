"""Every preprocessor in every form of a batch, and with batches that have no rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
import sklearn.feature_selection
import sklearn.preprocessing
from numpy.testing import assert_array_equal

from hpctrain import preprocessors
from hpctrain.data import from_numpy
from hpctrain.data.arrow_batches import to_arrow
from hpctrain.data.pandas_batches import to_pandas
from hpctrain.errors import ConfigError
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
)
from hpctrain.preprocessors.batches import column_of, names_of, num_rows
from tests.preprocessors import example_batch

LISTS = np.empty(4, dtype=object)
LISTS[:] = [["a", "b"], [], ["b"], ["c", "a", "a"]]
BATCH = {**example_batch.BATCH, "l": LISTS}


def twice(value: Any) -> Any:
    return value * 2


def plus_one(batch: Any) -> Any:
    return {**batch, "full": batch["full"] + 1}


EVERY = [
    BatchMapper(plus_one),
    Categorizer(["c", "n"]),
    Chain(SimpleImputer(["x"]), RobustScaler(["x"]), Concatenator(["x", "v"], flatten=True)),
    Chain(StandardScaler(["full"]), Concatenator(["full", "n"], "f"), MinMaxScaler(["f"])),
    Concatenator(["x", "n"], "f"),
    CountVectorizer(["t"], max_features=2),
    CustomKBinsDiscretizer(["x"], [0, 2, 4.5]),
    CustomKBinsDiscretizer(
        ["full"], [0, 2, 9], dtypes={"full": pandas.CategoricalDtype(["a", "b"])}
    ),
    FeatureHasher(["x", "n"], 4, "h"),
    HashingVectorizer(["t"], 5),
    LabelEncoder("c", output_column="y"),
    MaxAbsScaler(["v"]),
    MinMaxScaler(["x", "v"], ["a", "b"]),
    MultiHotEncoder(["l"]),
    Normalizer(["full", "v"]),
    OneHotEncoder(["n", "c"]),
    OrdinalEncoder(["n", "c"]),
    PowerTransformer(["full", "v"], 0.5),
    RobustScaler(["x", "v"]),
    SimpleImputer(["x"], "constant", fill_value=-1.5),
    SimpleImputer(["c"], "most_frequent"),
    SimpleImputer(["v"]),
    CustomKBinsDiscretizer(["v"], [0, 1, 2]),
    OrdinalEncoder(["v"]),
    OneHotEncoder(["v"]),
    SklearnPreprocessor(sklearn.preprocessing.StandardScaler(), ["full", "v"]),
    SklearnPreprocessor(sklearn.preprocessing.PolynomialFeatures(), ["full"], output_column="p"),
    SklearnPreprocessor(
        sklearn.feature_selection.SelectKBest(k=1), ["v"], output_column="f", label_column="n"
    ),
    StandardScaler(["x", "v"]),
    Tokenizer(["t"]),
    TorchVisionPreprocessor(["v"], twice),
    UniformKBinsDiscretizer(["full"], 3, dtypes={"full": np.int16}),
]
every = pytest.mark.parametrize("preprocessor", EVERY, ids=lambda p: type(p).__name__)
FORMS = {"numpy": dict, "pandas": to_pandas, "pyarrow": to_arrow}
form = pytest.mark.parametrize("form", ["pandas", "pyarrow"])


def test_none_is_left_out_here():
    public = (getattr(preprocessors, name) for name in preprocessors.__all__)
    classes = {c for c in public if isinstance(c, type) and issubclass(c, Preprocessor)}
    assert {type(preprocessor) for preprocessor in EVERY} == classes - {
        Preprocessor,
        ColumnPreprocessor,
    }


def fitted(preprocessor: Preprocessor, form: str = "numpy") -> Preprocessor:
    unfitted = Preprocessor.deserialize(preprocessor.serialize(), trusted=True)
    return unfitted.fit(FORMS[form](read_by(preprocessor)))


def read_by(preprocessor: Preprocessor) -> dict[str, Any]:
    """Return the columns that it learns from or changes: Arrow has no column of all of these."""
    names = {*(preprocessor._columns_to_read() or ["full"]), *preprocessor.get_input_columns()}
    return {name: values for name, values in BATCH.items() if name in names}


def plain(column: Any) -> Any:
    """Return a column as lists, in which NaN is None: so each form has values that are missing."""
    if isinstance(column, np.ndarray):
        column = column.tolist()
    if isinstance(column, list):
        return [plain(value) for value in column]
    return None if column != column else column


def assert_same(made: Any, expected: Any) -> None:
    assert sorted(names_of(made)) == sorted(names_of(expected))
    for name in names_of(expected):
        assert plain(column_of(made, name)) == plain(column_of(expected, name)), name


@every
@form
def test_every_form_gives_the_same(preprocessor: Preprocessor, form: str):
    one, other = fitted(preprocessor), fitted(preprocessor, form)
    batch = read_by(preprocessor)
    expected = one.transform_batch(batch)
    assert_same(one.transform_batch(FORMS[form](batch)), expected)
    assert_same(other.transform_batch(batch), expected)


@every
def test_no_rows_have_the_columns_and_types_of_some(preprocessor: Preprocessor):
    one, batch = fitted(preprocessor), read_by(preprocessor)
    expected = one.transform_batch(batch)
    made = one.transform_batch({name: values[:0] for name, values in batch.items()})
    assert list(made) == list(expected)
    for name, values in made.items():
        assert values.shape == (0, *expected[name].shape[1:]), name
        assert values.dtype == expected[name].dtype, name


@every
@form
def test_frames_and_tables_without_rows_are_transformed(preprocessor: Preprocessor, form: str):
    one, batch = fitted(preprocessor), read_by(preprocessor)
    whole = FORMS[form](batch)
    made = one.transform_batch(whole[:0] if form == "pandas" else whole.slice(0, 0))
    assert num_rows(made) == 0
    assert sorted(names_of(made)) == sorted(names_of(one.transform_batch(batch)))


@every
def test_a_frame_that_never_had_rows_is_transformed(preprocessor: Preprocessor):
    one = fitted(preprocessor)
    # All of its columns are of objects.
    made = one.transform_batch(pandas.DataFrame({name: [] for name in BATCH}, dtype=object))
    assert len(made) == 0


@every
def test_batches_without_rows_teach_nothing(preprocessor: Preprocessor):
    batch = read_by(preprocessor)
    none = {name: values[:0] for name, values in batch.items()}
    never = pandas.DataFrame({name: [] for name in batch}, dtype=object)
    expected = fitted(preprocessor)
    unfitted = Preprocessor.deserialize(preprocessor.serialize(), trusted=True)
    made = unfitted.fit([never, none, batch, none, to_pandas(batch)[:0], never])
    assert_same(made.transform_batch(batch), expected.transform_batch(batch))


def test_a_chain_reads_the_label_that_an_estimator_learns_from():
    chain = Chain(
        StandardScaler(["v"]),
        SklearnPreprocessor(
            sklearn.feature_selection.SelectKBest(k=1), ["v"], output_column="f", label_column="n"
        ),
    )
    made = chain.fit(from_numpy(BATCH)).transform_batch({"v": BATCH["v"]})
    assert made["f"].shape == (4, 1)


def test_a_chain_of_given_categories_reads_the_columns_that_it_changes():
    chain = Chain(
        Categorizer(["c"], dtypes={"c": ["a", "$"]}), SimpleImputer(["c"], "most_frequent")
    )
    made = chain.fit(from_numpy({"c": BATCH["c"]})).transform_batch({"c": BATCH["c"]})
    assert made["c"].tolist() == ["a", "a", "$", "a"]


def test_an_image_function_says_what_it_makes_of_no_images():
    def to_channels_first(image: Any) -> Any:
        return image.permute(2, 0, 1).float()

    for batched in (False, True):
        function = (lambda images: images.float()) if batched else to_channels_first
        mapper = TorchVisionPreprocessor(["i"], function, batched=batched)
        images = np.zeros((2, 4, 5, 3), dtype=np.uint8)
        made, none = (mapper.transform_batch({"i": part})["i"] for part in (images, images[:0]))
        assert none.shape == (0, *made.shape[1:])
        assert none.dtype == made.dtype


def test_texts_that_look_like_numbers_are_refused_in_frames_too():
    frame = pandas.DataFrame({"x": ["02", "1"]})
    table = pyarrow.Table.from_pandas(frame)
    for batch in (frame, table, {"x": ["02", "1"]}):
        with pytest.raises(ConfigError, match="it holds text"):
            StandardScaler(["x"]).fit(batch)
    assert_array_equal(
        StandardScaler(["x"]).fit({"x": [2, 4]}).transform_batch({"x": [3]})["x"], [0]
    )
