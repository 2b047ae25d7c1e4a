"""Random and nasty columns, against NumPy, SciPy, scikit-learn and pandas. See docs/checked.rst."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
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
    StandardScaler,
    UniformKBinsDiscretizer,
)
from hpctrain.preprocessors.batches import FIT_BATCH_ROWS
from hpctrain.preprocessors.preprocessor import FitStatus
from hpctrain.testing.thread_comm import ThreadComm, run_on_threads

EachExample = Callable[[Callable[[np.random.Generator], None]], None]
Column = np.ndarray[Any, Any]


def numbers(random: np.random.Generator, *, largest_offset: float = 1e15) -> Column:
    """Return a column far from 0 or near it, of many scales and types, with values missing."""
    offsets = [offset for offset in (0, 0, -1e9, 1.7e9, 1e-9, 1e15) if offset <= largest_offset]
    shape: tuple[int, ...] = (int(random.integers(1, 300)),)
    if random.random() < 0.3:
        shape = (*shape, int(random.integers(1, 4)))
    scale = random.choice([0.0, 1.0, 1e-6, 1e6, 1e-30])
    values = random.choice(offsets) + scale * random.normal(size=shape)
    if random.random() < 0.3:
        values = np.sort(values, axis=0)
    if random.random() < 0.3:
        return (
            values.astype(random.choice(["int64", "int32"]))
            if abs(values).max() < 2**31
            else (values.astype("int64"))
        )
    if random.random() < 0.3:
        values = values.astype("float32")
    if random.random() < 0.4:
        values[: random.integers(0, len(values))] = np.nan
        values[0 if random.random() < 0.5 else -1] = 1.5
    if random.random() < 0.3:
        values[1:][random.random(values[1:].shape) < 0.3] = np.nan
        values[0] = 2.5
    return values


def plain_numbers(random: np.random.Generator) -> Column:
    """Return a column with which the references have no trouble.

    They lose digits of what is spread little about a large number, and take differences below
    2e-15 for rounding errors, whatever the numbers.
    """
    while True:
        values = numbers(random, largest_offset=1e10)
        rows = flat(values)
        low, *_, high = quantiles = np.nanquantile(rows, [0, 0.25, 0.75, 1], axis=0)
        largest = abs(quantiles).max()
        is_spread = (high - low > 1e-3 * largest) & (quantiles[2] - quantiles[1] > 1e-14)
        if ((high == low) | is_spread).all() and not 0 < largest < 1e-14:
            return values


def fitted(
    random: np.random.Generator, make: Callable[[], Preprocessor], batch: dict[str, Column]
) -> Preprocessor:
    """Return a preprocessor that learned from parts of unlike length, some empty, on some ranks."""
    rows = len(next(iter(batch.values())))
    ends = [0, *sorted(random.integers(0, rows + 1, size=random.integers(0, 5))), rows]
    parts = [
        {name: values[start:stop] for name, values in batch.items()}
        for start, stop in itertools.pairwise(ends)
    ]
    ranks = int(random.integers(1, 4))

    def fit_one(comm: ThreadComm) -> Preprocessor:
        none = {name: values[:0] for name, values in batch.items()}
        return make().fit_shard([none, *parts[comm.rank :: ranks]], comm)

    return run_on_threads(ranks, fit_one)[0]


def flat(values: Any) -> Column:
    return np.asarray(values, dtype=np.float64).reshape(len(values), -1)


def test_mean_and_deviation_are_exact_at_any_distance_from_zero(each_example: EachExample):
    def example(random: np.random.Generator) -> None:
        values = numbers(random)
        exact = flat(values).astype(np.longdouble)
        mean = np.nanmean(exact, axis=0)
        apart = exact - mean
        std = np.sqrt(np.nanmean(apart**2, axis=0) - np.nanmean(apart, axis=0) ** 2)
        scaler = fitted(random, lambda: StandardScaler(["x"]), {"x": values})
        assert scaler.stats_ is not None
        error = abs(np.ravel(scaler.stats_["mean(x)"]) - mean)
        assert (error <= 1e-15 * abs(mean) + 1e-13 * std).all()
        learned = np.ravel(scaler.stats_["std(x)"])
        is_spread = std > 1e-14 * abs(mean)
        assert_allclose(learned[is_spread], std[is_spread].astype(float), rtol=1e-11)
        is_constant = np.nanmin(exact, axis=0) == np.nanmax(exact, axis=0)
        assert_array_equal(learned[is_constant], 0.0)

    each_example(example)


@pytest.mark.parametrize(
    ("make", "reference"),
    [
        (StandardScaler, sklearn.preprocessing.StandardScaler),
        (MinMaxScaler, sklearn.preprocessing.MinMaxScaler),
        (MaxAbsScaler, sklearn.preprocessing.MaxAbsScaler),
        (RobustScaler, sklearn.preprocessing.RobustScaler),
    ],
)
def test_scaled_columns_are_those_of_scikit_learn(each_example: EachExample, make, reference):
    def example(random: np.random.Generator) -> None:
        values = plain_numbers(random)
        rows = flat(values)
        expected = reference().fit_transform(rows)
        scaler = fitted(random, lambda: make(["x"]), {"x": values})
        made = scaler.transform_batch({"x": values})["x"]
        assert made.dtype == (values.dtype if values.dtype.kind == "f" else np.float64)
        assert made.shape == values.shape
        tolerance = 1e-5 if values.dtype == np.float32 else 1e-9
        assert_allclose(flat(made), expected, rtol=tolerance, atol=tolerance)

    each_example(example)


def test_bins_are_those_of_pandas(each_example: EachExample):
    def example(random: np.random.Generator) -> None:
        edges = np.unique(random.integers(-5, 6, size=random.integers(2, 9))).astype(float)
        if random.random() < 0.3:
            edges = np.concatenate([[-np.inf], edges, [np.inf]])
        if len(edges) < 2:
            return
        values = random.integers(-12, 13, size=50) / 2
        values[random.random(50) < 0.2] = random.choice([np.nan, np.inf, -np.inf])
        options: dict[str, Any] = {
            "right": bool(random.random() < 0.5),
            "include_lowest": bool(random.random() < 0.5),
        }
        expected = pandas.cut(values, edges, labels=False, **options)
        binned = CustomKBinsDiscretizer(["x"], edges, **options).transform_batch({"x": values})
        assert_array_equal(binned["x"], expected)

    each_example(example)


def test_bins_of_equal_width_are_those_of_pandas(each_example: EachExample):
    def example(random: np.random.Generator) -> None:
        values = plain_numbers(random).astype(np.float64).reshape(-1)
        count, right = int(random.integers(1, 9)), bool(random.random() < 0.5)
        expected = pandas.cut(values, count, labels=False, right=right)
        discretizer = fitted(
            random, lambda: UniformKBinsDiscretizer(["x"], count, right=right), {"x": values}
        )
        assert_array_equal(discretizer.transform_batch({"x": values})["x"], expected)

    each_example(example)


@pytest.mark.parametrize(
    "make",
    [
        StandardScaler,
        MinMaxScaler,
        MaxAbsScaler,
        RobustScaler,
        lambda columns: UniformKBinsDiscretizer(columns, 3),
    ],
)
def test_infinite_values_are_refused_wherever_they_are(each_example: EachExample, make):
    def example(random: np.random.Generator) -> None:
        values = random.normal(size=random.integers(1, 50))
        values[random.integers(len(values))] = random.choice([np.inf, -np.inf])
        if random.random() < 0.5:
            values = np.append(values, np.nan)
        with pytest.raises(ConfigError, match="column 'x': values are infinite"):
            fitted(random, lambda: make(["x"]), {"x": values})

    each_example(example)


@pytest.mark.parametrize(
    ("make", "reference"),
    [
        (lambda: Normalizer(["x"]), sklearn.preprocessing.Normalizer),
        (lambda: Normalizer(["x"], "l1"), sklearn.preprocessing.Normalizer),
        (lambda: PowerTransformer(["x"], 2.0), sklearn.preprocessing.PowerTransformer),
        (lambda: PowerTransformer(["x"], 0.5, "box-cox"), sklearn.preprocessing.PowerTransformer),
        (
            lambda: SimpleImputer(["x"], "most_frequent"),
            lambda: sklearn.impute.SimpleImputer(strategy="most_frequent"),
        ),
    ],
)
def test_infinite_values_are_refused_where_scikit_learn_refuses_them(
    each_example: EachExample, make: Callable[[], Preprocessor], reference: Any
) -> None:
    def example(random: np.random.Generator) -> None:
        values = np.abs(random.normal(size=random.integers(1, 50))) + 0.1
        values[random.integers(len(values))] = random.choice([np.inf, -np.inf])
        values = values.astype(random.choice(["f4", "f8"]))
        batch = {"x": values.astype(object) if random.random() < 0.2 else values}
        with pytest.raises(ValueError, match="infinity"):
            reference().fit_transform(values[:, None])
        is_fitted = make().fit_status() is not FitStatus.NOT_FITTABLE
        with pytest.raises(ConfigError, match="column 'x': values are infinite"):
            fitted(random, make, batch) if is_fitted else make().transform_batch(batch)

    each_example(example)


@pytest.mark.parametrize("make", [StandardScaler, MinMaxScaler, MaxAbsScaler, RobustScaler])
def test_batches_of_unlike_width_are_refused(each_example: EachExample, make):
    def example(random: np.random.Generator) -> None:
        widths = random.choice([1, 2, 3], size=2, replace=False)
        parts = [{"x": random.normal(size=(random.integers(1, 5), width))} for width in widths]
        with pytest.raises(ConfigError, match="column 'x': rows have shapes"):
            make(["x"]).fit(parts)

        def fit_one(comm: ThreadComm) -> None:
            make(["x"]).fit_shard(parts[comm.rank], comm)

        with pytest.raises(ConfigError, match="rows have shapes"):
            run_on_threads(2, fit_one)

    each_example(example)


def test_a_column_of_times_is_not_constant_however_many_rows_it_has():
    # scikit-learn's bound for the error of a sum grows with the rows, and calls it constant.
    random = np.random.default_rng(0)
    times = 1.7e9 + random.normal(size=60 * FIT_BATCH_ROWS)
    scaler = StandardScaler(["t"]).fit([{"t": part} for part in np.split(times, 60)])
    assert scaler.stats_ is not None
    assert scaler.stats_["std(t)"] == pytest.approx(np.std(times - 1.7e9), rel=1e-12)


@pytest.mark.parametrize("method", ["yeo-johnson", "box-cox"])
def test_powers_are_those_of_scipy(each_example: EachExample, method):
    reference = scipy.stats.yeojohnson if method == "yeo-johnson" else scipy.stats.boxcox

    def example(random: np.random.Generator) -> None:
        near = float(random.choice([0, 2, -1, 1, 0.5]))
        power = near + float(random.choice([0, 1e-17, -1e-12, 1e-7, 0.3, 1e-300]))
        values = random.normal(size=20) * 10.0 ** random.integers(-12, 6)
        values = abs(values) + 1e-12 if method == "box-cox" else values
        made = PowerTransformer(["x"], power, method).transform_batch({"x": values})["x"]
        assert_allclose(made, reference(values, power), rtol=1e-12, atol=1e-300)

    each_example(example)


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_rows_have_the_length_1_whatever_length_they_had(each_example: EachExample, norm):
    def example(random: np.random.Generator) -> None:
        rows = random.normal(size=(20, random.integers(1, 5)))
        scales = random.choice([0.0, 1.0, 1e-150, 1e-300, 1e200, 1e9], size=(20, 1))
        made = Normalizer(["x"], norm).transform_batch({"x": rows * scales})["x"]
        expected = sklearn.preprocessing.normalize(rows, norm=norm) * (scales > 0)
        assert_allclose(made, expected, rtol=1e-12, atol=1e-300)

    each_example(example)


@pytest.mark.parametrize("strategy", ["mean", "most_frequent"])
def test_missing_numbers_are_replaced_as_by_scikit_learn(each_example: EachExample, strategy):
    def example(random: np.random.Generator) -> None:
        values = random.choice([0.0, 1e9, -1.7e9]) + random.integers(-4, 5, size=60) / 4
        values[random.random(60) < 0.4] = np.nan
        values[random.integers(60)] = 1e9
        expected = sklearn.impute.SimpleImputer(strategy=strategy).fit_transform(values[:, None])
        imputer = fitted(random, lambda: SimpleImputer(["x"], strategy), {"x": values})
        made = imputer.transform_batch({"x": values})["x"]
        assert_allclose(made, expected[:, 0], rtol=1e-14)

    each_example(example)


def categories(random: np.random.Generator) -> Column:
    """Return a column of few values: numbers of any size, or words."""
    kind = random.integers(3)
    if kind == 0:
        chosen = np.array([-(2**62), -1, 0, 7, 2**53, 2**53 + 1])
    elif kind == 1:
        chosen = np.array([-1e300, -0.5, 0.0, 1e-300, 1e9, 1e9 + 1e-6])
    else:
        chosen = np.array(["", " ", "a", "A", "1", "\u00e9", "\U0001f600"])
        chosen = chosen.astype(object) if random.random() < 0.5 else chosen
    return chosen[random.integers(len(chosen), size=random.integers(1, 80))]


def test_codes_and_vectors_are_those_of_scikit_learn(each_example: EachExample):
    def example(random: np.random.Generator) -> None:
        seen = categories(random)
        asked, rows = seen[::-1], seen[:, None]
        codes = sklearn.preprocessing.OrdinalEncoder().fit(rows).transform(asked[:, None])
        encoder = fitted(random, lambda: OrdinalEncoder(["c"]), {"c": seen})
        assert_array_equal(encoder.transform_batch({"c": asked})["c"], codes[:, 0])
        reference = sklearn.preprocessing.OneHotEncoder(sparse_output=False)
        expected = reference.fit(rows).transform(asked[:, None])
        hot = fitted(random, lambda: OneHotEncoder(["c"]), {"c": seen})
        assert_array_equal(hot.transform_batch({"c": asked})["c"], expected)

    each_example(example)


def test_labels_come_back_as_they_were(each_example: EachExample):
    def example(random: np.random.Generator) -> None:
        labels = categories(random)
        if random.random() < 0.3:
            mixed = [*labels.tolist(), "x", 3, 2.5]
            labels = np.array(mixed, dtype=object)
        encoder = fitted(random, lambda: LabelEncoder("y"), {"y": labels})
        encoded = encoder.transform_batch({"y": labels})
        assert encoded["y"].dtype == np.int64
        decoded = encoder.inverse_transform(encoded)["y"].tolist()
        assert decoded == labels.tolist()
        assert list(map(type, decoded)) == list(map(type, labels.tolist()))

    each_example(example)


def test_multi_hot_vectors_are_those_of_scikit_learn(each_example: EachExample):
    def example(random: np.random.Generator) -> None:
        kind = [list, set, frozenset, tuple][random.integers(4)]
        lists = np.empty(15, dtype=object)
        for row in range(15):
            lists[row] = kind(np.unique(random.integers(5, size=random.integers(6))).tolist())
        expected = sklearn.preprocessing.MultiLabelBinarizer().fit_transform(lists)
        encoder = fitted(random, lambda: MultiHotEncoder(["c"]), {"c": lists})
        assert_array_equal(encoder.transform_batch({"c": lists})["c"], expected)

    each_example(example)


def test_words_are_counted_as_by_scikit_learn(each_example: EachExample):
    def example(random: np.random.Generator) -> None:
        words = random.choice(["the", "The", "a", "\u00e9", "x,"], size=(12, 5))
        texts = np.array([" ".join(row[: random.integers(1, 6)]) for row in words])
        reference = sklearn.feature_extraction.text.CountVectorizer(
            tokenizer=str.split, lowercase=False, token_pattern=None
        )
        expected = reference.fit_transform(texts).toarray()
        counter = fitted(random, lambda: CountVectorizer(["t"]), {"t": texts})
        assert counter.stats_ is not None
        places = [reference.vocabulary_[word] for word in counter.stats_["token_counts(t)"]]
        assert_array_equal(counter.transform_batch({"t": texts})["t"], expected[:, places])

    each_example(example)


def test_words_have_the_places_that_ray_gives_them(each_example: EachExample):
    def example(random: np.random.Generator) -> None:
        words = ["".join(map(chr, random.integers(33, 900, size=3))) for _ in range(6)]
        length = int(random.integers(1, 2000))
        made = HashingVectorizer(["t"], length).transform_batch({"t": np.array([" ".join(words)])})
        expected = np.zeros(length)
        for word in words:
            # As in ray.data.preprocessors.utils.simple_hash.
            expected[int(hashlib.sha256(word.encode()).hexdigest(), 16) % length] += 1
        assert_array_equal(made["t"][0], expected)
        columns = {word: np.full(1, words.count(word)) for word in words}
        made = FeatureHasher(list(columns), length, "f").transform_batch(columns)
        assert_array_equal(made["f"][0], expected)

    each_example(example)
