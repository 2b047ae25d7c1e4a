"""Arguments of Ray Data's, values that are refused, and what a user does by mistake."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute
import pytest

from hpctrain.data import (
    Dataset,
    from_arrow,
    from_items,
    from_numpy,
    from_pandas,
    range,
    read_binary_files,
    read_json,
    read_text,
)
from hpctrain.data.aggregate import Max, Sum
from hpctrain.data.operations import scheduling
from hpctrain.errors import ConfigError


@pytest.fixture
def rows() -> Dataset:
    return from_items([{"x": i, "name": "ab"[i % 2], "v": [i, i]} for i in np.arange(6).tolist()])


def test_arguments_without_a_meaning_are_accepted_and_said_once(
    rows: Dataset, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(scheduling, "_said", set())
    for _ in np.arange(2):
        mapped = rows.map_batches(lambda b: b, concurrency=2, num_gpus=1, num_cpus=None)
        assert mapped.repartition(3).count() == 6
    said = capsys.readouterr().err.splitlines()
    assert [line.split(": each rank")[0] for line in said] == [
        "hpctrain: map_batches(): concurrency, num_gpus have no effect",
        "hpctrain: repartition(): num_blocks has no effect",
    ]


@pytest.mark.parametrize("take", [range, lambda n, **given: range(n).map(dict, **given)])
def test_an_argument_that_does_not_exist_is_refused_with_the_one_that_does(take: Any):
    with pytest.raises(
        TypeError, match=r"has no argument 'concurency'. Did you mean 'concurrency'"
    ):
        take(4, concurency=2)


REFUSED: dict[str, tuple[Callable[[Dataset], Any], str]] = {
    "a filter of batches": (
        lambda ds: ds.filter(lambda b: np.array([True, False])).count(),
        r'takes a row, and returned 2 values.*batch_format="numpy"',
    ),
    "a filter without an answer": (
        lambda ds: ds.filter(lambda row: None).count(),
        r"returned None. Return a bool",
    ),
    "nothing to filter by": (lambda ds: ds.filter(), r"given neither a function nor expr="),
    "no expression": (lambda ds: ds.filter(expr="x >"), r"is not an expression"),
    "a call": (
        lambda ds: ds.filter(expr="__import__('os') > 1"),
        r"__import__\('os'\).* is not supported",
    ),
    "an attribute": (lambda ds: ds.filter(expr="x.y > 1"), r"'x.y' is not supported"),
    "a constant": (lambda ds: ds.filter(expr="1"), r"Compare a column"),
    "a column of a function": (
        lambda ds: ds.with_column("y", len),
        r"with_column\('y'\): .*len.* is not an expression\. .*add_column\(\) takes a function",
    ),
    "a column of no expression": (
        lambda ds: ds.with_column("y", "x *"),
        r"with_column\('y', 'x \*'\): the text is not an expression",
    ),
    "a column of a constant": (lambda ds: ds.with_column("y", "1"), r"Compute with a column"),
    "a column of unlike types": (
        lambda ds: ds.with_column("y", "x + name").take(1),
        r"with_column\('y': x \+ name\)",
    ),
    "a column of an unknown one": (lambda ds: ds.with_column("y", "z + 1"), r"no column 'z'"),
    "no column": (lambda ds: ds.with_columns({}), r"no expression was given"),
    "a column without a name": (lambda ds: ds.with_column("", "x"), r"the name is ''"),
    "no aggregate": (lambda ds: ds.aggregate(), r"no aggregate was given"),
    "a class of an aggregate": (lambda ds: ds.aggregate(Sum), r"such as Sum\('x'\)"),
    "an own aggregate": (lambda ds: ds.aggregate(len), r"groupby\(\).map_groups\(function\)"),
    "an aggregate of an unknown column": (lambda ds: ds.aggregate(Sum("z")), r"no column 'z'"),
    "an aggregate without a column": (lambda ds: ds.aggregate(Sum(None)), r"needs a column"),
    "two aggregates of a name": (
        lambda ds: ds.groupby("name").aggregate(Sum("x"), Max("x", alias_name="name")),
        r"more than one column is called 'name'",
    ),
    "an unknown column": (
        lambda ds: ds.filter(expr="z > 1").count(),
        r"no column 'z'. The dataset has 'x', 'name', 'v'",
    ),
    "unlike types": (lambda ds: ds.filter(expr="name > 1").count(), r"filter\(expr='name > 1'\)"),
    "a row that is none": (lambda ds: ds.map(lambda row: 3).count(), None),
    "a row of a list": (lambda ds: ds.map(lambda row: [row]).take(1), r"returned a list for a row"),
    "one row for several": (
        lambda ds: ds.flat_map(lambda row: row).take(1),
        r"flat_map\(<lambda>\): the function returned a dict .*list of rows",
    ),
    "too few values": (
        lambda ds: ds.add_column("y", lambda f: f["x"][:1]).take(1),
        r"add_column\('y'\): the function returned 1 values for a batch of 6 rows",
    ),
    "two names": (lambda ds: ds.rename_columns({"x": "name"}), r"more than one column is called"),
    "few names": (lambda ds: ds.rename_columns(["a"]), r"has 3 columns, 'x', 'name', 'v'"),
    "an argument of no class": (
        lambda ds: ds.map(len, fn_constructor_args=[1]),
        r"fn_constructor_kwargs are for a class",
    ),
    "a value after is": (
        lambda ds: ds.filter(expr="x is 5").count(),
        r"'x is 5'\): .* is not supported.*Use 'x is None'",
    ),
    "a column after is": (lambda ds: ds.filter(expr="None is x").count(), r"Use 'x is None'"),
    "no streams": (lambda ds: ds.streaming_split(0), r"n=0 is not a number of parts"),
    "arrays in order": (lambda ds: ds.sort("v").take(1), r"'v' cannot be sorted"),
    "a sum of texts": (lambda ds: ds.sum("name"), r"sum\(name\): .*name them with on="),
    "a sum of all": (lambda ds: ds.sum(), r"name them with on="),
    "unlike directions": (
        lambda ds: ds.sort(["x", "name"], descending=[True]),
        r"has 2 columns and 1 bools",
    ),
    "no part": (lambda ds: ds.split(0), r"n=0 is not a number of parts"),
    "indices": (lambda ds: ds.split_at_indices([3, 1]), r"in ascending order"),
    "shares": (lambda ds: ds.split_proportionately([0.5, 0.5]), r"whose sum is below 1"),
    "shapes": (
        lambda ds: ds.union(from_numpy({"x": np.zeros((2, 2))})),
        r"rows of column 'x' have shapes \(\), \(2,\)",
    ),
    "texts and numbers": (
        lambda ds: ds.union(from_items([{"x": np.datetime64("2026-01-01", "us").item()}])),
        r"column 'x' has incompatible types",
    ),
    "lengths": (lambda ds: ds.zip(range(5)), r"zip\(\): the datasets have 6, 5 rows"),
    "some dicts": (lambda _: from_items([{"x": 1}, 2]), r"item 0 is a dict and item 1 a int"),
    "a negative range": (lambda _: range(-1), "n=-1 is not a number of rows"),
    "more rows": (lambda ds: ds.to_pandas(limit=3), r"the dataset has more rows"),
    "no rows to shuffle": (
        lambda ds: ds.iter_batches(local_shuffle_buffer_size=0),
        r"local_shuffle_buffer_size=0 is not a number of rows\. Give an integer of 1 or more",
    ),
    "fewer rows than none": (
        lambda ds: ds.iter_batches(local_shuffle_buffer_size=-1),
        r"local_shuffle_buffer_size=-1 is not",
    ),
    "part of a row": (
        lambda ds: ds.iter_torch_batches(local_shuffle_buffer_size=2.5),
        r"local_shuffle_buffer_size=2.5 is not",
    ),
    "a seed for each rank": (
        lambda ds: ds.iterator().iter_batches(shuffle=True, local_shuffle_seed=None),
        r"local_shuffle_seed is None\. Give an integer of 0 or more",
    ),
    "a frame of a number": (
        lambda _: from_pandas(3),
        r"from_pandas\(3\): a int is not a data frame",
    ),
    "a table of rows": (
        lambda _: from_arrow([{"x": 1}]),
        r"from_arrow\(.*from_items\(\) takes rows",
    ),
    "items of a dict": (lambda _: from_items({"x": [1]}), r"from_numpy\(\) takes a dict of arrays"),
    "a share of text": (lambda ds: ds.random_sample("a"), r"fraction='a' is not a share"),
    "a test set of text": (lambda ds: ds.train_test_split("a"), r"test_size='a'\) is not a number"),
    "an index of text": (lambda ds: ds.split_at_indices("12"), r"indices='12' are not positions"),
    "indices of text": (lambda ds: ds.split_at_indices(["1"]), r"indices=\['1'\] are not"),
    "half an index": (lambda ds: ds.split_at_indices([1.5]), r"indices=\[1.5\] are not positions"),
    "shares of text": (lambda ds: ds.split_proportionately("ab"), r"proportions='ab' are not"),
    "parts of text": (lambda ds: ds.split("2"), r"n='2' is not a number of parts"),
    "a class without calls": (
        lambda ds: ds.map(type("Scale", (), {})),
        r"Scale'> is a class whose objects cannot be called\. Define __call__",
    ),
    "arguments that are one": (lambda ds: ds.map(len, fn_args=3), r"fn_args=3 is not a list"),
    "a type of NumPy for torch": (
        lambda ds: ds.iter_torch_batches(dtypes="float32"),
        r"'float32' is not a type of torch\. Give one, such as torch.float32",
    ),
    "a device of no machine": (
        lambda ds: ds.iter_torch_batches(device="gpu"),
        r"device='gpu' is not a device of torch",
    ),
    "a dataset of another kind": (lambda ds: ds.union([ds]), r"union\(\): \[.*is not a Dataset"),
    "a state of nothing": (
        lambda ds: ds.iterator().load_state_dict({}),
        r"load_state_dict\(\{\}\) is not what state_dict\(\) returned",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_an_error_that_says_what_to_do(rows: Dataset, name: str):
    function, message = REFUSED[name]
    if message is None:
        # What is made of a row is not asked for the number of rows.
        assert function(rows) == 6
        return
    with pytest.raises(ConfigError) as refusal:
        function(rows)
    assert re.search(message, str(refusal.value).replace("\n", " ")), str(refusal.value)


def test_an_expression_of_arrow_filters_and_missing_values_are_in_no_comparison():
    dataset = from_items([{"x": 1.0}, {"x": None}, {"x": 3.0}])
    assert dataset.filter(expr=pyarrow.compute.field("x") > 2).take_all() == [{"x": 3.0}]
    assert dataset.filter(expr="x != 1").take_all() == [{"x": 3.0}]
    assert dataset.filter(expr="not x > 2 or x * 2 - 1 == 5").count() == 2
    assert dataset.filter(expr="x is None").count() == 1
    assert dataset.filter(expr="x is not None and 0 < x <= 1").count() == 1


def test_a_function_of_rows_after_a_filter_that_leaves_none_in_some_pieces():
    numbers = from_numpy({"id": np.arange(3_000_000)}).map_batches(lambda b: b)
    few = numbers.filter(expr="id >= 2999998").map(lambda row: {"y": row["id"]})
    assert few.take_all() == [{"y": 2999998}, {"y": 2999999}]
    assert [len(b["y"]) for b in few.iter_batches(batch_size=1)] == [1, 1]


@pytest.mark.parametrize("as_directory", [False, True])
def test_files_that_are_read_whole(tmp_path: Path, as_directory: bool):
    folder = tmp_path / "odd name % \n"
    folder.mkdir()
    (folder / "a.json").write_text('{"x": 1, "v": [1, 2]}\n{"x": null, "v": []}\n')
    (folder / "b.jsonl").write_text('{"x": 2.5, "w": "y"}\n')
    (folder / "c.json").write_text("")
    dataset = read_json(folder if as_directory else sorted(map(str, folder.iterdir())))
    batch = dataset.to_numpy()
    assert [*batch] == ["x", "v", "w"]
    assert str(batch["x"].tolist()) == "[1.0, nan, 2.5]"
    assert batch["w"].tolist() == [None, None, "y"]
    assert [len(p.to_numpy()["x"]) for p in dataset.split(2)] == [2, 1]
    (folder / "a.json").write_text('{"x": 1}\n')
    with pytest.raises(ConfigError, match="has changed since the dataset was made"):
        dataset.to_numpy()
    (folder / "b.jsonl").write_text("no")
    with pytest.raises(ConfigError, match=r"b.jsonl is neither lines of JSON objects nor"):
        read_json(folder)


@pytest.mark.parametrize("content", [[{"a": 1}, {"a": 2}], {"a": 1}])
def test_compressed_json_may_be_a_list(tmp_path: Path, content: Any):
    path = tmp_path / "l.json.gz"
    path.write_bytes(gzip.compress(json.dumps(content, indent=1).encode()))
    expected = [1, 2] if isinstance(content, list) else [1]
    assert read_json(path).to_numpy()["a"].tolist() == expected


def test_a_compressed_line_of_json_may_be_longer_than_the_file(tmp_path: Path):
    path = tmp_path / "l.jsonl.gz"
    text = "x" * 20_000_000
    path.write_bytes(gzip.compress(f'{{"a": "{text}"}}\n{{"a": "y"}}\n'.encode()))
    assert [len(a) for a in read_json(path).to_numpy()["a"]] == [20_000_000, 1]


def test_texts_and_bytes_come_as_they_are(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes("ä\nb".encode("latin-1"))
    (tmp_path / "b.bin").write_bytes(b"\0\xff\0")
    with pytest.raises(
        ConfigError, match=r"a.txt is not text in utf-8.*Name its encoding with encoding="
    ):
        read_text(tmp_path / "a.txt")
    assert read_text(tmp_path / "a.txt", encoding="latin-1").take_all() == [
        {"text": "ä"},
        {"text": "b"},
    ]
    files = read_binary_files([tmp_path / "b.bin", tmp_path / "a.txt"])
    assert files.take_all()[0] == {"bytes": b"\0\xff\0"}
    assert files.map(lambda row: {"size": len(row["bytes"])}).sum("size") == 6
    assert from_items([b"\0\xff\0"]).take_all() == [{"item": b"\0\xff\0"}]


def test_batches_of_tensors_can_be_taken_again_and_are_full_after_a_filter():
    torch = pytest.importorskip("torch")
    few = range(10).filter(lambda row: row["id"] % 2 == 0)
    batches = few.iter_torch_batches(batch_size=2, dtypes=torch.float32, device="cpu")
    for _ in np.arange(2):
        assert [b["id"].tolist() for b in batches] == [[0.0, 2.0], [4.0, 6.0], [8.0]]
    pairs = range(4).add_column("y", lambda f: f["id"] * 2).to_torch(label_column="y", batch_size=3)
    for _ in np.arange(2):
        assert [(x.tolist(), y.tolist()) for x, y in pairs] == [
            ([[0], [1], [2]], [[0], [2], [4]]),
            ([[3]], [[6]]),
        ]
    assert len(range(10).iter_batches(batch_size=4, drop_last=True)) == 2
    shard = range(6).shard(rank=1, world_size=2)
    parts = shard.to_torch(feature_columns=["id"], batch_size=2)
    for _ in np.arange(2):
        assert [x.tolist() for x, label in parts if label is None] == [[[3], [4]], [[5]]]
    assert shard.epoch == 2


def test_dask_gets_the_rows_and_gives_them_back():
    pytest.importorskip("dask.dataframe")
    from hpctrain.data import from_dask

    dataset = from_items([{"k": i % 3, "x": float(i)} for i in np.arange(10).tolist()])
    frame = dataset.filter(expr="x > 1").to_dask()
    assert frame.groupby("k").x.sum().compute().to_dict() == {0: 18.0, 1: 11.0, 2: 15.0}
    assert from_dask(frame).take(1) == [{"k": 2, "x": 2.0}]


def test_images_of_unlike_size_are_objects_and_of_one_size_an_array(tmp_path: Path):
    image = pytest.importorskip("PIL.Image")
    from hpctrain.data import read_images

    for at, shape in enumerate([(2, 3, 3), (4, 2, 3)]):
        image.fromarray(np.full(shape, at, np.uint8)).save(tmp_path / f"{at}.png")
    unlike = read_images(tmp_path, include_paths=True)
    assert [row["image"].shape for row in unlike.take_all()] == [(2, 3, 3), (4, 2, 3)]
    assert Path(unlike.take(1)[0]["path"]).name == "0.png"
    alike = read_images(tmp_path, size=(5, 4), mode="L")
    assert (alike.schema()["image"].shape, alike.to_numpy()["image"].shape) == ((5, 4), (2, 5, 4))
    (tmp_path / "2.png").write_bytes(b"no image")
    with pytest.raises(ConfigError, match=r"2.png is not an image"):
        read_images(tmp_path)


def test_further_arguments_may_be_of_any_iterable(rows: Dataset):
    given = rows.map(lambda row, *more: {"y": sum(more, row["x"])}, fn_args=iter([10, 100]))
    assert given.take(2) == [{"y": 110}, {"y": 111}]


def test_numbers_and_lists_of_numpy_are_taken_as_those_of_python(rows: Dataset):
    assert rows.random_sample(np.float32(1), seed=np.int64(3)).count() == 6
    assert [part.count() for part in rows.train_test_split(np.float32(0.5))] == [3, 3]
    assert [part.count() for part in rows.split_at_indices(np.array([1, 4]))] == [1, 3, 2]
    assert [part.count() for part in rows.split_proportionately(np.array([0.5]))] == [3, 3]
    shard = rows.shard(rank=np.int64(1), world_size=np.int64(2))
    assert [len(b["x"]) for b in shard.iter_batches(batch_size=2, shuffle=True)] == [2, 1]
    assert rows.select_columns(np.array(["x"])).columns() == ["x"]
