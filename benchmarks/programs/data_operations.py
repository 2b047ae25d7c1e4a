"""Operations of Ray Data's names: ``data_operations.py LIBRARY OPERATION ROWS.parquet ANSWER``."""

import importlib
import json
import sys

import numpy as np


def shift(batch, by):
    return {"key": (batch["x_0"] * 10).astype("i8"), "x_0": batch["x_0"] + by, "x_1": batch["x_1"]}


class Shift:
    def __init__(self, by):
        self.by = by

    def __call__(self, batch):
        return shift(batch, self.by)


def on_batches(rows):
    shifted = rows.map_batches(Shift, fn_constructor_args=[1.0], concurrency=1, batch_size=4096)
    shifted = shifted.add_column("y", lambda frame: frame["x_0"] - frame["x_1"])
    return shifted.mean("y")


def on_rows(rows):
    # A tenth of them. Not limit(): of a file with several row groups Ray takes other rows than the
    # first, also with preserve_order.
    few = rows.filter(expr="x_2 > 1.2816")
    few = few.filter(lambda row: row["x_0"] > 0 and row["x_1"] < 1)
    return few.map(lambda row: {"y": row["x_0"] + row["x_1"]}).mean("y")


def on_groups(rows):
    groups = rows.map_batches(shift, fn_args=[0.0]).groupby("key").mean("x_1").sort("key")
    return [[row["key"], row["mean(x_1)"]] for row in groups.take_all()]


def on_sorted(rows):
    return [row["x_3"] for row in rows.sort("x_2", descending=True).take(5)]


def on_aggregates(rows):
    return [rows.sum("x_0"), rows.std("x_1"), rows.min("x_2"), rows.filter(expr="x_3 > 1").count()]


OPERATIONS = {
    "batches": on_batches,
    "rows": on_rows,
    "groups": on_groups,
    "sort": on_sorted,
    "aggregates": on_aggregates,
}

if __name__ == "__main__":
    library, operation, rows, answer = sys.argv[1:]
    if library == "ray.data":
        import ray

        ray.init(num_cpus=2, include_dashboard=False)
    data = importlib.import_module(library)
    found = OPERATIONS[operation](data.read_parquet(rows))
    with open(answer, "w") as file:
        json.dump(np.asarray(found, dtype=float).ravel().tolist(), file)
