from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pandas
import pyarrow
import pytest
from pyarrow import parquet

from hpctrain.data import from_arrow, from_numpy, from_pandas, read_csv, read_parquet
from hpctrain.data.parquet import ParquetSource
from hpctrain.data.source import Concatenated
from hpctrain.errors import ConfigError
from tests.instructions import count_instructions


def write(path: Path, first: int, rows: int, **options: int) -> Path:
    batch = {"y": np.arange(first, first + rows), "x": np.ones((rows, 4), "f4") * first}
    parquet.write_table(from_numpy(batch).to_arrow(), path, **options)
    return path


def test_the_output_of_dask_or_spark_is_a_directory_of_parts(tmp_path: Path):
    for part in range(3):
        write(tmp_path / f"part-{part:05}-uuid.snappy.parquet", part * 100, 100, row_group_size=30)
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / ".part-00000.crc").write_text("")
    dataset = read_parquet(tmp_path)
    assert dataset.to_numpy()["y"].tolist() == list(range(300))
    assert dataset.to_numpy()["x"].shape == (300, 4)
    assert [len(block) for block in dataset.source.blocks()] == [30, 30, 30, 10] * 3


def test_thousands_of_row_groups_pickle_to_kilobytes(tmp_path: Path):
    for part in range(20):
        write(tmp_path / f"{part:02}.parquet", part * 500, 500, row_group_size=1)
    assert len(read_parquet(tmp_path).source.blocks()) == 10_000
    dataset = read_parquet(tmp_path)
    assert len(pickle.dumps(dataset)) < 2000
    assert pickle.loads(pickle.dumps(dataset)).source == dataset.source


def test_ten_thousand_files_pickle_to_kilobytes_that_say_the_same_each_time():
    schema = from_numpy({"x": np.zeros((1, 28), "f4")}).schema()
    files = tuple(
        ParquetSource(
            path=f"/scratch/project/events/part-{i:05}-4a1f.snappy.parquet",
            groups=((131_072, 7), (5000 + i * 7919 % 1000, 1)),
            schema=schema,
        )
        for i in range(10_000)
    )
    pickled = pickle.dumps(Concatenated(parts=files))
    assert len(pickled) < 100_000
    again = pickle.loads(pickled)
    assert again.parts == files
    assert pickle.dumps(again) == pickled


def test_columns_in_the_names_of_directories_are_read(tmp_path: Path):
    table = pyarrow.table(
        {"x": np.arange(60), "year": [2023, 2024, 2025] * 20, "site": ["a b"] * 60}
    )
    # As Spark's partitionBy and Dask's partition_on do.
    parquet.write_to_dataset(table, tmp_path / "events", partition_cols=["year", "site"])
    dataset = read_parquet(tmp_path / "events")
    assert str(dataset.schema()) == "x: int64, year: int64, site: object"
    rows = dataset.to_numpy()
    assert np.array_equal(rows["year"], 2023 + rows["x"] % 3)
    assert set(rows["site"]) == {"a b"}
    assert pickle.loads(pickle.dumps(dataset)).source == dataset.source
    years = read_parquet(tmp_path / "events", columns=["year"]).to_numpy()
    assert [*years] == ["year"]
    assert sorted(years["year"]) == [2023] * 20 + [2024] * 20 + [2025] * 20
    (one_year,) = tmp_path.glob("events/year=2024")
    assert read_parquet(one_year).columns() == ["x", "site"]
    with pytest.raises(ConfigError, match=r"no column 'month'. The dataset has 'x', 'year'"):
        read_parquet(tmp_path / "events", columns=["month"])


def test_a_pattern_or_a_list_has_the_columns_in_which_its_directories_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    root = tmp_path / "run=7" / "events"
    for year, site in ((2023, "a"), (2023, "b"), (2024, "a"), (2024, "b")):
        (root / f"year={year}" / f"site={site}").mkdir(parents=True)
        write(root / f"year={year}" / f"site={site}" / "part.parquet", 0, 2)
    (root.parent / "elsewhere").mkdir()
    write(root.parent / "elsewhere" / "part.parquet", 0, 2)
    monkeypatch.chdir(root.parent)
    own = read_parquet("elsewhere").columns()
    whole = read_parquet("events")
    files = sorted(root.rglob("*.parquet"))
    for paths in (
        "events/*/*/*.parquet",
        "events/**/*.parquet",
        [*Path("events").glob("year=*")],
        files,
        [*files, files[0].parent],
    ):
        dataset = read_parquet(paths)
        assert dataset.columns() == whole.columns() == [*own, "year", "site"]
        assert {*dataset.to_numpy()["year"].tolist()} == {2023, 2024}
    for paths, columns in (
        ("events/year=2023/*/*.parquet", ["site"]),
        ([*Path("events/year=2023").iterdir()], ["site"]),
        (["events/year=2023"], ["site"]),
        ("events/year=2023/site=a/*.parquet", []),
        (files[0], []),
        ([files[0], files[0]], []),
        # Without a value for all files there is no column.
        (["elsewhere", files[0].parent], []),
    ):
        assert read_parquet(paths).columns() == own + columns


def test_a_directory_of_rows_whose_value_is_missing_is_read(tmp_path: Path):
    table = pyarrow.table({"x": [0, 1, 2], "year": [2023, None, 2025]})
    parquet.write_to_dataset(table, tmp_path, partition_cols=["year"])
    rows = read_parquet(tmp_path).to_numpy()
    by_x = dict(zip(rows["x"].tolist(), np.nan_to_num(rows["year"], nan=-1).tolist(), strict=True))
    assert by_x == {0: 2023, 1: -1, 2: 2025}


def test_a_directory_that_lacks_a_column_is_named(tmp_path: Path):
    for name in ("year=2023", "elsewhere"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "part.parquet", 0, 5)
    with pytest.raises(ConfigError, match=r"elsewhere.*'year' is missing and int64"):
        read_parquet(tmp_path)


@pytest.mark.parametrize("world_size", [1, 3, 40])
@pytest.mark.parametrize("shuffle", [False, True])
def test_ranks_read_each_row_once(tmp_path: Path, world_size: int, shuffle: bool):
    write(tmp_path / "a.parquet", 0, 25, row_group_size=10)
    write(tmp_path / "b.parquet", 25, 8)
    dataset = read_parquet(tmp_path)
    seen = [
        row
        for rank in range(world_size)
        for batch in dataset.shard(rank=rank, world_size=world_size).iter_batches(
            batch_size=4, shuffle=shuffle
        )
        for row in batch["y"]
    ]
    assert sorted(seen) == list(range(33))


def test_columns_are_chosen_and_a_missing_one_is_refused(tmp_path: Path):
    path = write(tmp_path / "a.parquet", 0, 5)
    assert read_parquet(path, columns=["y"]).columns() == ["y"]
    with pytest.raises(
        ConfigError, match=r"a.parquet: there is no column 'z'. The dataset has 'y'"
    ):
        read_parquet(path, columns=["z"])


def test_integers_that_one_file_misses_are_floats_in_all_of_them(tmp_path: Path):
    parquet.write_table(pyarrow.table({"n": [1, 2], "b": [True, False]}), tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table({"n": [None, 4], "b": [True, None]}), tmp_path / "b.parquet")
    dataset = read_parquet(tmp_path)
    assert str(dataset.schema()) == "n: float64, b: object"
    assert np.nan_to_num(dataset.to_numpy()["n"], nan=-1).tolist() == [1, 2, -1, 4]
    assert dataset.to_numpy()["b"].tolist() == [True, False, True, None]
    assert str(read_parquet(tmp_path / "a.parquet").schema()) == "n: int64, b: bool"


def test_files_with_unlike_columns_are_refused(tmp_path: Path):
    parquet.write_table(pyarrow.table({"n": [1]}), tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table({"n": ["1"]}), tmp_path / "b.parquet")
    with pytest.raises(ConfigError, match=r"'n' is int64 and object"):
        read_parquet(tmp_path)


def test_lists_strings_and_dates_are_read(tmp_path: Path):
    table = pyarrow.table(
        {
            "s": pyarrow.array(["a", "b"]).dictionary_encode(),
            "fixed": pyarrow.array([[1, 2], [3, 4]], pyarrow.list_(pyarrow.int32(), 2)),
            "lists": [[1], [2, 3]],
            "day": pyarrow.array([0, 1], pyarrow.date32()),
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    batch = read_parquet(tmp_path).to_numpy()
    assert batch["s"].tolist() == ["a", "b"]
    assert batch["fixed"].tolist() == [[1, 2], [3, 4]]
    assert [list(cell) for cell in batch["lists"]] == [[1], [2, 3]]
    assert str(batch["day"][1]) == "1970-01-02"


def test_a_truncated_file_is_refused(tmp_path: Path):
    path = write(tmp_path / "a.parquet", 0, 1000)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=r"a.parquet cannot be read as Parquet: .*truncated"):
        read_parquet(path)


def test_integers_stay_integers_where_no_statistics_say_that_none_is_missing(tmp_path: Path):
    large = 2**53 + 1
    whole = pyarrow.table({"n": [large, 2, 3], "b": [True, False, True]})
    parquet.write_table(whole, tmp_path / "a.parquet", write_statistics=False, row_group_size=2)
    dataset = read_parquet(tmp_path / "a.parquet")
    assert str(dataset.schema()) == "n: int64, b: bool"
    assert dataset.to_numpy()["n"].tolist() == [large, 2, 3]
    some = pyarrow.table({"n": [1, 2, None], "b": [True, False, None]})
    parquet.write_table(some, tmp_path / "b.parquet", write_statistics=False, row_group_size=2)
    assert str(read_parquet(tmp_path / "b.parquet").schema()) == "n: float64, b: object"
    # As a float the integer would be another one.
    both = read_parquet([tmp_path / "a.parquet", tmp_path / "b.parquet"]).to_numpy()
    assert both["n"].tolist() == [large, 2, 3, 1, 2, None]


def test_two_columns_of_one_name_are_refused(tmp_path: Path):
    twice = pyarrow.table([[1], [2]], names=["x", "x"])
    parquet.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=r"a.parquet: more than one column is called 'x'"):
        read_parquet(tmp_path)
    with pytest.raises(ConfigError, match="more than one column is called 'x'"):
        from_arrow(twice)
    with pytest.raises(ConfigError, match="more than one column is called 'x'"):
        from_pandas(pandas.DataFrame([[1, 2]], columns=["x", "x"]))
    with pytest.raises(ConfigError, match="more than one column is called '1'"):
        from_numpy({1: [1], "1": [2]})
    (tmp_path / "a.csv").write_text("x,x\n1,2\n")
    with pytest.raises(ConfigError, match="more than one column is called 'x'"):
        read_csv(tmp_path / "a.csv")
    with pytest.raises(ConfigError, match="more than one column is called 'y'"):
        from_numpy({"y": [1], "z": [2]}).select_columns(["y", "y"])


def test_lists_of_lists_of_fixed_size_are_arrays(tmp_path: Path):
    kind = pyarrow.list_(pyarrow.list_(pyarrow.int32(), 2), 3)
    values = [[[n, 1], [2, 3], [4, 5]] for n in range(7)]
    table = pyarrow.table({"x": pyarrow.array(values, kind)})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=4)
    for dataset in (read_parquet(tmp_path), from_arrow(table), from_arrow(table.slice(0))):
        assert str(dataset.schema()) == "x: int32[3, 2]"
        assert dataset.to_numpy()["x"].tolist() == values
    assert from_arrow(table.slice(2, 3)).to_numpy()["x"].tolist() == values[2:5]


@pytest.mark.parametrize("statistics", [True, False])
def test_large_integers_of_one_file_are_exact_beside_missing_ones_of_another(
    tmp_path: Path, statistics: bool
):
    large = [2**60 + 1, 2]
    for name, values in (("a", large), ("b", [1, None]), ("c", [None, None])):
        table = pyarrow.table({"x": pyarrow.array(values, pyarrow.int64())})
        parquet.write_table(table, tmp_path / f"{name}.parquet", write_statistics=statistics)
    dataset = read_parquet(tmp_path)
    for size in (1, 6):
        batches = [b["x"] for b in dataset.iter_batches(batch_size=size)]
        read = [value for batch in batches for value in batch.tolist()]
        # Whatever batch they are in: 1 is not 1.0, and None not NaN.
        assert list(map(repr, read)) == list(map(repr, [*large, 1, None, None, None]))
    again = read_parquet(dataset.write_parquet(tmp_path / "again.parquet"))
    assert again.to_numpy()["x"].tolist() == [*large, 1, None, None, None]


def test_a_row_of_an_array_that_is_missing_is_said(tmp_path: Path):
    kind = pyarrow.list_(pyarrow.float32(), 2)
    table = pyarrow.table({"x": pyarrow.array([None, [1, 2]], kind)})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=r"rows 0 to 2: .*An array is missing in a row"):
        read_parquet(tmp_path / "a.parquet").to_numpy()


def test_the_work_for_a_column_does_not_depend_on_the_number_of_columns(tmp_path: Path):
    def instructions(columns: int) -> int:
        path = tmp_path / f"{columns}.parquet"
        parquet.write_table(pyarrow.table({f"c{at}": [1, 2] for at in range(columns)}), path)
        return count_instructions(lambda: read_parquet(path).source.read(range(2), None))

    instructions(1)

    assert instructions(200) < 12 * instructions(20)
