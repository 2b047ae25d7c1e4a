from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pytest
import sklearn.preprocessing
from numpy.testing import assert_array_equal

from hpctrain.errors import ConfigError
from hpctrain.preprocessors import (
    Categorizer,
    CountVectorizer,
    LabelEncoder,
    MultiHotEncoder,
    OneHotEncoder,
    OrdinalEncoder,
)

COLORS = np.array(["red", "green", "blue", "teal"])


def cells(*values: Any) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


@pytest.fixture(params=["text", "object", "whole number", "float"])
def column(request: pytest.FixtureRequest, random: np.random.Generator) -> np.ndarray:
    chosen = COLORS[random.integers(0, 4, size=500)]
    if request.param == "text":
        return chosen
    if request.param == "object":
        return chosen.astype(object)
    numbers = random.integers(-3, 4, size=500)
    return numbers if request.param == "whole number" else numbers / 4


def test_places_are_those_of_scikit_learn(fit_on_ranks, column):
    expected = sklearn.preprocessing.OrdinalEncoder().fit_transform(column[:, None])
    encoder = fit_on_ranks(lambda: OrdinalEncoder(["c"]), {"c": column})
    assert_array_equal(encoder.transform_batch({"c": column})["c"], expected[:, 0])


def test_vectors_are_those_of_scikit_learn(fit_on_ranks, column):
    reference = sklearn.preprocessing.OneHotEncoder(sparse_output=False, handle_unknown="ignore")
    expected = reference.fit_transform(column[:, None])
    encoder = fit_on_ranks(lambda: OneHotEncoder(["c"]), {"c": column})
    made = encoder.transform_batch({"c": column})["c"]
    assert made.dtype == np.uint8
    assert_array_equal(made, expected)


def test_a_value_that_was_not_there_has_no_place():
    fitted = OrdinalEncoder(["c"]).fit({"c": COLORS})
    assert_array_equal(
        fitted.transform_batch({"c": np.array(["blue", "pink"])})["c"], [0.0, np.nan]
    )
    vectors = OneHotEncoder(["c"]).fit({"c": COLORS}).transform_batch({"c": np.array(["pink"])})
    assert_array_equal(vectors["c"], np.zeros((1, 4)))


def test_only_the_most_frequent_values_get_a_place(fit_on_ranks):
    column = np.array(["a"] * 5 + ["b"] * 3 + ["d"] * 3 + ["c"] * 4)
    encoder = fit_on_ranks(lambda: OneHotEncoder(["c"], max_categories={"c": 3}), {"c": column})
    assert encoder.stats_ == {"unique_values(c)": {"a": 0, "b": 1, "c": 2}}
    for limits in ({"d": 3}, {"c": 0}, {"c": 2.5}, {"c": "3"}):
        with pytest.raises(ConfigError, match="max_categories"):
            OneHotEncoder(["c"], max_categories=limits)


def test_values_of_several_types_have_an_order_that_does_not_depend_on_ranks(fit_on_ranks):
    column = cells("b", 1, True, 2.5, "a", 3)
    encoder = fit_on_ranks(lambda: OrdinalEncoder(["c"]), {"c": column})
    assert list(encoder.stats_["unique_values(c)"]) == [1, 2.5, 3, "a", "b"]


def test_missing_values_are_refused_when_fitting(fit_on_ranks):
    with pytest.raises(ConfigError, match=r"column 'c' has 1 missing values.*SimpleImputer before"):
        fit_on_ranks(lambda: OrdinalEncoder(["c"]), {"c": cells("a", None, "b", "b")})
    with pytest.raises(ConfigError, match="missing values"):
        OneHotEncoder(["c"]).fit({"c": np.array([1.0, np.nan])})


def test_lists_are_encoded_element_by_element(fit_on_ranks):
    lists = cells(["a", "b"], ["c"], [], ["b", "b", "a"])
    encoder = fit_on_ranks(lambda: OrdinalEncoder(["c"]), {"c": lists})
    assert encoder.transform_batch({"c": lists})["c"].tolist() == [[0, 1], [2], [], [1, 1, 0]]
    # Lists of one length are an array of two axes.
    square = np.array([["a", "c"], ["z", "b"]])
    assert_array_equal(encoder.transform_batch({"c": square})["c"], [[0, 2], [np.nan, 1]])


def test_lists_are_values_if_that_is_asked_for():
    lists = cells(("a", "b"), ("c",), ("a", "b"))
    encoder = OrdinalEncoder(["c"], encode_lists=False).fit({"c": lists})
    assert_array_equal(encoder.transform_batch({"c": lists})["c"], [0, 1, 0])
    square = np.array([["a", "b"], ["b", "a"]])
    assert_array_equal(encoder.transform_batch({"c": square})["c"], [0, np.nan])


def test_multi_hot_vectors_count_what_is_in_a_list(fit_on_ranks):
    lists = cells(["a", "b"], ["c"], [], ["b", "b", "a"])
    encoder = fit_on_ranks(lambda: MultiHotEncoder(["c"]), {"c": lists})
    vectors = encoder.transform_batch({"c": cells(["b", "b", "z"], [], np.array(["c", "a"]))})["c"]
    assert_array_equal(vectors, [[0, 2, 0], [0, 0, 0], [1, 0, 1]])


def test_labels_get_their_place_and_back(fit_on_ranks):
    batch = {"y": np.array(["no", "yes", "maybe", "no"]), "x": np.arange(4)}
    encoder = fit_on_ranks(lambda: LabelEncoder("y"), batch)
    encoded = encoder.transform_batch(batch)
    assert encoded["y"].dtype == np.int64
    expected = sklearn.preprocessing.LabelEncoder().fit_transform(batch["y"])
    assert_array_equal(encoded["y"], expected)
    assert_array_equal(encoder.inverse_transform(encoded)["y"], batch["y"])
    with pytest.raises(ConfigError, match=r"not the number of a label. There are 3 labels"):
        encoder.inverse_transform({"y": np.array([3])})


def test_labels_of_several_types_come_back_as_they_were():
    labels = cells(1, "a", 2.5, "1")
    encoder = LabelEncoder("y").fit({"y": labels})
    decoded = encoder.inverse_transform(encoder.transform_batch({"y": labels}))["y"]
    assert decoded.tolist() == [1, "a", 2.5, "1"]


@pytest.mark.parametrize("number", [0.9, np.nan, -1.0, np.inf, 2.0])
def test_numbers_between_those_of_labels_are_refused(number):
    encoder = LabelEncoder("y").fit({"y": np.array(["a", "b"])})
    with pytest.raises(ConfigError, match=f"column 'y' holds {number}, .* There are 2 labels"):
        encoder.inverse_transform({"y": np.array([0.0, number])})
    with pytest.raises(ConfigError, match="column 'y': it holds text"):
        encoder.inverse_transform({"y": np.array(["0", "1"])})
    assert encoder.inverse_transform({"y": np.array([1.0, 0.0])})["y"].tolist() == ["b", "a"]


@pytest.mark.parametrize("kind", [set, frozenset])
def test_sets_are_lists_without_an_order(fit_on_ranks, kind):
    sets = cells(kind("ab"), kind("c"), kind(), kind("cba"))
    hot = fit_on_ranks(lambda: MultiHotEncoder(["c"]), {"c": sets})
    assert_array_equal(
        hot.transform_batch({"c": sets})["c"], [[1, 1, 0], [0, 0, 1], [0, 0, 0], [1, 1, 1]]
    )
    ordinal = fit_on_ranks(lambda: OrdinalEncoder(["c"]), {"c": sets})
    assert ordinal.transform_batch({"c": sets})["c"].tolist() == [[0, 1], [2], [], [0, 1, 2]]
    whole = fit_on_ranks(lambda: OrdinalEncoder(["c"], encode_lists=False), {"c": sets})
    assert whole.transform_batch({"c": sets})["c"].tolist() == [1, 3, 0, 2]


def test_a_label_that_was_not_there_is_refused_and_none_is_needed_for_prediction():
    encoder = LabelEncoder("y").fit({"y": np.array([3, 5])})
    with pytest.raises(ConfigError, match=r"label column 'y' holds \[4\]"):
        encoder.transform_batch({"y": np.array([3, 4])})
    assert list(encoder.transform_batch({"x": np.ones(2)})) == ["x"]


def test_categories_are_those_of_pandas(fit_on_ranks):
    frame = pandas.DataFrame({"c": ["b", "a", None, "b"], "x": range(4)}, index=list("wxyz"))
    fitted = fit_on_ranks(lambda: Categorizer(["c"]), {"c": frame["c"].to_numpy(dtype=object)})
    made = fitted.transform_batch(frame)
    assert made["c"].dtype == pandas.CategoricalDtype(["a", "b"])
    assert made["c"].tolist()[:2] == ["b", "a"]
    assert made["c"].isna().tolist() == [False, False, True, False]
    assert list(made.index) == list("wxyz")
    assert frame["c"].dtype != made["c"].dtype, "the frame that was given stays as it is"


def test_categories_can_be_given():
    ordered = pandas.CategoricalDtype(["low", "high"], ordered=True)
    categorizer = Categorizer(["c", "d"], dtypes={"c": ordered, "d": [1, 2]})
    frame = pandas.DataFrame({"c": ["high", "other"], "d": [2, 3]})
    made = categorizer.fit(frame).transform_batch(frame)
    assert made["c"].dtype == ordered
    assert made["d"].cat.codes.tolist() == [1, -1]
    with pytest.raises(ConfigError, match="dtypes names"):
        Categorizer(["c"], dtypes={"d": [1]})


def test_in_arrow_categories_are_a_dictionary_and_in_numpy_the_values():
    import pyarrow

    categorizer = Categorizer(["c"]).fit({"c": np.array(["a", "b"])})
    made = categorizer.transform_batch(pyarrow.table({"c": ["b", "z", "a"]}))
    assert pyarrow.types.is_dictionary(made["c"].type)
    assert made["c"].to_pylist() == ["b", None, "a"]
    values = categorizer.transform_batch({"c": np.array(["b", "z"])})["c"]
    assert values.tolist() == ["b", None]


@pytest.mark.parametrize(
    "make",
    [
        lambda: OrdinalEncoder(["c"]),
        lambda: OneHotEncoder(["c"]),
        lambda: MultiHotEncoder(["c"]),
        lambda: LabelEncoder("c"),
        lambda: Categorizer(["c"]),
        lambda: CountVectorizer(["c"]),
    ],
)
def test_from_no_rows_nothing_is_learned(fit_on_ranks, make):
    with pytest.raises(ConfigError, match="column 'c' holds no value in any row of any rank"):
        fit_on_ranks(make, {"c": COLORS[:0]})


def test_given_categories_may_be_dates_and_lists() -> None:
    times = pandas.to_datetime(["2020-01-01", "2021-01-01"])
    for given in (list(times), [one.to_pydatetime() for one in times], list(times.values)):
        categorizer = Categorizer(["c"], {"c": given}).fit({"c": ["unused"]})
        made = categorizer.transform(pandas.DataFrame({"c": times}))
        assert made["c"].tolist() == list(times)
    categorizer = Categorizer(["c"], {"c": [["a"], ["b", "c"]]}).fit({"c": ["unused"]})
    made = categorizer.transform_batch({"c": cells(["b", "c"], ["d"])})
    assert made["c"].tolist() == [("b", "c"), None]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a", "b", "a"], "names a category twice"),
        (pandas.CategoricalDtype(), "has no categories"),
    ],
)
def test_no_categories_and_repeated_ones_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Categorizer(["c"], {"c": given})


def test_a_label_may_end_with_nul() -> None:
    for labels in (cells("x\0", "x"), cells(b"x\0", b"x")):
        encoder = LabelEncoder("y").fit({"y": labels})
        decoded = encoder.inverse_transform(encoder.transform_batch({"y": labels}))
        assert decoded["y"].tolist() == labels.tolist()
