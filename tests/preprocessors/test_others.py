from __future__ import annotations

import decimal
import math
import traceback
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
import scipy.stats
import sklearn.feature_extraction.text
import sklearn.impute
import sklearn.preprocessing
from numpy.testing import assert_allclose, assert_array_equal

from hpctrain.data import from_pandas
from hpctrain.errors import ConfigError
from hpctrain.preprocessors import (
    Chain,
    Concatenator,
    CountVectorizer,
    CustomKBinsDiscretizer,
    FeatureHasher,
    HashingVectorizer,
    Normalizer,
    PowerTransformer,
    SimpleImputer,
    StandardScaler,
    Tokenizer,
    TorchVisionPreprocessor,
    UniformKBinsDiscretizer,
)
from hpctrain.preprocessors.batches import to_format

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


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_components_of_vectors_have_means_of_their_own(fit_on_ranks, dtype, random):
    rows = random.normal(size=(60, 3)).astype(dtype)
    rows[random.random(rows.shape) < 0.3] = np.nan
    expected = sklearn.impute.SimpleImputer().fit_transform(rows)
    imputer = fit_on_ranks(lambda: SimpleImputer(["v"]), {"v": rows})
    made = imputer.transform_batch({"v": rows})["v"]
    assert made.dtype == dtype
    assert_allclose(made, expected, rtol=1e-6)


def test_missing_words_are_replaced_too():
    column = np.array(["a", None, "b", "b", math.nan], dtype=object)
    frequent = SimpleImputer(["c"], "most_frequent").fit({"c": column})
    assert frequent.transform_batch({"c": column})["c"].tolist() == ["a", "b", "b", "b", "b"]
    constant = SimpleImputer(["c"], "constant", fill_value="?")
    assert constant.transform_batch({"c": column})["c"].tolist() == ["a", "?", "b", "b", "?"]
    numbers = pandas.DataFrame({"c": pandas.array([1, None, 3], dtype="Int64")})
    filled = SimpleImputer(["c"], "constant", fill_value=0).transform_batch(numbers)
    assert filled["c"].tolist() == [1, 0, 3]


def test_texts_stay_texts_whatever_is_put_between_them():
    column = np.array(["02", None, "1"], dtype=object)
    filled = SimpleImputer(["c"], "constant", 0).transform_batch({"c": column})
    assert filled["c"].tolist() == ["02", 0, "1"]


@pytest.mark.parametrize(
    ("values", "fill"),
    [
        (np.array([1.0, np.nan]), "?"),
        (np.array([1.0, np.nan]), "1"),
        (np.array([1.0, np.nan], dtype="float32"), 1e300),
        (np.array(["2020-01-01", "NaT"], dtype="datetime64[s]"), "soon"),
    ],
)
def test_a_constant_that_a_column_cannot_hold_is_refused(values, fill):
    with pytest.raises(ConfigError, match=r"column 'c' has type .* Give another fill_value"):
        SimpleImputer(["c"], "constant", fill).transform_batch({"c": values})


def test_missing_times_and_durations_are_replaced():
    times = np.array(["2020-01-01", "NaT"], dtype="datetime64[s]")
    filled = SimpleImputer(["c"], "constant", "2021-02-03").transform_batch({"c": times})
    assert filled["c"].tolist()[1].isoformat() == "2021-02-03T00:00:00"
    durations = np.array([5, "NaT"], dtype="timedelta64[s]")
    filled = SimpleImputer(["c"], "constant", 7).transform_batch({"c": durations})
    assert_array_equal(filled["c"], np.array([5, 7], dtype="timedelta64[s]"))


def test_a_constant_is_given_for_that_strategy_only():
    with pytest.raises(ConfigError, match="Give fill_value with strategy='constant'"):
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
        intervals = pandas.IntervalIndex.from_breaks(edges, closed="right" if right else "left")
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
    with pytest.raises(ConfigError, match=r"holds 7\.0, which is outside of the bins"):
        discretizer.transform_batch({"x": np.array([7.0]), "y": np.array([0.5])})


def test_bins_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="Give edges in ascending order"):
        CustomKBinsDiscretizer(["x"], [0, 2, 1])
    with pytest.raises(ConfigError, match="duplicates='drop'"):
        CustomKBinsDiscretizer(["x"], [0, 1, 1])
    assert CustomKBinsDiscretizer(["x"], [0, 1, 1], duplicates="drop").bins == {"x": [0, 1]}
    with pytest.raises(ConfigError, match="Give edges that are not NaN"):
        CustomKBinsDiscretizer(["x"], [0, np.nan, 1])
    with pytest.raises(ConfigError, match="cannot hold the numbers of 300 bins"):
        UniformKBinsDiscretizer(["x"], 300, dtypes={"x": np.uint8})
    with pytest.raises(ConfigError, match="Give bins for each"):
        UniformKBinsDiscretizer(["x", "y"], {"x": 3})
    with pytest.raises(ConfigError, match="has 1 categories for 3 bins"):
        UniformKBinsDiscretizer(["x"], 3, dtypes={"x": pandas.CategoricalDtype(["a"])})


def test_nan_does_not_become_an_integer():
    batch = {"a": np.array([1, np.nan]), "b": np.array([1, 2])}
    with pytest.raises(
        ConfigError, match=r"column 'a' holds NaN .* which dtype=int64 cannot represent"
    ):
        Concatenator(["a", "b"], "f", dtype=np.int64).transform_batch(batch)


@pytest.mark.parametrize(
    "preprocessor",
    [
        PowerTransformer(["x"], 2),
        Normalizer(["x"]),
        CustomKBinsDiscretizer(["x"], [0, 1, 2]),
        Concatenator(["x"], "f"),
        FeatureHasher(["x"], 2, "f"),
    ],
)
def test_texts_are_no_numbers_whatever_holds_them(preprocessor):
    for column in (np.array(["02", "1"]), np.array(["02", "1"], dtype=object)):
        with pytest.raises(ConfigError, match="column 'x': it holds text, but must hold numbers"):
            preprocessor.transform_batch({"x": column})


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


@pytest.mark.parametrize("form", ["numpy", "pandas", "pyarrow"])
def test_all_columns_are_put_side_by_side_but_those_that_are_excluded(form):
    batch = to_format(
        {"b": np.array([1.0, 2]), "a": np.array([3.0, 4]), "y": np.array([5, 6])}, form
    )

    def joined(**arguments):
        made = to_format(Concatenator(**arguments).transform_batch(batch), "numpy")
        return {name: np.stack(list(column)).tolist() for name, column in made.items()}

    assert joined() == {"concat_out": [[1, 3, 5], [2, 4, 6]]}
    assert joined(exclude=["y"]) == {"y": [5, 6], "concat_out": [[1, 3], [2, 4]]}
    some = joined(include=["a", "y", "b"], exclude=["b"], output_column_name="v")
    assert some == {"b": [1, 2], "v": [[3, 5], [4, 6]]}


def test_columns_to_put_side_by_side_are_named_once_and_there_are_some():
    with pytest.raises(ConfigError, match=r"columns= names the columns already\. Leave it out"):
        Concatenator(["a"], exclude=["y"])
    with pytest.raises(ConfigError, match=r"exclude='y' is not a list of names"):
        Concatenator(exclude="y")
    with pytest.raises(ConfigError, match=r"no column is left\. The batch has \['y'\]"):
        Concatenator(exclude=["y"]).transform_batch({"y": np.zeros(2)})


def test_a_chain_that_puts_all_columns_side_by_side_reads_them_all_and_makes_one():
    frame = pandas.DataFrame({"x": [1.0, 4.0], "y": [2.0, 0.0], "z": [7.0, 8.0]})
    chain = Chain(StandardScaler(["x", "y"]), Concatenator(exclude=["z"]))
    made = chain.fit_transform(from_pandas(frame)).take_all()
    assert [(row["z"], row["concat_out"].tolist()) for row in made] == [(7, [-1, 1]), (8, [1, -1])]
    assert chain.get_output_columns() == ["concat_out"]
    scaled = Chain(Concatenator(), StandardScaler(["concat_out"])).fit(from_pandas(frame))
    assert scaled.preprocessors[1].stats_["mean(concat_out)"].tolist() == [2.5, 1, 7.5]


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


def test_words_are_hashed_to_the_places_that_ray_gives_them():
    texts = ["Jimmy likes volleyball", "Bob likes volleyball too", "Bob also likes fruit jerky"]
    made = HashingVectorizer(["t"], 8).transform_batch({"t": np.array(texts)})
    # What Ray 2.60 makes of them.
    expected = [[0, 0, 1, 1, 0, 0, 1, 0], [1, 1, 0, 1, 0, 0, 1, 0], [1, 1, 0, 2, 1, 0, 0, 0]]
    assert made["t"].tolist() == expected


def test_columns_are_hashed_to_the_places_that_ray_gives_them():
    batch = {"I": [1, 1], "like": [1, 0], "dislike": [0, 1], "Python": [1, 1]}
    columns = {name: np.array(counts) for name, counts in batch.items()}
    made = FeatureHasher(list(columns), 8, "hashed").transform_batch(columns)
    assert list(made) == [*columns, "hashed"]
    # What Ray 2.60 makes of them: "like" and "dislike" have the same place.
    assert made["hashed"].tolist() == [[0, 0, 0, 1, 1, 0, 0, 1], [0, 0, 0, 1, 1, 0, 0, 1]]
    with pytest.raises(ConfigError, match="column 'v' holds arrays"):
        FeatureHasher(["v"], 8, "hashed").transform_batch({"v": np.eye(2)})


def test_what_is_no_text_has_no_words():
    column = np.array(["a b", 7], dtype=object)
    with pytest.raises(ConfigError, match="column 't' holds 7, a int, but must hold texts"):
        HashingVectorizer(["t"], 8).transform_batch({"t": column})
    with pytest.raises(ConfigError, match="column 't' holds 7"):
        CountVectorizer(["t"]).fit({"t": column})


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


def test_an_error_of_an_image_function_comes_through_with_the_line_that_raised_it():
    pytest.importorskip("torch")

    def add_nothing(image: Any) -> Any:
        # Arrays have no such method: the second try would fail with another error.
        return image.float() + None

    mapper = TorchVisionPreprocessor(["i"], add_nothing)
    with pytest.raises(TypeError, match=r"unsupported operand|NoneType") as raised:
        mapper.transform_batch({"i": np.zeros((2, 3, 4))})
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
    assert "image.float() + None" in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([300], np.int8),
        ([-1], np.uint8),
        ([1e20], np.int64),
        ([2.0**63], np.int64),
        ([1e6], np.float16),
        ([np.nan], bool),
    ],
)
def test_vectors_of_a_type_that_cannot_represent_a_number_are_refused(
    values: list[float], dtype: Any
) -> None:
    with pytest.raises(ConfigError, match=r"column 'b' holds .*cannot represent"):
        Concatenator(["a", "b"], dtype=dtype).transform_batch(
            {"a": np.zeros(1), "b": np.array(values)}
        )


def test_vectors_of_a_type_that_can_represent_all_numbers_are_made() -> None:
    batch = {"a": np.array([127, -128]), "b": np.array([127.9, -0.5])}
    made = Concatenator(["a", "b"], dtype=np.int8).transform_batch(batch)["concat_out"]
    assert made.tolist() == [[127, 127], [-128, 0]]
    infinite = {"a": np.array([np.inf, np.nan, 65504])}
    made = Concatenator(["a"], dtype=np.float16).transform_batch(infinite)["concat_out"]
    assert_array_equal(made[:, 0], infinite["a"])


def test_intervals_say_on_which_side_they_are_closed() -> None:
    values = pandas.Series([0.0, 1.0, 2.0])
    for closed in ("left", "right"):
        bins = pandas.IntervalIndex.from_breaks([0, 1, 2], closed=closed)
        made = CustomKBinsDiscretizer(["x"], bins).transform(pandas.DataFrame({"x": values}))
        expected = pandas.cut(values, bins).cat.codes.replace(-1, np.nan)
        assert_array_equal(made["x"], expected)


@pytest.mark.parametrize("closed", ["both", "neither", "right"])
def test_intervals_that_contradict_are_refused(closed: Any) -> None:
    bins = pandas.IntervalIndex.from_breaks([0, 1, 2], closed=closed)
    with pytest.raises(ConfigError, match=f"intervals closed={closed}, and right=False"):
        CustomKBinsDiscretizer(["x"], bins, right=False)


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_a_row_whose_norm_is_beyond_float64_is_normalized(norm: str) -> None:
    rows = np.array([[1.7e308, 1.7e308], [3.0, 4.0]])
    made = Normalizer(["a", "b"], norm).transform_batch({"a": rows[:, 0], "b": rows[:, 1]})
    expected = sklearn.preprocessing.normalize(np.array([[1.0, 1.0], [3.0, 4.0]]), norm)
    assert_allclose(np.stack([made["a"], made["b"]], axis=1), expected)


def test_missing_values_of_pandas_in_a_column_of_objects_are_replaced() -> None:
    frame = pandas.DataFrame({"x": pandas.Series(["a", pandas.NA, "a"], dtype=object)})
    assert SimpleImputer(["x"], "most_frequent").fit_transform(frame)["x"].tolist() == ["a"] * 3
    batch = {"x": np.array(["a", pandas.NA], dtype=object)}
    made = SimpleImputer(["x"], "constant", "z").transform_batch(batch)
    assert made["x"].tolist() == ["a", "z"]


def test_a_large_integer_stays_exact_beside_a_replacement_with_a_fraction() -> None:
    batch = {"x": np.array([2**53 + 1, None], dtype=object)}
    made = SimpleImputer(["x"], "constant", 0.5).transform_batch(batch)
    assert made["x"].tolist() == [2**53 + 1, 0.5]


def test_missing_decimals_are_replaced() -> None:
    table = pyarrow.table({"x": [decimal.Decimal(1), None, decimal.Decimal(3)]})
    made = SimpleImputer(["x"]).fit_transform(table)
    assert made["x"].to_pylist() == [1.0, 2.0, 3.0]


def test_a_column_of_a_data_frame_may_be_called_self() -> None:
    frame = pandas.DataFrame({"self": [1.0, 3.0], "x": [1.0, 3.0]})
    made = StandardScaler(["self", "x"]).fit_transform(frame)
    assert made.to_dict("list") == {"self": [-1.0, 1.0], "x": [-1.0, 1.0]}
