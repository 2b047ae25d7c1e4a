"""What both Ray Data and `hpctrain.data` are asked: each case is given the module.

``record_data.py`` writes down what a real Ray answers; ``test_data.py`` compares.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow

Case = Callable[[Any, Path], Any]
CASES: dict[str, Case] = {}
# Ray's groups come in the order of a hash that changes from run to run, ours in that of the keys;
# the rows of its union as their blocks are ready, ours one dataset after another.
IN_ANY_ORDER = ("groups_", "union_")

ITEMS = [
    {"name": "b", "x": 3, "y": 1.5},
    {"name": "a", "x": 1, "y": -2.0},
    {"name": "b", "x": 2, "y": 0.25},
    {"name": "c", "x": 7, "y": 4.0},
    {"name": "a", "x": 1, "y": 8.0},
]
LARGE = 2**53 + 1


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def plain(value: Any) -> Any:
    """Return a value for JSON, with its type where that is not plain."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return {"array": str(value.dtype), "shape": list(value.shape), "of": plain(value.tolist())}
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (datetime.date, datetime.timedelta)):
        return str(value)
    return value


def answer(function: Case, data: Any, folder: Path) -> Any:
    """Return what a case gives, or the kind of error that it ends with."""
    try:
        return plain(function(data, folder))
    except ImportError:
        # That says nothing of the library.
        raise
    except Exception as error:
        return {"raises": type(error).__name__}


def in_order(value: Any) -> Any:
    """Return an answer of which the order says nothing, in one that is always the same."""
    if isinstance(value, list):
        return sorted(map(in_order, value), key=lambda item: json.dumps(item, sort_keys=True))
    return value


# --- what makes datasets


@case
def items_are_rows(data: Any, _: Path) -> Any:
    return data.from_items(ITEMS).take_all()


@case
def items_that_are_no_dicts_are_the_column_item(data: Any, _: Path) -> Any:
    return data.from_items([3, 1, 2]).take_all() + data.from_items(["x", "y"]).take_all()


@case
def items_with_missing_values(data: Any, _: Path) -> Any:
    return data.from_items([{"a": 1, "b": "x"}, {"a": None, "b": None}]).take_all()


@case
def items_with_other_keys(data: Any, _: Path) -> Any:
    return data.from_items([{"a": 1}, {"a": 2, "b": "x"}]).take_all()


@case
def items_that_are_arrays(data: Any, _: Path) -> Any:
    return data.from_items([{"v": np.arange(3)}, {"v": np.arange(3, 6)}]).take_all()


@case
def items_that_are_lists_of_unlike_length(data: Any, _: Path) -> Any:
    rows = data.from_items([{"v": [1]}, {"v": [2, 3]}]).take_all()
    return [{"v": list(row["v"])} for row in rows]


@case
def items_that_are_large_integers(data: Any, _: Path) -> Any:
    return data.from_items([LARGE, LARGE + 1]).take_all()


@case
def types_of_values_in_rows(data: Any, _: Path) -> Any:
    moment = np.datetime64("2026-01-02T03:04:05").item()
    row = {"i": 1, "f": 1.5, "s": "x", "b": True, "t": moment, "v": np.zeros(2)}
    (found,) = data.from_items([row]).take(1)
    return {name: type(value).__name__ for name, value in found.items()}


@case
def range_is_the_column_id(data: Any, _: Path) -> Any:
    return data.range(4).take_all(), data.range(3).columns(), data.range(5).count()


@case
def range_tensor_is_the_column_data(data: Any, _: Path) -> Any:
    return data.range_tensor(2, shape=(2, 2)).take_all()


@case
def lines_of_text(data: Any, folder: Path) -> Any:
    (folder / "a.txt").write_text("one\n\ntwo ß\nthree")
    return (
        data.read_text(str(folder / "a.txt")).take_all(),
        data.read_text(str(folder / "a.txt"), drop_empty_lines=False).count(),
    )


@case
def json_lines(data: Any, folder: Path) -> Any:
    (folder / "a.jsonl").write_text('{"a": 1, "b": "x"}\n{"a": 2, "b": "y"}\n')
    return data.read_json(str(folder / "a.jsonl"), lines=True).take_all()


@case
def json_array(data: Any, folder: Path) -> Any:
    (folder / "a.json").write_text(json.dumps([{"a": 1, "b": 1.5}, {"a": 2, "b": 2.5}]))
    return data.read_json(str(folder / "a.json")).take_all()


@case
def binary_files(data: Any, folder: Path) -> Any:
    (folder / "b.bin").write_bytes(b"\x00\xff1")
    paths = data.read_binary_files(str(folder), include_paths=True).take_all()
    return [(row["bytes"], Path(row["path"]).name) for row in paths]


@case
def images(data: Any, folder: Path) -> Any:
    from PIL import Image

    for value in (0, 128):
        pixels = np.full((2, 3, 3), value, np.uint8)
        Image.fromarray(pixels).save(folder / f"{value}.png")
    rows = data.read_images(str(folder)).take_all()
    small = data.read_images(str(folder), size=(1, 2), mode="L").take_all()
    return sorted((row["image"].shape, int(row["image"].sum())) for row in [*rows, *small])


@case
def frames_follow_each_other(data: Any, _: Path) -> Any:
    frames = [pandas.DataFrame({"a": [1, 2]}), pandas.DataFrame({"a": [3]})]
    return data.from_pandas(frames).take_all()


@case
def arrays_follow_each_other(data: Any, _: Path) -> Any:
    return data.from_numpy([np.arange(2), np.arange(2, 5)]).take_all()


@case
def tables_follow_each_other(data: Any, _: Path) -> Any:
    tables = [pyarrow.table({"a": [1, None]}), pyarrow.table({"a": [3, 4]})]
    return data.from_arrow(tables).sum("a"), data.from_arrow(tables).count()


# --- rows and batches


@case
def map_of_rows(data: Any, _: Path) -> Any:
    return data.range(3).map(lambda row: {"y": row["id"] * 2, "s": str(row["id"])}).take_all()


@case
def map_with_arguments(data: Any, _: Path) -> Any:
    def scaled(row: dict, by: int, *, plus: int = 0) -> dict:
        return {"id": row["id"] * by + plus}

    return data.range(3).map(scaled, fn_args=[10], fn_kwargs={"plus": 1}).take_all()


class Add:
    """A class, as Ray's actors take it."""

    def __init__(self, what: int, *, times: int = 1) -> None:
        self.what = what * times

    def __call__(self, batch: dict) -> dict:
        return {"id": batch["id"] + self.what}


@case
def map_with_a_class(data: Any, _: Path) -> Any:
    return (
        data.range(3)
        .map(Add, fn_constructor_args=[10], fn_constructor_kwargs={"times": 2}, concurrency=1)
        .take_all()
    )


@case
def map_batches_with_a_class(data: Any, _: Path) -> Any:
    return data.range(4).map_batches(Add, fn_constructor_args=(5,), concurrency=1).take_all()


@case
def map_batches_gives_at_most_batch_size(data: Any, _: Path) -> Any:
    sizes = data.range(10, override_num_blocks=1).map_batches(
        lambda batch: {"rows": np.array([len(batch["id"])])}, batch_size=4
    )
    return sizes.take_all()


@case
def map_batches_may_give_other_rows(data: Any, _: Path) -> Any:
    twice = data.range(3).map_batches(lambda b: {"id": np.repeat(b["id"], 2)})
    return sorted(row["id"] for row in twice.take_all()), twice.count()


@case
def map_batches_may_yield(data: Any, _: Path) -> Any:
    def halves(batch: dict) -> Any:
        yield {"id": batch["id"]}
        yield {"id": -batch["id"]}

    return sorted(row["id"] for row in data.range(3).map_batches(halves).take_all())


@case
def map_batches_in_other_forms(data: Any, _: Path) -> Any:
    frames = data.range(3).map_batches(lambda f: f.assign(y=f["id"] + 1), batch_format="pandas")
    tables = data.range(3).map_batches(
        lambda t: t.slice(0, 1), batch_format="pyarrow", batch_size=3
    )
    return frames.take_all(), tables.count() >= 1


@case
def map_batches_with_arguments(data: Any, _: Path) -> Any:
    ds = data.range(3).map_batches(
        lambda b, by, plus: {"id": b["id"] * by + plus}, fn_args=(2,), fn_kwargs={"plus": 1}
    )
    return ds.take_all()


@case
def flat_map_of_rows(data: Any, _: Path) -> Any:
    return data.range(4).flat_map(lambda r: [r] * (int(r["id"]) % 3)).take_all()


@case
def filter_of_rows(data: Any, _: Path) -> Any:
    few = data.from_items(ITEMS).filter(lambda row: row["x"] > 1 and row["name"] != "c")
    return few.take_all(), few.count()


@case
def filter_by_expression(data: Any, _: Path) -> Any:
    few = data.from_items(ITEMS).filter(expr="x > 1 and name != 'c'")
    some = data.from_items(ITEMS).filter(expr="name in ['a', 'c'] or y < 1")
    return few.take_all(), some.take_all()


@case
def filter_that_leaves_nothing(data: Any, _: Path) -> Any:
    none = data.range(3).filter(lambda row: row["id"] > 5)
    return none.take_all(), none.count()


@case
def map_after_a_filter(data: Any, _: Path) -> Any:
    few = data.range(100, override_num_blocks=4).filter(lambda row: row["id"] == 77)
    return few.map(lambda row: {"y": row["id"] + 1}).take_all()


@case
def columns_made_of_the_last_row_that_is_left(data: Any, _: Path) -> Any:
    few = data.range(100).filter(expr="id == 77").map(lambda row: {"y": row["id"] + 1})
    return few.columns(), few.sum("y"), few.sort("y").take_all()


@case
def add_column_of_a_frame(data: Any, _: Path) -> Any:
    return data.range(3).add_column("y", lambda frame: frame["id"] * 2).take_all()


@case
def add_column_of_arrays(data: Any, _: Path) -> Any:
    ds = data.range(3).add_column("y", lambda b: b["id"] + 0.5, batch_format="numpy")
    return ds.take_all(), ds.columns()


@case
def columns_are_dropped_selected_and_renamed(data: Any, _: Path) -> Any:
    ds = data.from_items(ITEMS)
    return (
        ds.drop_columns(["y"]).columns(),
        ds.drop_columns(cols=["x", "y"]).columns(),
        ds.select_columns(cols=["y", "name"]).columns(),
        ds.select_columns("y").columns(),
        ds.rename_columns({"x": "z"}).columns(),
        ds.rename_columns(["p", "q", "r"]).take(1),
    )


@case
def batches_are_taken(data: Any, _: Path) -> Any:
    batch = data.range(5).take_batch(3)
    frame = data.range(5).take_batch(2, batch_format="pandas")
    return batch, frame["id"].tolist(), data.range(5).take_batch()


@case
def a_batch_of_nothing(data: Any, _: Path) -> Any:
    return data.range(3).filter(lambda row: row["id"] > 5).take_batch(2)


@case
def take_all_beyond_its_limit(data: Any, _: Path) -> Any:
    return data.range(5).take_all(limit=3)


@case
def show_prints_rows(data: Any, _: Path) -> Any:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        data.from_items(ITEMS).show(2)
    return printed.getvalue()


@case
def batches_without_a_size(data: Any, _: Path) -> Any:
    return sum(len(b["id"]) for b in data.range(10).iter_batches(batch_size=None))


# --- several datasets


@case
def union_keeps_the_order(data: Any, _: Path) -> Any:
    return data.range(2).union(data.range(3), data.range(1)).take_all()


@case
def union_of_mapped_and_filtered(data: Any, _: Path) -> Any:
    doubled = data.range(3).map(lambda row: {"id": row["id"] * 2})
    few = data.range(9).filter(lambda row: row["id"] > 6)
    return doubled.union(few).take_all(), doubled.union(few).count()


@case
def union_of_unlike_types(data: Any, _: Path) -> Any:
    floats = data.from_items([{"id": 0.5}])
    return data.from_items([{"id": 1}]).union(floats).take_all()


@case
def zip_renames_what_is_there_twice(data: Any, _: Path) -> Any:
    return data.range(2).zip(data.range(2).map(lambda r: {"id": r["id"] + 5, "y": 1})).take_all()


@case
def zip_of_unlike_lengths(data: Any, _: Path) -> Any:
    return data.range(2).zip(data.range(3)).take_all()


@case
def splits_of_equal_size(data: Any, _: Path) -> Any:
    return [part.count() for part in data.range(10).split(3, equal=True)]


@case
def splits_have_all_rows(data: Any, _: Path) -> Any:
    return sorted(row["id"] for part in data.range(10).split(3) for row in part.take_all())


@case
def splits_at_indices(data: Any, _: Path) -> Any:
    parts = data.range(10).split_at_indices([2, 5, 12])
    return [[row["id"] for row in part.take_all()] for part in parts]


@case
def splits_in_proportion(data: Any, _: Path) -> Any:
    return [part.count() for part in data.range(10).split_proportionately([0.2, 0.5])]


@case
def split_to_train_and_test(data: Any, _: Path) -> Any:
    train, test = data.range(8).train_test_split(test_size=0.25)
    return train.take_all(), test.take_all()


@case
def limits(data: Any, _: Path) -> Any:
    return data.range(10).limit(3).take_all(), data.range(2).limit(5).count()


@case
def sample_of_rows(data: Any, _: Path) -> Any:
    whole = data.range(1000)
    return (
        whole.random_sample(0.0).count(),
        whole.random_sample(1.0).count(),
        300 < whole.random_sample(0.5, seed=3).count() < 700,
    )


@case
def sample_of_more_than_all(data: Any, _: Path) -> Any:
    return data.range(3).random_sample(1.5)


@case
def repartition_keeps_rows(data: Any, _: Path) -> Any:
    return data.range(5).repartition(2).take_all()


@case
def streaming_split_gives_iterators(data: Any, _: Path) -> Any:
    return len(data.range(8).streaming_split(2, equal=True))


# --- the whole dataset


@case
def sorted_by_one_key(data: Any, _: Path) -> Any:
    ds = data.from_items(ITEMS)
    return ds.sort("y").take_all(), [r["y"] for r in ds.sort("y", descending=True).take_all()]


@case
def sorted_by_two_keys(data: Any, _: Path) -> Any:
    ds = data.from_items(ITEMS)
    return (
        ds.sort(["name", "y"]).take_all(),
        ds.sort(["name", "y"], descending=[True, False]).take_all(),
    )


@case
def sorted_with_missing_keys(data: Any, _: Path) -> Any:
    ds = data.from_items([{"k": "b"}, {"k": None}, {"k": "a"}])
    return ds.sort("k").take_all(), ds.sort("k", descending=True).take_all()


@case
def sorted_with_nan(data: Any, _: Path) -> Any:
    ds = data.from_items([{"k": 2.0}, {"k": float("nan")}, {"k": 1.0}])
    return ds.sort("k").take_all()


@case
def sorted_with_nan_descending(data: Any, _: Path) -> Any:
    ds = data.from_items([{"k": 2.0}, {"k": float("nan")}, {"k": 1.0}])
    return ds.sort("k", descending=True).take_all()


@case
def sorted_by_what_is_not_there(data: Any, _: Path) -> Any:
    return data.range(3).sort("nothing").take_all()


@case
def unique_values(data: Any, _: Path) -> Any:
    ds = data.from_items(ITEMS)
    return sorted(ds.unique("name")), sorted(ds.unique("x"))


@case
def unique_values_and_missing(data: Any, _: Path) -> Any:
    ds = data.from_items([{"k": "b"}, {"k": None}, {"k": "b"}])
    return len(ds.unique("k")), ds.unique("k", ignore_nulls=True)


@case
def aggregates_of_a_column(data: Any, _: Path) -> Any:
    ds = data.from_items(ITEMS)
    return ds.sum("x"), ds.mean("x"), ds.std("x"), ds.min("x"), ds.max("x"), ds.std("y", ddof=0)


@case
def types_of_aggregates(data: Any, _: Path) -> Any:
    ds = data.from_items(ITEMS)
    found = ds.sum("x"), ds.mean("x"), ds.std("x"), ds.min("x"), ds.max("y")
    return [type(value).__name__ for value in found]


@case
def aggregates_of_several_columns(data: Any, _: Path) -> Any:
    ds = data.from_items(ITEMS)
    return ds.sum(["x", "y"]), ds.mean(["x", "y"]), ds.max(["y"])


@case
def aggregates_of_all_columns(data: Any, _: Path) -> Any:
    return data.from_items([{"a": 1, "b": 2.5}, {"a": 3, "b": 0.5}]).sum()


@case
def aggregates_of_texts(data: Any, _: Path) -> Any:
    ds = data.from_items(ITEMS)
    return ds.min("name"), ds.max("name")


@case
def aggregates_without_what_is_missing(data: Any, _: Path) -> Any:
    ds = data.from_items([{"a": 1}, {"a": None}, {"a": 4}])
    return ds.sum("a"), ds.mean("a"), ds.std("a"), ds.min("a"), ds.max("a")


@case
def aggregates_with_what_is_missing(data: Any, _: Path) -> Any:
    ds = data.from_items([{"a": 1}, {"a": None}, {"a": 4}])
    return [getattr(ds, n)("a", ignore_nulls=False) for n in ("sum", "mean", "std", "min", "max")]


@case
def aggregates_of_nothing(data: Any, _: Path) -> Any:
    ds = data.from_items([{"a": 1}]).filter(lambda row: row["a"] > 5)
    return [getattr(ds, name)("a") for name in ("sum", "mean", "std", "min", "max")]


@case
def aggregates_of_one_row(data: Any, _: Path) -> Any:
    ds = data.from_items([{"a": 3}])
    return ds.mean("a"), ds.std("a")


@case
def aggregates_of_large_integers(data: Any, _: Path) -> Any:
    ds = data.from_items([LARGE, 2, LARGE])
    return ds.sum("item"), ds.max("item")


@case
def aggregates_of_what_is_not_there(data: Any, _: Path) -> Any:
    return data.range(3).sum("nothing")


@case
def groups_are_counted(data: Any, _: Path) -> Any:
    return data.from_items(ITEMS).groupby("name").count().take_all()


@case
def groups_are_aggregated(data: Any, _: Path) -> Any:
    groups = data.from_items(ITEMS).groupby("name")
    return (
        groups.sum("x").take_all(),
        groups.mean("y").take_all(),
        groups.min("x").take_all(),
        groups.max(["x", "y"]).take_all(),
        groups.std("y").take_all(),
    )


@case
def groups_of_several_keys(data: Any, _: Path) -> Any:
    return data.from_items(ITEMS).groupby(["name", "x"]).sum("y").take_all()


@case
def groups_of_all_columns(data: Any, _: Path) -> Any:
    ds = data.from_items([{"k": 1, "a": 1, "b": 2.5}, {"k": 1, "a": 3, "b": 0.5}])
    return ds.groupby("k").sum().take_all()


@case
def groups_without_a_key(data: Any, _: Path) -> Any:
    return data.from_items(ITEMS).groupby(None).sum("x").take_all()


@case
def groups_of_none_are_counted(data: Any, _: Path) -> Any:
    return data.from_items(ITEMS).groupby(None).count().take_all()


@case
def groups_with_missing_keys(data: Any, _: Path) -> Any:
    ds = data.from_items([{"k": "b", "x": 1}, {"k": None, "x": 2}, {"k": "a", "x": 4}])
    return ds.groupby("k").sum("x").take_all()


@case
def groups_with_missing_values(data: Any, _: Path) -> Any:
    ds = data.from_items([{"k": 1, "x": 1}, {"k": 1, "x": None}, {"k": 2, "x": None}])
    return ds.groupby("k").count().take_all(), ds.groupby("k").mean("x").take_all()


@case
def groups_that_are_mapped(data: Any, _: Path) -> Any:
    def first(batch: dict) -> dict:
        return {"name": batch["name"][:1], "largest": np.array([batch["x"].max()])}

    return data.from_items(ITEMS).groupby("name").map_groups(first).take_all()


@case
def groups_by_what_is_not_there(data: Any, _: Path) -> Any:
    return data.range(3).groupby("nothing").count().take_all()


@case
def sums_of_sorted_groups(data: Any, _: Path) -> Any:
    sums = data.from_items(ITEMS).groupby("name").sum("x").sort("sum(x)", descending=True)
    return sums.take_all(), sums.columns()


@case
def aggregates_by_objects(data: Any, _: Path) -> Any:
    made = importlib.import_module(f"{data.__name__}.aggregate")
    ds = data.from_items(ITEMS)
    return ds.aggregate(
        made.Count(),
        made.Count(on="x", alias_name="values"),
        made.Sum("x"),
        made.Mean(on="y"),
        made.Min("name"),
        made.Max("y", alias_name="most"),
        made.Std("x", ddof=0),
        made.CountDistinct("name"),
    )


@case
def aggregates_by_objects_of_missing_values(data: Any, _: Path) -> Any:
    made = importlib.import_module(f"{data.__name__}.aggregate")
    ds = data.from_items([{"a": 1}, {"a": None}, {"a": 4}])
    return ds.aggregate(
        made.Count("a"),
        made.Count("a", ignore_nulls=True, alias_name="there"),
        made.Sum("a"),
        made.Max("a", ignore_nulls=False),
        made.CountDistinct("a"),
    )


@case
def groups_aggregated_by_objects(data: Any, _: Path) -> Any:
    made = importlib.import_module(f"{data.__name__}.aggregate")
    groups = data.from_items(ITEMS).groupby("name")
    return groups.aggregate(
        made.Count(), made.Sum("x"), made.Mean("y", alias_name="y"), made.CountDistinct("x")
    ).take_all()


@case
def column_of_an_expression(data: Any, _: Path) -> Any:
    of = importlib.import_module(f"{data.__name__}.expressions")
    ds = data.from_items(ITEMS)
    return (
        ds.with_column("z", of.col("x") * 2 + of.col("y")).take_all(),
        ds.with_column("x", of.col("x") - 1).columns(),
        ds.with_column("one", of.lit(1)).take(2),
        ds.with_column("large", of.col("x") > 2).take(2),
    )


@case
def columns_of_expressions(data: Any, _: Path) -> Any:
    of = importlib.import_module(f"{data.__name__}.expressions")
    ds = data.range(3)
    return ds.with_columns({"id": of.col("id") + 1, "before": of.col("id")}).take_all()


@case
def column_of_a_quotient(data: Any, _: Path) -> Any:
    of = importlib.import_module(f"{data.__name__}.expressions")
    return data.range(4).with_column("half", of.col("id") / 2).take_all()


@case
def column_of_missing_values(data: Any, _: Path) -> Any:
    of = importlib.import_module(f"{data.__name__}.expressions")
    ds = data.from_items([{"a": 1.5}, {"a": None}])
    return ds.with_column("b", of.col("a") * 2).take_all()


@case
def filter_by_an_expression_of_columns(data: Any, _: Path) -> Any:
    of = importlib.import_module(f"{data.__name__}.expressions")
    ds = data.from_items(ITEMS)
    return ds.filter(expr=(of.col("x") > 1) & (of.col("name") != "c")).take_all()


@case
def groups_with_a_column(data: Any, _: Path) -> Any:
    of = importlib.import_module(f"{data.__name__}.expressions")
    groups = data.from_items(ITEMS).groupby("name")
    return groups.with_column("twice", of.col("x") * 2).take_all()


@case
def blocks_in_another_order(data: Any, _: Path) -> Any:
    rows = data.range(20, override_num_blocks=4).randomize_block_order(seed=3).take_all()
    return sorted(row["id"] for row in rows)


@case
def json_of_an_empty_file(data: Any, folder: Path) -> Any:
    (folder / "a.json").write_text("")
    return data.read_json(str(folder / "a.json")).take_all()


@case
def json_of_an_empty_file_among_others(data: Any, folder: Path) -> Any:
    (folder / "a.json").write_text("")
    (folder / "b.json").write_text('{"a": 1}\n')
    return data.read_json(str(folder)).take_all()


@case
def json_lines_of_an_empty_file(data: Any, folder: Path) -> Any:
    (folder / "a.jsonl").write_text("")
    return data.read_json(str(folder / "a.jsonl"), lines=True).take_all()
