"""Wrong values of each argument of datasets and preprocessors: taken, or refused in words."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain import data, preprocessors
from hpctrain.data import DataIterator, Dataset
from hpctrain.data.aggregate import Count, Std, Sum
from hpctrain.errors import ConfigError, HpctrainError

WRONG: tuple[Any, ...] = (
    *(None, True, "a", "", b"a", -1, 0, 2.5, 10**400, math.nan, object(), int, len),
    *([], {}, ["a"], [None], [[]], [1], {"a": None}, {"t": "a"}, {"x": 2.5}, {1: 2}),
)


def same(value: Any, *_: Any, **__: Any) -> Any:
    return value


BATCH = {
    "x": np.array([1.0, 2.0, 3.0, 4.0]),
    "n": np.array([1, 2, 1, 2]),
    "t": np.array(["b c", "c", "b", "b"], object),
    "l": np.array([["a"], ["b"], ["a", "b"], []], object),
}
ONE_TO_ONE = {"columns": ["x"], "output_columns": ["y"]}
OF_TEXTS = {"columns": ["t"], "tokenization_fn": None, "output_columns": ["y"]}
BINS = {"include_lowest": False, "duplicates": "raise", "dtypes": {"x": np.int32}, "right": True}

PREPROCESSORS: dict[str, dict[str, Any]] = {
    "StandardScaler": ONE_TO_ONE,
    "MinMaxScaler": ONE_TO_ONE,
    "MaxAbsScaler": ONE_TO_ONE,
    "RobustScaler": {**ONE_TO_ONE, "quantile_range": (0.25, 0.75), "quantile_precision": 800},
    "OrdinalEncoder": {"columns": ["t"], "encode_lists": True, "output_columns": ["y"]},
    "OneHotEncoder": {"columns": ["t"], "max_categories": {"t": 1}, "output_columns": ["y"]},
    "MultiHotEncoder": {"columns": ["l"], "max_categories": {"l": 1}, "output_columns": ["y"]},
    "LabelEncoder": {"label_column": "t", "output_column": "y"},
    "Categorizer": {"columns": ["t"], "dtypes": {"t": ["b"]}, "output_columns": ["y"]},
    "CustomKBinsDiscretizer": {**ONE_TO_ONE, **BINS, "bins": [0, 2, 5]},
    "UniformKBinsDiscretizer": {**ONE_TO_ONE, **BINS, "bins": 2},
    "SimpleImputer": {**ONE_TO_ONE, "strategy": "constant", "fill_value": 1.0},
    "Normalizer": {**ONE_TO_ONE, "norm": "l2"},
    "PowerTransformer": {**ONE_TO_ONE, "power": 0.5, "method": "yeo-johnson"},
    "Tokenizer": OF_TEXTS,
    "HashingVectorizer": {**OF_TEXTS, "num_features": 4},
    "CountVectorizer": {**OF_TEXTS, "max_features": 4},
    "FeatureHasher": {"columns": ["x", "n"], "num_features": 4, "output_column": "y"},
    "Concatenator": {
        "columns": ["x", "n"],
        "output_column_name": "y",
        "dtype": np.float32,
        "raise_if_missing": True,
        "flatten": True,
    },
    "BatchMapper": {"fn": same, "batch_format": "numpy", "batch_size": 2},
    "TorchVisionPreprocessor": {**ONE_TO_ONE, "transform": same, "batched": True},
}


def keeps(call: Callable[[], Any]) -> bool:
    """Return whether a value is taken; all else than hpctrain's own errors gets out."""
    try:
        call()
    except HpctrainError as error:
        refusal = str(error)
    else:
        return True
    assert len(refusal) < 1500
    return False


def apply(name: str, arguments: Mapping[str, Any]) -> None:
    preprocessor = getattr(preprocessors, name)(**arguments)
    if preprocessor.fit_status() is not preprocessor.FitStatus.NOT_FITTABLE:
        preprocessor.fit(BATCH)
    preprocessor.transform_batch(BATCH)
    repr(preprocessor)


# What a user's own function does wrong is its own error.
OWN_FUNCTIONS = {"fn", "tokenization_fn", "transform", "collate_fn"}


def tried(name: str, arguments: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the arguments with a wrong value each."""
    return [
        (argument, value)
        for argument in arguments
        for value in WRONG
        if not (argument in OWN_FUNCTIONS and callable(value))
    ]


@pytest.mark.parametrize("name", PREPROCESSORS)
def test_an_argument_of_a_preprocessor_is_taken_or_refused_in_words(name: str):
    if name == "TorchVisionPreprocessor":
        pytest.importorskip("torch")
    arguments = PREPROCESSORS[name]
    apply(name, arguments)
    for argument, value in tried(name, arguments):
        changed = {**arguments, argument: value}
        keeps(functools.partial(apply, name, changed))


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("OneHotEncoder", {"max_categories": "t"}, "max_categories is 't', which is not a dict"),
        ("OneHotEncoder", {"max_categories": 3}, "max_categories is 3, which is not a dict"),
        ("OneHotEncoder", {"max_categories": {"t": "3"}}, r"\{'t': '3'\}.*its limit is below 1"),
        ("MultiHotEncoder", {"max_categories": 3}, "max_categories is 3, which is not a dict"),
        ("Categorizer", {"dtypes": {"t": "abc"}}, r"dtypes\['t'\] is 'abc', which is neither a"),
        ("UniformKBinsDiscretizer", {"dtypes": {"x": "nonsense"}}, r"is 'nonsense', which is not"),
        ("UniformKBinsDiscretizer", {"dtypes": "int32"}, "dtypes is 'int32', which is not a dict"),
        ("CustomKBinsDiscretizer", {"bins": ["a", "b"]}, r"are \['a', 'b'\], which is not a list"),
        ("CustomKBinsDiscretizer", {"bins": ["0", "2"]}, r"are \['0', '2'\], which is not a list"),
        ("CustomKBinsDiscretizer", {"bins": "0, 2"}, "are '0, 2', which is not a list of numbers"),
        ("StandardScaler", {"columns": None}, "columns=None is not a list of names. Give one"),
        ("StandardScaler", {"output_columns": 3}, "output_columns=3 is not a list of names"),
        ("Concatenator", {"dtype": "nonsense"}, "dtype is 'nonsense', which is not a type of"),
        ("Concatenator", {"dtype": object}, "is not a type of numbers. Give one"),
        ("Concatenator", {"output_column_name": None}, "output_column_name is None"),
        ("Tokenizer", {"tokenization_fn": "split"}, "tokenization_fn='split' cannot be called"),
        ("SimpleImputer", {"fill_value": [1, 2]}, r"the replacement is of shape \(2,\): \[1, 2\]"),
    ],
)
def test_what_raised_an_error_of_python_says_the_value_and_the_rule(
    name: str, arguments: dict[str, Any], message: str
):
    with pytest.raises(ConfigError, match=message):
        apply(name, {**PREPROCESSORS[name], **arguments})


def rows() -> Dataset:
    return data.from_items([{"x": float(i), "n": i % 2} for i in range(6)])


OF_SHUFFLES = {"local_shuffle_buffer_size": 2, "local_shuffle_seed": 1, "drop_last": False}
OF_FUNCTIONS = {
    "fn": same,
    "fn_args": None,
    "fn_kwargs": None,
    "fn_constructor_args": None,
    "fn_constructor_kwargs": None,
}
OF_TENSORS = {**OF_SHUFFLES, "batch_size": 2, "dtypes": None, "device": "cpu", "collate_fn": None}
PAIRS = {**OF_SHUFFLES, "label_column": "x", "feature_columns": ["n"], "batch_size": 2}

METHODS: dict[str, dict[str, Any]] = {
    "shard": {"rank": 0, "world_size": 2, "tail": "uneven"},
    "to_torch": PAIRS,
    "limit": {"limit": 2},
    "split": {"n": 2, "equal": False},
    "streaming_split": {"n": 2, "equal": False},
    "take_ranges": {"ranges": [range(2)]},
    "random_shuffle": {"seed": 1},
    "randomize_block_order": {"seed": 1},
    "random_sample": {"fraction": 0.5, "seed": 1},
    "train_test_split": {"test_size": 0.5, "shuffle": True, "seed": 1},
    "split_at_indices": {"indices": [2]},
    "split_proportionately": {"proportions": [0.5]},
    "take": {"limit": 2},
    "take_all": {"limit": 20},
    "take_batch": {"batch_size": 2, "batch_format": "numpy"},
    "iter_batches": {
        "batch_size": 2,
        "batch_format": "numpy",
        "rows": range(2),
        "columns": ["x"],
        **OF_SHUFFLES,
    },
    "iter_torch_batches": OF_TENSORS,
    "to_pandas": {"limit": 20},
    "map_batches": {**OF_FUNCTIONS, "batch_size": 2, "batch_format": "numpy"},
    "map": OF_FUNCTIONS,
    "filter": {"expr": "x > 1"},
    "add_column": {"col": "y", "fn": lambda batch: batch["x"], "batch_format": "pandas"},
    "with_column": {"column_name": "y", "expr": "x * 2"},
    "with_columns": {"exprs": {"y": "x * 2"}},
    "select_columns": {"cols": ["x"]},
    "drop_columns": {"cols": ["x"]},
    "rename_columns": {"names": {"x": "y"}},
    "sort": {"key": "x", "descending": False},
    "groupby": {"key": "n"},
    "unique": {"column": "x"},
    "sum": {"on": "x"},
    "std": {"on": "x", "ddof": 1},
}
OF_SHARDS: dict[str, dict[str, Any]] = {
    "iter_batches": {
        "batch_size": 2,
        "batch_format": "numpy",
        "shuffle": True,
        "tail": None,
        **OF_SHUFFLES,
        "prefetch_batches": 1,
    },
    "iter_torch_batches": {**OF_TENSORS, "tail": None, "prefetch_batches": 1},
    "to_torch": PAIRS,
    "num_batches": {"batch_size": 2, "tail": None},
    "load_state_dict": {"state": {"epoch": 1, "taken": [], "mixing": None, "num_rows": 6}},
}


def read(made: Any) -> None:
    """Read the rows of whatever an operation has returned."""
    if isinstance(made, Dataset):
        made.take_all()
    elif isinstance(made, DataIterator):
        list(made.iter_batches())
    elif isinstance(made, list | tuple):
        for one in made:
            if isinstance(one, Dataset):
                one.take_all()
    elif type(made).__name__ == "GroupedData":
        made.count().take_all()
    elif type(made).__name__ in ("Passes", "SizedPasses", "Pairs"):
        list(made)


FLAGS: dict[str, Callable[[Any], Any]] = {
    "shuffle": lambda flag: rows().iterator().iter_batches(batch_size=2, shuffle=flag),
    "drop_last": lambda flag: rows().iter_batches(batch_size=2, drop_last=flag),
    "drop_last of a shard": lambda flag: (
        rows().iterator().iter_batches(batch_size=2, drop_last=flag)
    ),
    "drop_last of tensors": lambda flag: rows().iter_torch_batches(drop_last=flag),
    "drop_last of pairs": lambda flag: rows().to_torch(label_column="x", drop_last=flag),
    "unsqueeze_label_tensor": lambda flag: rows().to_torch(
        label_column="x", unsqueeze_label_tensor=flag
    ),
    "shuffle of a split": lambda flag: rows().train_test_split(0.5, shuffle=flag),
    "shuffle of blocks": lambda flag: rows().repartition(2, shuffle=flag),
    "equal": lambda flag: rows().split(2, equal=flag),
    "equal of streams": lambda flag: rows().streaming_split(2, equal=flag),
    "ignore_nulls": lambda flag: rows().sum("x", ignore_nulls=flag),
    "ignore_nulls of groups": lambda flag: rows().groupby("n").sum("x", ignore_nulls=flag),
    "ignore_nulls of values": lambda flag: rows().unique("x", ignore_nulls=flag),
    "zero_copy_batch": lambda flag: rows().map_batches(same, zero_copy_batch=flag),
    "drop_empty_lines": lambda flag: data.read_text(__file__, drop_empty_lines=flag),
    "include_paths": lambda flag: data.read_binary_files(__file__, include_paths=flag),
    "raise_if_missing": lambda flag: preprocessors.Concatenator(["x"], raise_if_missing=flag),
    "flatten": lambda flag: preprocessors.Concatenator(["x"], flatten=flag),
    "right": lambda flag: preprocessors.UniformKBinsDiscretizer(["x"], 2, right=flag),
    "include_lowest": lambda flag: preprocessors.UniformKBinsDiscretizer(
        ["x"], 2, include_lowest=flag
    ),
    "encode_lists": lambda flag: preprocessors.OrdinalEncoder(["t"], encode_lists=flag),
}


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_is_true_or_false(name: str):
    # The truth of each is not the one that was meant.
    for wrong in ("False", "no", "a", 0, 1, None):
        with pytest.raises(ConfigError, match=rf"^{name.split()[0]} is .*True or False"):
            read(FLAGS[name](wrong))
    for right in (True, False, np.True_, np.False_):
        read(FLAGS[name](right))


@pytest.mark.parametrize("split", [Dataset.split, Dataset.streaming_split])
def test_a_number_of_parts_that_would_fill_the_memory_is_refused(split: Callable[..., Any]):
    with pytest.raises(ConfigError, match="from 1 to 100000"):
        split(rows(), 10**30)


@pytest.mark.parametrize("name", METHODS)
def test_an_argument_of_a_dataset_is_taken_or_refused_in_words(name: str):
    pytest.importorskip("torch" if "torch" in name else "pyarrow")
    read(getattr(rows(), name)(**METHODS[name]))
    for argument, value in tried(name, METHODS[name]):
        changed = {**METHODS[name], argument: value}
        keeps(lambda changed=changed: read(getattr(rows(), name)(**changed)))


@pytest.mark.parametrize("name", OF_SHARDS)
def test_an_argument_of_a_shard_is_taken_or_refused_in_words(name: str):
    if "torch" in name:
        pytest.importorskip("torch")
    shard = rows().shard(rank=0, world_size=2)
    read(getattr(shard, name)(**OF_SHARDS[name]))
    for argument, value in tried(name, OF_SHARDS[name]):
        changed = {**OF_SHARDS[name], argument: value}
        shard = rows().shard(rank=0, world_size=2)
        keeps(lambda shard=shard, changed=changed: read(getattr(shard, name)(**changed)))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    rows().write_csv(tmp_path / "rows.csv")
    np.save(tmp_path / "rows.npy", np.arange(3))
    (tmp_path / "rows.json").write_text('{"x": 1}\n')
    (tmp_path / "rows.txt").write_text("a\nb\n")
    return tmp_path


READERS: dict[str, dict[str, Any]] = {
    "read_csv": {
        "paths": "rows.csv",
        "columns": ["x"],
        "dtypes": {"x": "f4"},
        "delimiter": ",",
        "names": None,
    },
    "read_numpy": {"paths": "rows.npy", "columns": None, "column": "data"},
    "read_json": {"paths": "rows.json"},
    "read_text": {"paths": "rows.txt", "encoding": "utf-8", "drop_empty_lines": True},
    "read_binary_files": {"paths": "rows.txt", "include_paths": True},
    "from_items": {"items": [{"x": 1}]},
    "from_numpy": {"arrays": np.arange(3)},
    "from_torch": {"dataset": [(1, 2)], "columns": ["a", "b"]},
    "range": {"n": 3},
    "range_tensor": {"n": 3, "shape": (2,)},
    "from_pandas": {"dfs": []},
    "from_arrow": {"tables": []},
}


@pytest.mark.parametrize("name", READERS)
def test_an_argument_of_a_reader_is_taken_or_refused_in_words(
    files: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.chdir(files)
    read(getattr(data, name)(**READERS[name]))
    for argument, value in tried(name, READERS[name]):
        # The number of rows that exist is that of the elements.
        if argument == "n" and isinstance(value, int) and value > 10**9:
            continue
        changed = {**READERS[name], argument: value}
        keeps(lambda changed=changed: read(getattr(data, name)(**changed)))


def test_a_path_to_write_to_and_how_are_taken_or_refused_in_words(tmp_path: Path):
    pytest.importorskip("h5py")
    paths = [value for value in WRONG if not isinstance(value, str)]
    for at, value in enumerate(WRONG):
        for name, ending, argument in (
            ("write_parquet", "parquet", "compression"),
            ("write_hdf5", "h5", "compression"),
            ("write_hdf5", "hdf5", "group"),
        ):
            write = functools.partial(getattr(rows(), name), tmp_path / f"{at}.{ending}")
            keeps(functools.partial(write, **{argument: value}))
    for value in paths:
        for name in ("write_parquet", "write_hdf5", "write_csv", "write_numpy"):
            assert not keeps(lambda name=name, value=value: getattr(rows(), name)(value))
        scaler = preprocessors.StandardScaler(["x"])
        assert not keeps(functools.partial(preprocessors.save, scaler, value))
        assert not keeps(lambda value=value: preprocessors.load(value))
        assert not keeps(lambda value=value: preprocessors.save(value, tmp_path))


def test_others_of_a_dataset_are_taken_or_refused_in_words():
    for value in WRONG:
        for name in ("union", "zip"):
            assert not keeps(lambda name=name, value=value: getattr(rows(), name)(value))
        assert not keeps(lambda value=value: DataIterator(value, rank=0, world_size=1))
        keeps(lambda value=value: rows().aggregate(value))
        for kind in (Sum, Std, Count):
            keeps(lambda kind=kind, value=value: rows().aggregate(kind(value)))
        keeps(lambda value=value: rows().aggregate(Std("x", ddof=value)))
        keeps(lambda value=value: rows().aggregate(Sum("x", alias_name=value)))
        keeps(lambda value=value: read(rows().groupby("n").sum(on=value)))
        keeps(lambda value=value: read(rows().groupby("n").map_groups(same, batch_format=value)))
        scaler = preprocessors.StandardScaler(["x"])
        assert not keeps(lambda value=value, scaler=scaler: scaler.fit_shard(BATCH, value))
