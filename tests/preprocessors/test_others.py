from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas
import pytest
import scipy.stats
import sklearn.feature_extraction.text
import sklearn.impute
import sklearn.preprocessing
from numpy.testing import assert_allclose, assert_array_equal

from hpctrain.errors import ConfigError
from hpctrain.preprocessors import (
    Concatenator,
    CountVectorizer,
    CustomKBinsDiscretizer,
    FeatureHasher,
    HashingVectorizer,
    Normalizer,
    PowerTransformer,
    SimpleImputer,
    Tokenizer,
    TorchVisionPreprocessor,
    UniformKBinsDiscretizer,
)

TEXTS = np.array(["the cat", "the dog the end", "", "a cat"], dtype=object)


@pytest.fixture
def holes(random: np.random.Generator) -> np.ndarray:
    column = random.normal(size=301).round(1)
    column[random.random(301) < 0.2] = np.nan
    return column


@pytest.mark.parametrize("strategy", ["mean", "most_frequent"])
def test_what_is_put_in_place_of_missing_numbers_is_that_of_scikit_learn(
    fit_on_ranks, holes, strategy
):
    reference = sklearn.impute.SimpleImputer(strategy=strategy)
    expected = reference.fit_transform(holes[:, None])[:, 0]
    imputer = fit_on_ranks(lambda: SimpleImputer(["x"], strategy), {"x": holes})
    assert_allclose(imputer.transform_batch({"x": holes})["x"], expected, rtol=1e-9)


def test_missing_words_are_replaced_too():
    column = np.array(["a", None, "b", "b", math.nan], dtype=object)
    frequent = SimpleImputer(["c"], "most_frequent").fit({"c": column})
    assert frequent.transform_batch({"c": column})["c"].tolist() == ["a", "b", "b", "b", "b"]
    constant = SimpleImputer(["c"], "constant", fill_value="?")
    assert constant.transform_batch({"c": column})["c"].tolist() == ["a", "?", "b", "b", "?"]
    numbers = pandas.DataFrame({"c": pandas.array([1, None, 3], dtype="Int64")})
    filled = SimpleImputer(["c"], "constant", fill_value=0).transform_batch(numbers)
    assert filled["c"].tolist() == [1, 0, 3]


def test_a_constant_is_given_for_that_strategy_only():
    with pytest.raises(ConfigError, match="fill_value is given with strategy='constant'"):
        SimpleImputer(["x"], "constant")
    with pytest.raises(ConfigError, match="fill_value"):
        SimpleImputer(["x"], "mean", fill_value=3)
    with pytest.raises(ConfigError, match="'median'"):
        SimpleImputer(["x"], "median")


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_norms_are_those_of_scikit_learn(norm, random):
    rows = random.normal(size=(50, 3))
    rows[7] = 0
    expected = sklearn.preprocessing.normalize(rows, norm=norm)
    one = Normalizer(["x"], norm).transform_batch({"x": rows})["x"]
    assert_allclose(one, expected, rtol=1e-12)
    names = ["a", "b", "c"]
    three = Normalizer(names, norm).transform_batch(dict(zip(names, rows.T, strict=True)))
    assert_allclose(np.stack([three[n] for n in names], axis=1), expected, rtol=1e-12)


@pytest.mark.parametrize("power", [-1.5, 0, 0.5, 2, 3])
def test_powers_are_those_of_scipy(power, random):
    values = random.normal(size=100)
    made = PowerTransformer(["x"], power).transform_batch({"x": values})["x"]
    assert_allclose(made, scipy.stats.yeojohnson(values, power), rtol=1e-9, atol=1e-12)
    positive = np.abs(values) + 0.1
    made = PowerTransformer(["x"], power, "box-cox").transform_batch({"x": positive})["x"]
    assert_allclose(made, scipy.stats.boxcox(positive, power), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("include_lowest", [True, False])
def test_bins_are_those_of_pandas(right, include_lowest, random):
    values = np.concatenate([random.uniform(-1, 11, size=200), [0, 3, 7, 10, np.nan]])
    edges = [0, 3, 7, 10]
    options: dict[str, Any] = {"right": right, "include_lowest": include_lowest}
    expected = pandas.cut(values, edges, labels=False, **options)
    binned = CustomKBinsDiscretizer(["x"], edges, **options).transform_batch({"x": values})["x"]
    assert_array_equal(binned, expected)
    if not include_lowest:
        intervals = pandas.IntervalIndex.from_breaks(edges)
        binned = CustomKBinsDiscretizer(["x"], intervals, **options).transform_batch({"x": values})
        assert_array_equal(binned["x"], expected)


@pytest.mark.parametrize("right", [True, False])
def test_bins_of_equal_width_are_those_of_pandas(fit_on_ranks, right, random):
    values = random.normal(size=300)
    expected = pandas.cut(values, 7, labels=False, right=right)
    discretizer = fit_on_ranks(
        lambda: UniformKBinsDiscretizer(["x"], 7, right=right), {"x": values}
    )
    assert_array_equal(discretizer.transform_batch({"x": values})["x"], expected)


def test_bins_have_the_type_that_is_asked_for():
    kind = pandas.CategoricalDtype(["low", "high"], ordered=True)
    discretizer = CustomKBinsDiscretizer(
        ["x", "y"], {"x": [0, 1, 2], "y": [0, 1, 2]}, dtypes={"x": np.int8, "y": kind}
    )
    made = discretizer.transform_batch(pandas.DataFrame({"x": [0.5, 1.5], "y": [0.5, 9]}))
    assert made["x"].dtype == np.int8
    assert made["y"].tolist() == ["low", np.nan] or made["y"].isna().tolist() == [False, True]
    with pytest.raises(ConfigError, match=r"holds 7\.0, which is in none of the bins"):
        discretizer.transform_batch({"x": np.array([7.0]), "y": np.array([0.5])})


def test_bins_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="Edges must rise"):
        CustomKBinsDiscretizer(["x"], [0, 2, 1])
    with pytest.raises(ConfigError, match="duplicates='drop'"):
        CustomKBinsDiscretizer(["x"], [0, 1, 1])
    assert CustomKBinsDiscretizer(["x"], [0, 1, 1], duplicates="drop").bins == {"x": [0, 1]}
    with pytest.raises(ConfigError, match="Give bins for each column"):
        UniformKBinsDiscretizer(["x", "y"], {"x": 3})
    with pytest.raises(ConfigError, match="has 1 categories for 3 bins"):
        UniformKBinsDiscretizer(["x"], 3, dtypes={"x": pandas.CategoricalDtype(["a"])})


def test_columns_are_put_side_by_side():
    batch = {"a": np.array([1, 2]), "b": np.array([0.5, 1.5]), "c": np.eye(2), "z": np.zeros(2)}
    joined = Concatenator(["a", "b"]).transform_batch(batch)
    assert list(joined) == ["c", "z", "concat_out"]
    assert_array_equal(joined["concat_out"], [[1, 0.5], [2, 1.5]])
    flat = Concatenator(["c", "a"], "v", dtype="float32", flatten=True).transform_batch(batch)
    assert flat["v"].dtype == np.float32
    assert_array_equal(flat["v"], [[1, 0, 1], [0, 1, 2]])
    with pytest.raises(ConfigError, match="flatten=True"):
        Concatenator(["c"]).transform_batch(batch)
    assert Concatenator(["a", "q"]).transform_batch(batch)["concat_out"].shape == (2, 1)
    with pytest.raises(ConfigError, match=r"columns \['q'\] are missing"):
        Concatenator(["a", "q"], raise_if_missing=True).transform_batch(batch)


def test_words_are_counted_as_scikit_learn_does(fit_on_ranks):
    reference = sklearn.feature_extraction.text.CountVectorizer(token_pattern=r"[^ ]+")
    expected = reference.fit_transform(TEXTS).toarray()
    vectorizer = fit_on_ranks(lambda: CountVectorizer(["t"], str.split), {"t": TEXTS})
    words = list(vectorizer.stats_["token_counts(t)"])
    made = vectorizer.transform_batch({"t": TEXTS})["t"]
    assert words[:2] == ["the", "cat"], "the most frequent words come first"
    assert_array_equal(made, expected[:, [reference.vocabulary_[word] for word in words]])
    few = CountVectorizer(["t"], str.split, max_features=2).fit({"t": TEXTS})
    assert_array_equal(few.transform_batch({"t": TEXTS})["t"], made[:, :2])


def test_texts_become_lists_of_words():
    made = Tokenizer(["t"]).transform_batch({"t": np.array(["a b", "c", None], dtype=object)})
    assert made["t"].tolist() == [["a", "b"], ["c"], []]


def test_hashed_words_are_at_the_same_place_in_every_process():
    made = HashingVectorizer(["t"], 8).transform_batch({"t": np.array(["cat dog cat", "dog"])})
    assert_array_equal(made["t"].sum(axis=1), [3, 1])
    assert made["t"][0].max() >= 2
    # Fixed by SHA-1, and not by Python's hash, which every process salts.
    assert np.flatnonzero(made["t"][1]).tolist() == [0]


def test_columns_are_hashed_by_name():
    batch = {"cat": np.array([1, 0]), "dog": np.array([2, 3])}
    made = FeatureHasher(["cat", "dog"], 8, "hashed").transform_batch(batch)
    assert list(made) == ["cat", "dog", "hashed"]
    # Both names have the same place among eight: their values are added.
    assert_array_equal(made["hashed"][:, 0], [3, 3])
    apart = FeatureHasher(["cat", "dog"], 11, "hashed").transform_batch(batch)["hashed"]
    assert_array_equal(apart[:, [1, 7]], [[1, 2], [0, 3]])


def test_images_go_through_functions_of_tensors():
    import torch

    images = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    images.setflags(write=False)

    def transform(tensor: Any) -> Any:
        return tensor.to(torch.float32).mul_(2)

    for batched in (False, True):
        mapper = TorchVisionPreprocessor(["i"], transform, batched=batched)
        made = mapper.transform_batch({"i": images})["i"]
        assert made.dtype == np.float32
        assert_array_equal(made, images * 2.0)

    def only_arrays(image: Any) -> Any:
        if not isinstance(image, np.ndarray):
            raise TypeError("an array is needed")
        return image[::-1].copy()

    made = TorchVisionPreprocessor(["i"], only_arrays, ["o"]).transform_batch({"i": images})
    assert_array_equal(made["o"], images[:, ::-1])
