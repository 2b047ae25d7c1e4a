from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpctrain.data.csv
from hpctrain.data import read_csv, read_numpy
from hpctrain.errors import ConfigError


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hpctrain.data.csv, "BLOCK_BYTES", 256)


def test_lines_of_csv_files_are_shared_out(tmp_path: Path):
    for part in range(2):
        lines = [f"{row},{row / 2},word{row}" for row in range(part * 500, part * 500 + 500)]
        (tmp_path / f"{part}.csv").write_text("n,half,word\n" + "\n".join(lines))
    dataset = read_csv(tmp_path)
    assert str(dataset.schema()) == "n: int64, half: float64, word: object"
    assert len(dataset.source.blocks()) > 10
    before = pickle.dumps(dataset)
    assert len(before) < 4000
    seen = [
        b for r in range(3) for b in dataset.shard(rank=r, world_size=3).iter_batches(batch_size=50)
    ]
    assert np.concatenate([b["n"] for b in seen]).tolist() == list(range(1000))
    assert np.concatenate([b["word"] for b in seen])[999] == "word999"
    shuffled = dataset.shard(rank=0, world_size=1).iter_batches(shuffle=True)
    assert sorted(np.concatenate([b["n"] for b in shuffled])) == list(range(1000))
    # The pickle is what tells whether a run is the same one.
    assert pickle.dumps(dataset) == before


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_empty_lines_are_no_rows(tmp_path: Path, end: str):
    lines = [str(row) + (end if row % 7 == 0 else "") for row in range(300)]
    (tmp_path / "a.csv").write_bytes(end.join(["n", *lines, "", ""]).encode())
    dataset = read_csv(tmp_path / "a.csv")
    assert dataset.num_rows == 300
    assert dataset.to_numpy()["n"].tolist() == list(range(300))


def test_types_that_the_first_lines_do_not_show_are_named(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + "1,2\n" * 200 + "1.5,\n")
    with pytest.raises(ConfigError, match=r"a.csv cannot be read as CSV: .*1.5.*dtypes="):
        read_csv(path).to_numpy()
    with pytest.raises(ConfigError, match=r"column 'b' of type int64 has missing .*dtypes="):
        read_csv(path, dtypes={"a": "f4"}).to_numpy()
    batch = read_csv(path, dtypes={"a": "f4", "b": "f8"}).to_numpy()
    assert (batch["a"].dtype, batch["a"][-1]) == (np.float32, 1.5)
    assert np.isnan(batch["b"][-1])
    with pytest.raises(ConfigError, match=r"no column 'z'. The dataset has 'a', 'b'"):
        read_csv(path, dtypes={"z": "f4"})


def test_files_without_names_and_with_tabs_are_read(tmp_path: Path):
    (tmp_path / "a.tsv").write_text("1\tx\n2\ty\n")
    dataset = read_csv(tmp_path / "a.tsv", delimiter="\t", names=["n", "s"], columns=["s"])
    assert dataset.to_numpy()["s"].tolist() == ["x", "y"]
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(ConfigError, match=r"empty.csv is empty"):
        read_csv(tmp_path / "empty.csv")


def test_a_line_break_inside_of_a_value_is_refused(tmp_path: Path):
    (tmp_path / "a.csv").write_text('n,s\n1,"a\nb"\n')
    with pytest.raises(ConfigError, match=r"a.csv( cannot be read|: 2 lines hold 1 rows)"):
        read_csv(tmp_path / "a.csv").to_numpy()


def test_arrays_of_npy_files_follow_each_other_or_are_columns(tmp_path: Path):
    np.save(tmp_path / "x.npy", np.arange(6, dtype="f4").reshape(3, 2))
    np.save(tmp_path / "x2.npy", np.arange(6, dtype="f4").reshape(3, 2))
    np.save(tmp_path / "y.npy", np.arange(6))
    rows = read_numpy([tmp_path / "x.npy", tmp_path / "x2.npy"], column="x")
    assert str(rows.schema()) == "x: float32[2]"
    columns = read_numpy({"x": tmp_path / "x*.npy", "y": tmp_path / "y.npy"})
    assert columns.to_numpy()["y"].tolist() == list(range(6))
    assert columns.select_columns(["y"]).to_numpy().keys() == {"y"}
    parts = [p for r in (0, 1) for p in columns.shard(rank=r, world_size=2).iter_batches()]
    assert np.concatenate([p["x"] for p in parts]).shape == (6, 2)
    with pytest.raises(ConfigError, match="'x' 3; 'y' 6"):
        read_numpy({"x": tmp_path / "x.npy", "y": tmp_path / "y.npy"})


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_npz_files_are_columns(tmp_path: Path, save: object):
    for part in range(2):
        arrays = {"x": np.full((5, 2), part), "f": np.asfortranarray(np.eye(5)), "y": np.arange(5)}
        save(tmp_path / f"{part}.npz", **arrays)  # type: ignore[operator]
    dataset = read_numpy(tmp_path)
    batch = dataset.to_numpy()
    assert batch["x"][:, 0].tolist() == [0] * 5 + [1] * 5
    assert (batch["f"][5:] == np.eye(5)).all()
    assert read_numpy(tmp_path, columns=["y"]).columns() == ["y"]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_other_arrays_of_npz_files_do_not_matter(tmp_path: Path, save: Any):
    others = {"mean": np.zeros(2), "n": np.array(5), "names": np.array([{}], dtype=object)}
    save(tmp_path / "a.npz", x=np.arange(6), **others)
    dataset = read_numpy(tmp_path, columns=["x"])
    assert dataset.to_numpy()["x"].tolist() == [*range(6)]
    for columns, message in (
        (["x", "mean"], "different numbers of rows"),
        (["x", "n"], "'n' is a single value"),
        (["names"], "Object arrays cannot be loaded"),
        (["y"], "no column 'y'. The dataset has 'x'"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_numpy(tmp_path, columns=columns)


def test_damaged_numpy_files_and_pickles_are_refused(tmp_path: Path):
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "short.npy", np.arange(1000))
    (tmp_path / "short.npy").write_bytes((tmp_path / "short.npy").read_bytes()[:500])
    np.savez(tmp_path / "unlike.npz", x=np.zeros(2), y=np.zeros(3))
    for name, message in (
        ("objects.npy", "cannot be read as .npy or .npz"),
        ("short.npy", "cannot be read as .npy or .npz"),
        ("unlike.npz", "unlike.npz: the columns have different numbers of rows"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_numpy(tmp_path / name)


@pytest.mark.parametrize("length", [3 * 2**20, 9 * 2**20])
def test_long_lines_are_read(tmp_path: Path, length: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hpctrain.data.csv, "BLOCK_BYTES", 8 * 2**20)
    (tmp_path / "a.csv").write_text("text,n\n" + "x" * length + ",1\n" + "y,2\n")
    rows = read_csv(tmp_path / "a.csv").to_numpy()
    assert [len(text) for text in rows["text"]] == [length, 1]
    assert rows["n"].tolist() == [1, 2]


@pytest.mark.parametrize("lines", ["name\nMüller\n", "näme\nMoser\n"])
def test_another_encoding_is_named_as_what_is_wrong(tmp_path: Path, lines: str):
    (tmp_path / "a.csv").write_bytes(lines.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"a.csv cannot be read as CSV: .*iconv .*UTF-8") as info:
        read_csv(tmp_path / "a.csv").to_numpy()
    assert "dtypes" not in str(info.value)


def test_times_with_a_zone_are_read_as_those_of_utc(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text("t,n\n2026-01-01T00:00:00Z,1\n2026-01-01T02:00:00+01:00,2\n")
    expected = np.array(["2026-01-01T00:00", "2026-01-01T01:00"], "M8[ns]")
    for dtypes in ({}, {"t": "M8[ns]"}):
        dataset = read_csv(path, dtypes=dtypes)
        assert (dataset.to_numpy()["t"] == expected).all()
        assert pickle.loads(pickle.dumps(dataset)).to_numpy()["n"].tolist() == [1, 2]
    plain = tmp_path / "b.csv"
    plain.write_text("t,n\n2026-01-01T00:00:00,1\n2026-01-01T01:00:00,2\n")
    both = read_csv([path, plain]).to_numpy()["t"]
    assert both.tolist() == [*expected.astype(both.dtype).tolist()] * 2


@pytest.mark.parametrize("header", ["a,b", "a,b\n", "a,b\r\n"])
def test_a_header_alone_is_a_file_without_rows(tmp_path: Path, header: str):
    (tmp_path / "a.csv").write_bytes(header.encode())
    dataset = read_csv(tmp_path / "a.csv")
    assert (dataset.columns(), dataset.num_rows) == (["a", "b"], 0)
    (tmp_path / "b.csv").write_bytes((header.rstrip() + "\n1,2").encode())
    assert read_csv(tmp_path / "b.csv").to_numpy()["b"].tolist() == [2]


LARGE = 2**60 + 1


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "", str(LARGE)], [1, None, LARGE]),
        (["1", str(2**64 - 1)], [1, 2**64 - 1]),
        (["true", "", "false"], [True, None, False]),
    ],
)
def test_integers_and_bools_of_csv_are_exact_beside_missing_ones(
    tmp_path: Path, values: list[str], expected: list[object], late: bool
):
    # In blocks behind the first too.
    values, expected = values + values[:1] * 300 * late, expected + expected[:1] * 300 * late
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("x,k\n" + "".join(f"{v},0\n" for v in values))
    read = [row["x"] for row in read_csv(tmp_path).iter_rows()]
    assert read == [*expected, *expected]
    assert [type(x) for x in read if isinstance(x, float)] == []


def test_a_large_integer_behind_the_first_lines_of_a_column_with_gaps_is_not_rounded(
    tmp_path: Path,
):
    path = tmp_path / "a.csv"
    path.write_text("x,k\n1,0\n,0\n" + "2,0\n" * 300 + f"{LARGE},0\n")
    with pytest.raises(ConfigError, match=r"column 'x' of type float64 has .*dtypes="):
        read_csv(path).to_numpy()
    assert read_csv(path, dtypes={"x": object}).to_numpy()["x"][-1] == str(LARGE)


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["-1", str(2**63 + 1), str(2**63 + 2)], [-1, 2**63 + 1, 2**63 + 2]),
        ([str(2**66 + 1), "", "NA", "-5"], [2**66 + 1, None, None, -5]),
        # Floats represent this one.
        (["0.5", str(2**60)], [0.5, 2.0**60]),
        (["0.5", "1e300", "-1e20"], [0.5, 1e300, -1e20]),
    ],
)
def test_integers_of_any_size_are_exact_in_csv(
    tmp_path: Path, values: list[str], expected: list[object], late: bool
):
    values, expected = values + values[:1] * 300 * late, expected + expected[:1] * 300 * late
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("k,x\n" + "".join(f"0,{v}\n" for v in values))
    column = read_csv(tmp_path).to_numpy()["x"]
    assert column.tolist() == [*expected, *expected]
    is_float = isinstance(expected[0], float)
    assert column.dtype == (np.float64 if is_float else object)
    # A pickle reads the same, in another process.
    again = pickle.loads(pickle.dumps(read_csv(tmp_path / "a.csv", columns=["x"])))
    assert again.to_numpy()["x"].tolist() == expected


@pytest.mark.parametrize("where", ["first lines", "later lines", "another file"])
def test_an_integer_that_a_column_of_floats_would_round_is_refused(tmp_path: Path, where: str):
    large = f"0,{2**53 + 1}\n"
    lines = [large * (where == "first lines"), "0,0.5\n" * 300, large * (where == "later lines")]
    (tmp_path / "a.csv").write_text("k,x\n" + "".join(lines))
    if where == "another file":
        (tmp_path / "b.csv").write_text("k,x\n" + large)

    with pytest.raises(
        ConfigError, match=rf"'x' .*{2**53 + 1}, which float64 would round.*dtypes={{'x': object"
    ):
        read_csv(tmp_path).to_numpy()

    assert 2.0**53 in read_csv(tmp_path, dtypes={"x": "f8"}).to_numpy()["x"]
    assert str(2**53 + 1) in read_csv(tmp_path, dtypes={"x": object}).to_numpy()["x"]


def test_a_file_without_rows_does_not_say_what_types_the_others_have(tmp_path: Path):
    for name, lines in (("a", ""), ("b", "1,2.5\n"), ("c", "")):
        (tmp_path / f"{name}.csv").write_text(f"x,y\n{lines}")
    dataset = read_csv(tmp_path)
    assert str(dataset.schema()) == "x: int64, y: float64"
    assert dataset.to_numpy()["x"].tolist() == [1]


def test_another_header_or_other_lines_in_a_file_of_the_same_size_are_noticed(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text("x,y\n1,2\n")
    dataset = read_csv(path)
    path.write_text("y,x\n1,2\n")
    with pytest.raises(ConfigError, match=r"first line is b'y,x\\n', and was b'x,y\\n'"):
        dataset.to_numpy()
    path.write_text("x\n" + "11\n" * 300)
    dataset = read_csv(path)
    path.write_text("x\n1\n" + "11\n" * 298 + "1111\n")
    with pytest.raises(ConfigError, match=r"has changed since the dataset was made"):
        [*dataset.iter_batches(rows=range(290, 300), batch_size=4)]


def test_lines_that_end_with_a_carriage_return_alone_are_refused(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes(b"x,y\r1,2\r3,4")
    with pytest.raises(ConfigError, match=r"lines end with a carriage return alone.* tr "):
        read_csv(tmp_path / "a.csv")


def test_rows_without_columns_are_counted(tmp_path: Path):
    np.savez(tmp_path / "some.npz", x=np.arange(3), y=np.zeros((3, 2)))
    found = read_numpy(tmp_path / "some.npz", columns=[])
    assert (found.count(), found.columns()) == (3, [])


def test_an_archive_without_arrays_is_refused(tmp_path: Path):
    np.savez(tmp_path / "none.npz")
    with pytest.raises(ConfigError, match=r"none\.npz has no arrays"):
        read_numpy(tmp_path / "none.npz")
