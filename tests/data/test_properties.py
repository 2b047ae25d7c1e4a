"""Random datasets, read as hpctrain and as another library reads them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas
import pyarrow
import pytest
from pyarrow import parquet

from hpctrain.data import Dataset, from_numpy, read_csv, read_hdf5, read_numpy, read_parquet, write
from hpctrain.data.types import cast_exactly
from hpctrain.errors import ConfigError

EachExample = Callable[[Callable[[np.random.Generator], None]], None]


def assert_same(ours: dict[str, np.ndarray], reference: dict[str, np.ndarray]) -> None:
    assert [*ours] == [*reference]
    for name, expected in reference.items():
        assert ours[name].dtype == expected.dtype, name
        assert ours[name].shape == expected.shape, name
        np.testing.assert_array_equal(ours[name], expected, err_msg=name)


def read_by_ranks(dataset: Dataset, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the rows of column "n" that each rank gets."""
    world_size = int(rng.integers(1, 5))
    options: dict[str, Any] = {
        "batch_size": int(rng.integers(1, 9)),
        "shuffle": bool(rng.integers(2)),
        "prefetch_batches": int(rng.integers(2)),
    }
    shards = [dataset.shard(rank=r, world_size=world_size) for r in range(world_size)]
    batches = [list(shard.iter_batches(**options)) for shard in shards]
    assert len(set(map(len, batches))) == 1
    return [np.concatenate([[], *(batch["n"] for batch in of_rank)]) for of_rank in batches]


def test_parquet_of_any_row_groups_is_read_as_pyarrow_reads_it(
    tmp_path: Path, each_example: EachExample
):
    def example(rng: np.random.Generator) -> None:
        directory = tmp_path / str(rng.integers(2**60))
        directory.mkdir()
        total = 0
        for part in range(rng.integers(1, 4)):
            path = directory / f"{part}.parquet"
            schema = pyarrow.schema({"n": pyarrow.int64(), "s": pyarrow.string()})
            with parquet.ParquetWriter(path, schema) as writer:
                for rows in rng.choice([0, 0, 1, 5, 7], rng.integers(0, 7)):
                    numbers = np.arange(total, total + rows)
                    table = pyarrow.table({"n": numbers, "s": list(map(str, numbers))}, schema)
                    writer.write_table(table)
                    total += int(rows)
        dataset = read_parquet(directory)
        assert dataset.num_rows == total
        expected = {"n": np.arange(total), "s": np.array([*map(str, range(total))], object)}
        assert_same(dataset.to_numpy(), expected)
        start, stop = sorted(rng.integers(0, total + 1, 2).tolist())
        some = [b["n"] for b in dataset.iter_batches(rows=range(start, stop), batch_size=3)]
        assert np.concatenate([[], *some]).tolist() == list(range(start, stop))
        assert sorted(np.concatenate(read_by_ranks(dataset, rng))) == list(range(total))

    each_example(example)


def write_file(path: Path, batch: dict[str, np.ndarray]) -> None:
    """Write a file in place, with other libraries."""
    match path.suffix:
        case ".npy":
            np.save(path, batch["n"])
        case ".npz":
            np.savez(path, **batch)
        case ".h5":
            with h5py.File(path, "r+" if path.exists() else "w") as file:
                for name, array in batch.items():
                    if name in file and file[name].shape == array.shape:
                        file[name][...] = array
                    else:
                        file.pop(name, None)
                        file.create_dataset(name, data=array, chunks=len(array) > 3 or None)
        case ".parquet":
            parquet.write_table(pyarrow.table(batch), path, row_group_size=4)
        case ".csv":
            pandas.DataFrame(batch).to_csv(path, index=False)


READERS: dict[str, Callable[[Path], Dataset]] = {
    ".npy": lambda path: read_numpy(path, column="n"),
    ".npz": read_numpy,
    ".h5": read_hdf5,
    ".parquet": read_parquet,
    ".csv": read_csv,
}


def test_a_file_that_was_written_again_is_read_again(tmp_path: Path, each_example: EachExample):
    def write(path: Path, rng: np.random.Generator, rows: int) -> np.ndarray:
        numbers = rng.integers(1000, 10_000, rows)
        beside = path.with_name(f"b{path.suffix}")
        if rng.integers(2) and path.exists():
            write_file(beside, {"n": numbers})
            beside.replace(path)
        else:
            write_file(path, {"n": numbers})
        return numbers

    def example(rng: np.random.Generator) -> None:
        path = tmp_path / f"a{rng.choice([*READERS])}"
        read = READERS[path.suffix]
        rows = int(rng.integers(1, 30))
        numbers = write(path, rng, rows)
        dataset = read(path)
        for _ in range(3):
            assert dataset.to_numpy()["n"].tolist() == numbers.tolist()
            assert read(path).to_numpy()["n"].tolist() == numbers.tolist()
            shard = dataset.shard(rank=0, world_size=1)
            batches = shard.iter_batches(batch_size=2, shuffle=bool(rng.integers(2)))
            for _ in range(rng.integers(4)):
                next(batches, None)
            # Whoever stops in the middle of an epoch has no file open any more, either.
            del batches
            numbers = write(path, rng, rows)
        write(path, rng, rows + int(rng.choice([-1, 1])))
        with pytest.raises(ConfigError, match=r"changed since the dataset was made.*again"):
            dataset.to_numpy()

    each_example(example)


def test_a_file_that_nobody_reads_can_be_written_to(tmp_path: Path):
    for suffix in READERS:
        path = tmp_path / f"a{suffix}"
        write_file(path, {"n": np.arange(9)})
        dataset = READERS[suffix](path)
        before = set(os.listdir("/proc/self/fd"))
        dataset.to_numpy()
        assert set(os.listdir("/proc/self/fd")) <= before
        batches = iter(dataset.iter_batches(batch_size=2))
        next(batches)
        assert dataset.count() == 9
        dataset.to_numpy()
        assert set(os.listdir("/proc/self/fd")) <= before


def test_a_cast_keeps_every_value_or_is_refused(each_example: EachExample):
    names = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]
    edges = [0, 1, -1, 0.5, 2.0**24 + 1, np.nan, np.inf, -0.0, 127, 128, 255, 256, -129, 65_535]
    large = [2**53 + 1, 2**63 - 1, -(2**63), 2**62 + 1]

    def example(rng: np.random.Generator) -> None:
        source, target = (np.dtype(name) for name in rng.choice(names, 2))
        with np.errstate(all="ignore"):
            values = np.array(rng.choice(edges, rng.integers(0, 4))).astype(source)
            if source.kind == "i" and rng.integers(2):
                values = np.append(values, np.array(rng.choice(large)).astype(source))
        cast = cast_exactly(values, target)
        # Python's numbers are exact, and compare so.
        with np.errstate(all="ignore"):
            expected = [target.type(v) for v in values]
        same = all(
            new.item() == old or (new.item() != new.item() and old != old)
            for new, old in zip(expected, values.tolist(), strict=True)
        )
        assert (cast is not None) == same
        if cast is not None:
            assert cast.dtype == target
            np.testing.assert_array_equal(cast, np.array(expected, target))

    each_example(example)


def random_column(rng: np.random.Generator, rows: int) -> list[Any]:
    """Return values whose type depends on the row."""
    kinds: list[Callable[[], Any]] = [
        lambda: int(rng.choice([1, 44, 300, -7, 2**53 + 1])),
        lambda: float(rng.choice([0.5, 1.0, np.nan, 1e300])),
        lambda: str(rng.choice(["a", "longer", "ü", "007", ""])),
        lambda: None,
        lambda: bool(rng.integers(2)),
    ]
    chosen = rng.choice(len(kinds), rng.integers(1, 3), replace=False)
    change = int(rng.integers(rows + 1))
    return [kinds[chosen[0] if row < change else chosen[-1]]() for row in range(rows)]


def same_value(one: Any, other: Any) -> bool:
    if other is None or other != other:
        return one is None or one != one
    # A bool beside floats is one of them.
    return bool(one == other)


def read_back(path: Path, name: str) -> list[Any]:
    """Read a column with another library."""
    match path.suffix:
        case ".parquet":
            return parquet.read_table(path).column(name).to_pylist()
        case ".h5":
            with h5py.File(path) as file:
                column = file[name]
                return (column.asstr() if column.dtype.kind == "O" else column)[:].tolist()
        case ".csv":
            return pandas.read_csv(path, dtype=str, keep_default_na=False)[name].tolist()
    parts = [np.load(part)[name] for part in sorted(path.iterdir())]
    return np.concatenate(parts).tolist()


WRITERS: dict[str, Callable[[Dataset, Path], Path]] = {
    ".parquet": Dataset.write_parquet,
    ".h5": Dataset.write_hdf5,
    ".csv": Dataset.write_csv,
    "": Dataset.write_numpy,
}


def test_what_is_written_is_what_the_rows_were_or_is_refused(
    tmp_path: Path, each_example: EachExample, monkeypatch: pytest.MonkeyPatch
):
    def example(rng: np.random.Generator) -> None:
        rows = int(rng.integers(1, 12))
        values = random_column(rng, rows)
        size = int(rng.integers(1, 5))
        # Batches of few rows, as a large file has many.
        monkeypatch.setattr(write, "ROW_GROUP_BYTES", 8 * size)
        monkeypatch.setattr(write, "PART_BYTES", 8 * size)

        def look_up(batch: dict[str, np.ndarray]) -> dict[str, Any]:
            chosen = [values[n] for n in batch["n"]]
            column = np.array(chosen, object)
            if len({type(value) for value in chosen}) == 1 and isinstance(chosen[0], (int, float)):
                column = np.array(chosen)
            return {"c": column}

        path = tmp_path / f"{rng.integers(2**60)}{rng.choice([*WRITERS])}"
        dataset = from_numpy({"n": np.arange(rows)}).map_batches(look_up)
        try:
            WRITERS[path.suffix](dataset, path)
        except ConfigError:
            assert not [left for left in tmp_path.iterdir() if path.name in left.name]
            return
        ours = read_back(path, "c")
        if path.suffix == ".csv":
            # CSV has texts only, the same one for no value, "" and not a number.
            expected = ["" if v is None or v != v else v for v in values]
            ours = ["" if text == "nan" else text for text in ours]
            if any(isinstance(v, float) for v in expected):
                # There are several ways to write one, and a bool beside floats is one of them.
                assert [float(text or 0) for text in ours] == [float(v or 0) for v in expected]
            else:
                assert ours == [str(v).lower() if isinstance(v, bool) else str(v) for v in expected]
        else:
            assert len(ours) == rows
            assert all(map(same_value, ours, values))

    each_example(example)


def test_any_rows_are_read_as_numpy_slices_them_or_are_refused(
    tmp_path: Path, each_example: EachExample
):
    def example(rng: np.random.Generator) -> None:
        count = int(rng.integers(1, 12))
        path = tmp_path / f"{rng.integers(2**60)}{rng.choice([*READERS])}"
        # What lies behind the rows in a file of HDF5 are those of the next column.
        columns = {"n": np.arange(count), "m": np.arange(count) + 50}
        write_file(path, columns)
        dataset = READERS[path.suffix](path).select_columns(["n"])
        if rng.integers(2):
            chosen = sorted(rng.integers(0, count + 1, 2).tolist())
            dataset = dataset.take_ranges([range(*chosen)])
            columns = {"n": columns["n"][slice(*chosen)]}
            count = len(columns["n"])
        start, stop = rng.integers(-2, count + 3, 2).tolist()
        rows = range(start, stop, int(rng.choice([1, 1, 2, -1])))
        if rows and (rows.step != 1 or start < 0 or stop > count):
            for read in (
                lambda: dataset.iter_batches(rows=rows),
                lambda: dataset.take_ranges([rows]),
            ):
                with pytest.raises(ConfigError, match="a range of step 1 in range"):
                    read()
            return
        ours = [batch["n"] for batch in dataset.iter_batches(rows=rows, batch_size=2)]
        expected = [columns["n"][row] for row in rows]
        assert np.concatenate([[], *ours]).tolist() == expected
        assert dataset.take_ranges([rows]).to_numpy()["n"].tolist() == expected

    each_example(example)
