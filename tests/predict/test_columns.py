"""Outputs have what the predictor gave, in every part and every format, or are refused."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pyarrow
import pytest
from pyarrow import parquet

from hpctrain import ConfigError, RunConfig, ScalingConfig
from hpctrain.data.times import times_of
from hpctrain.predict import BatchPredictor, Predictor
from hpctrain.predict.columns import AgreedColumns, OutputColumn
from hpctrain.predict.identity import Identity
from hpctrain.predict.output import Output
from hpctrain.predict.part_files import CsvPart, Hdf5Part, PartFile
from hpctrain.predict.parts import Partition

Examples = Callable[[Callable[[np.random.Generator], None]], None]
SUFFIXES = (".h5", ".parquet", ".csv", ".npy")


class Looks(Predictor):
    """Gives what a function says of the numbers of the rows."""

    @classmethod
    def from_checkpoint(cls, checkpoint: Any, **kwargs: Any) -> Looks:
        made = cls()
        made.function = kwargs["function"]
        return made

    def _predict_numpy(self, data: Any) -> Any:
        return self.function(data["data"])


def predict(tmp_path: Path, output: Path, function: Callable[[Any], Any], **how: Any) -> Any:
    """Score rows 0 to 7, two at a time, each two of them a part."""
    how = {"batch_size": 2, "rows_per_part": 2, **how}
    return BatchPredictor(None, Looks, function=function).predict(
        np.arange(8),
        output=output,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=tmp_path / "runs", verbose=0),
        **how,
    )


def late(first: Any, then: Any) -> Callable[[Any], Any]:
    return lambda rows: first(rows) if rows[0] < 4 else then(rows)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("rows_per_part", [2, 8])
def test_integers_and_floats_with_nan_are_not_joined(
    tmp_path: Path, suffix: str, rows_per_part: int
) -> None:
    output = tmp_path / f"out{suffix}"
    function = late(lambda rows: {"x": rows}, lambda rows: {"x": np.full(len(rows), np.nan)})
    with pytest.raises(ConfigError, match="'x' float64 for one batch, but 'x' int64 for another"):
        predict(tmp_path, output, function, rows_per_part=rows_per_part)
    assert not output.exists()


@pytest.mark.parametrize("suffix", [".h5", ".parquet", ".csv"])
def test_columns_in_another_order_are_put_in_order(tmp_path: Path, suffix: str) -> None:
    function = late(lambda rows: {"a": rows, "b": -rows}, lambda rows: {"b": -rows, "a": rows})
    dataset = predict(tmp_path, tmp_path / f"out{suffix}", function)
    found = dataset.to_numpy()
    assert found["a"].tolist() == [*range(8)]
    assert found["b"].tolist() == [-row for row in range(8)]


@pytest.mark.parametrize("suffix", [".h5", ".parquet", ".csv"])
@pytest.mark.parametrize(
    ("then", "what"),
    [
        (lambda rows: {"a": rows, "c": rows}, "'c' int64"),
        (lambda rows: {"a": rows}, "'a' int64 for one"),
        (lambda rows: {"a": rows, "b": np.zeros((len(rows), 2))}, r"'b' float64\[2\]"),
        (lambda rows: {"a": rows, "b": rows.astype("i4")}, "'b' int32"),
        (lambda rows: {"a": rows, "b": rows.astype(str)}, "'b' text"),
    ],
)
def test_other_columns_are_refused_before_they_are_written(
    tmp_path: Path, suffix: str, then: Any, what: str
) -> None:
    output = tmp_path / f"out{suffix}"
    with pytest.raises(ConfigError, match=what):
        predict(tmp_path, output, late(lambda rows: {"a": rows, "b": rows + 0.5}, then))
    assert not output.exists()
    parts = {path.name for path in Path(f"{output}.parts").glob("part-*")}
    assert parts <= {f"part-000000{suffix}", f"part-000001{suffix}"}


def test_what_one_rank_agreed_on_binds_the_others_and_later_attempts(tmp_path: Path) -> None:
    output = Output.at(tmp_path / "out.parquet")
    output.parts.mkdir()
    one, other = output.columns(), output.columns()
    assert one.conform({"x": np.arange(2)})["x"].tolist() == [0, 1]
    with pytest.raises(ConfigError, match="'x' float32 for one batch, but 'x' int64 for another"):
        other.conform({"x": np.arange(2, dtype="f4")})
    assert [path.name for path in output.parts.iterdir()] == ["_columns.json"]


def test_columns_that_a_crash_cut_off_before_the_first_part_are_agreed_on_again(tmp_path: Path):
    output = Output.at(tmp_path / "out.h5")
    identity = Identity(whole="w", inputs="i", model="m", about="")
    partition = Partition(num_rows=4, rows_per_part=2)
    with output.hold():
        output.begin(identity, partition)
        (output.parts / "_columns.json").touch()
        output.mark_empty(0)
        assert output.begin(identity, partition) == (partition, {0})
        floats = {"x": np.zeros(2)}
        assert output.columns().conform(floats)["x"].dtype == np.float64
        part = output.open_part(1, 2)
        part.append(floats)
        part.complete()
        # From now on they stay.
        output.begin(identity, partition)
        with pytest.raises(ConfigError, match="'x' int64 for one batch, but 'x' float64"):
            output.columns().conform({"x": np.arange(2)})


def test_batches_of_numbers_are_conformed_as_others_are(tmp_path: Path) -> None:
    output = Output.at(tmp_path / "out.h5")
    output.parts.mkdir()
    columns = output.columns()
    first = {"x": np.arange(2), "v": np.ones((2, 3), "f4")}
    # In the order of the first batch, and a copy of none.
    for batch in (first, dict(reversed(first.items()))):
        conformed = columns.conform(batch)
        assert list(conformed) == ["x", "v"]
        assert all(conformed[name] is batch[name] for name in batch)
    swapped = columns.conform({**first, "x": np.arange(2).astype(">i8")})
    assert swapped["x"].dtype.isnative
    for unlike in (
        {"x": np.zeros(2)},
        {"v": np.ones((2, 4), "f4")},
        {"v": np.ones((3, 3), "f4")},
        {"x": np.int64(1)},
        {"y": np.arange(2)},
        {"x": np.array([1, None])},
    ):
        with pytest.raises(ConfigError):
            columns.conform({**first, **unlike})


def test_texts_may_all_be_missing_in_a_batch_and_other_objects_too(tmp_path: Path) -> None:
    nothing = np.full(2, None)
    for name, values in (("text", ["a", None]), ("bool", [True, None]), ("date", [DAY, None])):
        function = late(
            lambda rows, values=values: {"x": np.array(values, object)}, lambda rows: {"x": nothing}
        )
        found = predict(tmp_path, tmp_path / f"{name}.parquet", function)
        back = [row["x"] for row in found.iter_rows()]
        assert back[:2] == values or values == [DAY64, None]
        assert all(value is None or np.isnat(value) for value in back[4:])
    function = late(lambda rows: {"x": nothing}, lambda rows: {"x": np.array(["a", None])})
    found = predict(tmp_path, tmp_path / "first.parquet", function)
    assert found.to_numpy()["x"].tolist() == [None] * 4 + ["a", None] * 2


@pytest.mark.parametrize("rows_per_part", [2, 8])
def test_the_first_batch_with_a_value_settles_the_type_of_a_column(
    tmp_path: Path, rows_per_part: int
) -> None:
    nothing = np.full(2, None)
    for name, value in (("bool", True), ("date", DAY), ("bytes", b"1"), ("int", 2**60 + 1)):
        values = np.array([value, None], object)
        output = tmp_path / f"{name}.parquet"
        function = late(lambda rows: {"x": nothing}, lambda rows, values=values: {"x": values})
        predict(tmp_path, output, function, rows_per_part=rows_per_part)
        found = [parquet.read_table(part) for part in sorted(output.glob("part-*"))]
        expected = [None] * 4 + [value, None] * 2
        assert pyarrow.concat_tables(found).column("x").to_pylist() == expected
        assert read_alone(output) == expected


def test_a_column_without_any_value_is_one_of_texts(tmp_path: Path) -> None:
    predict(tmp_path, tmp_path / "out.parquet", lambda rows: {"x": np.full(2, None)})
    (found,) = parquet.read_table(tmp_path / "out.parquet").schema
    assert found.type == pyarrow.string()


def test_ranks_that_settle_a_column_on_other_types_are_refused(tmp_path: Path) -> None:
    output = Output.at(tmp_path / "out.parquet")
    identity = Identity(whole="w", inputs="i", model="m", about="")
    with output.hold():
        output.begin(identity, Partition(num_rows=4, rows_per_part=2))
        for number, value in enumerate((True, "text")):
            columns = output.columns()
            columns.conform({"x": np.full(2, None)})
            part = output.open_part(number, 2)
            part.append(columns.conform({"x": np.full(2, value, object)}))
            part.complete()
        with pytest.raises(ConfigError, match="columns of several types"):
            output.finish(2)


DAY = datetime.date(2024, 2, 29)
DAY64 = np.datetime64(DAY)

# What a predictor gives, and the formats that give it back.
CELLS: dict[str, tuple[np.ndarray, str]] = {
    "bool": (np.array([True, False]), ".h5 .parquet .csv .npy"),
    "int8 to int64, uint8 to uint64": (np.array([2**63], "u8"), ".h5 .parquet .csv .npy"),
    "float32, float64": (np.array([1.1, np.nan], "f4"), ".h5 .parquet .csv .npy"),
    "float16": (np.array([1.5], "f2"), ".h5 .parquet .npy"),
    "complex": (np.array([1 + 2j]), ".h5 .npy"),
    "numbers of the other byte order": (np.array([1.5], ">f8"), ".h5 .parquet .csv .npy"),
    "arrays of numbers": (np.arange(4.0).reshape(1, 2, 2), ".h5 .parquet .csv .npy"),
    "text": (np.array(["007", 'é,"x"'], object), ".h5 .parquet .csv"),
    "text with line breaks": (np.array(["a\nb"], object), ".h5 .parquet"),
    "text with zeros": (np.array(["a\0b"], object), ".parquet .csv"),
    "text, some missing": (np.array(["a", None], object), ".parquet .csv"),
    "text of fixed length (NumPy's U, S)": (np.array(["a", "bc"]), ".h5 .parquet .csv"),
    "arrays of text": (np.array([["a", "b"]]), ".h5 .parquet .csv"),
    "times (s, ms, us, ns)": (np.array(["2024-02-29", "NaT"], "M8[us]"), ".h5 .parquet .csv .npy"),
    "dates (D)": (np.array(["2024-02-29"], "M8[D]"), ".h5 .parquet .csv .npy"),
    "durations": (np.array([5], "m8[ms]"), ".h5 .parquet .npy"),
    "bool, some missing": (np.array([True, None], object), ".parquet"),
    "integers beyond 2**53, some missing": (np.array([2**60 + 1, None], object), ".parquet"),
    "bytes": (np.array([b"\xff\x00"], object), ".parquet"),
    "lists of different lengths": (np.array([[1], [1, 2]], object), ".parquet"),
    "decimals": (np.array([Decimal("1.50")], object), ".parquet"),
    "values of several types": (np.array(["a", 1], object), ""),
}


def table() -> str:
    """The table of the documentation."""
    lines = [".. list-table::", "   :header-rows: 1", "", "   * - values"]
    lines += [f"     - ``{suffix}``" for suffix in SUFFIXES]
    for name, (_, formats) in CELLS.items():
        lines.append(f"   * - {name}")
        lines += [f"     - {'yes' if suffix in formats.split() else 'no'}" for suffix in SUFFIXES]
    return "\n".join(lines) + "\n"


def test_the_table_in_the_documentation_is_what_is_tested_here() -> None:
    page = Path(__file__).parents[2] / "docs" / "data.rst"
    assert table() in page.read_text(), f"copy this into {page}:\n{table()}"


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", CELLS)
def test_each_type_comes_back_or_is_refused_at_the_first_batch(
    tmp_path: Path, name: str, suffix: str
) -> None:
    values, formats = CELLS[name]
    output = tmp_path / f"out{suffix}"

    def give(rows: Any) -> dict[str, Any]:
        return {"x": np.concatenate([values] * 2)[: len(rows)]}

    def run() -> Any:
        return predict(tmp_path, output, give)

    if suffix not in formats.split():
        with pytest.raises(ConfigError, match=r"'x'|x object"):
            run()
        assert [path.name for path in output.parent.glob("out*/part-*")] == []
        return
    run()
    expected = np.concatenate([np.concatenate([values] * 2)[:2]] * 4)
    if suffix == ".csv":
        return check_csv(Output.at(output).read().to_numpy(), expected)
    found = read_alone(output)
    assert len(found) == 8
    for ours, wanted in zip(found, expected, strict=True):
        assert same(ours, wanted), (ours, wanted)
    again = Output.at(output).read().to_numpy()
    (back,) = again.values()
    assert all(same(ours, wanted) for ours, wanted in zip(back, expected, strict=True))


def read_alone(output: Path) -> list[Any]:
    """Read as the format's own library does."""
    if output.suffix == ".npy":
        return list(np.load(output))
    if output.suffix == ".h5":
        with h5py.File(output) as file:
            x = file["x"]
            return list(x.asstr()[()] if h5py.check_string_dtype(x.dtype) else x[()])
    column = parquet.read_table(output).column("x")
    if isinstance(column.type, pyarrow.FixedShapeTensorType):
        return list(column.combine_chunks().to_numpy_ndarray())
    return column.to_pylist()


def check_csv(found: dict[str, np.ndarray], expected: np.ndarray) -> None:
    columns = np.stack([*found.values()], axis=1).reshape(expected.shape)
    for ours, wanted in zip(columns.reshape(-1), expected.reshape(-1), strict=True):
        # A text that is missing is an empty one in CSV.
        assert same(ours, wanted) or (wanted is None and ours == "")


def same(ours: Any, wanted: Any) -> bool:
    if isinstance(wanted, np.datetime64 | np.timedelta64):
        ours = np.datetime64("NaT") if ours is None else ours
        kind = "M8[us]" if isinstance(wanted, np.datetime64) else "m8[us]"
        one, other = (times_of(np.array([value]).astype(kind)) for value in (ours, wanted))
        return one == other or (np.isnat(one[0]) and np.isnat(other[0]))
    if isinstance(wanted, np.ndarray | list):
        return np.array_equal(ours, wanted)
    if wanted is None or wanted != wanted:
        return ours is None or ours != ours
    return bool(ours == wanted) and isinstance(ours, str) == isinstance(wanted, str)


@pytest.mark.parametrize(
    ("suffix", "name"), [(".h5", "a/b"), (".h5", "."), (".h5", ""), (".csv", "a\nb")]
)
def test_names_that_a_format_does_not_have_are_refused_before_anything_starts(
    tmp_path: Path, suffix: str, name: str
) -> None:
    output = tmp_path / f"out{suffix}"
    predictor = BatchPredictor(None, Looks, function=lambda rows: rows)
    how = {
        "scaling_config": ScalingConfig(num_workers=0),
        "run_config": RunConfig(storage_path=tmp_path / "runs", verbose=0),
    }
    data = {"data": np.arange(3), name: np.arange(3)}
    with pytest.raises(ConfigError, match=r"cannot have a column|cannot be written to HDF5"):
        predictor.predict(data, keep_columns=[name], output=output, **how)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match=r"cannot have a column|cannot be written to HDF5"):
        predict(tmp_path, output, lambda rows: {name: rows})


@pytest.mark.parametrize(
    ("suffix", "name"),
    [
        (suffix, name)
        for suffix in (".h5", ".parquet", ".csv")
        for name in ("a/b", ".", "a.b", "", "x y", "a,b", 'a"b', "ä", "data")
        if suffix != ".h5" or name not in ("a/b", ".", "")
    ],
)
def test_other_names_come_back(tmp_path: Path, suffix: str, name: str) -> None:
    found = predict(tmp_path, tmp_path / f"out{suffix}", lambda rows: {name: rows, "other": -rows})
    assert sorted(found.columns()) == sorted([name, "other"])
    assert found.to_numpy()[name].tolist() == [*range(8)]


def test_components_that_have_the_name_of_another_column_are_refused_in_csv(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'x_0' would be in the CSV file twice"):
        predict(
            tmp_path,
            tmp_path / "out.csv",
            lambda rows: {"x": np.zeros((len(rows), 2)), "x_0": rows},
        )


def test_batches_agree_or_are_refused_and_never_change(
    tmp_path: Path, each_example: Examples
) -> None:
    kinds = ["i8", "f8", "i4", "U", "O", "b1"]

    def check(rng: np.random.Generator) -> None:
        columns = AgreedColumns(tmp_path / f"{rng.integers(2**60)}.json", Output.at(OUT).part_type)
        first: dict[str, OutputColumn] | None = None
        for _ in range(3):
            names = rng.permutation(["a", "b"]) if rng.random() < 0.9 else ["a"]
            batch = {
                str(name): rng.integers(0, 3, 2).astype(rng.choice(kinds, p=[0.5, *[0.1] * 5]))
                for name in names
            }
            found = {n: OutputColumn.of(n, np.asarray(as_objects(v))) for n, v in batch.items()}
            first = first or found
            if found != first:
                with pytest.raises(ConfigError, match="for one batch, but"):
                    columns.conform(batch)
                continue
            out = columns.conform(batch)
            assert list(out) == list(first)
            assert all(out[n].tolist() == batch[n].tolist() for n in batch)

    each_example(check)


OUT = "/tmp/out.parquet"


def as_objects(values: np.ndarray) -> np.ndarray:
    return values.astype(object) if values.dtype.kind == "U" else values


def test_predictions_of_frames_keep_large_integers_beside_missing_ones(tmp_path: Path) -> None:
    ids = [2**60 + 1, None, 2**60 + 3, 5, 6, 7, None, 9]
    frame = pd.DataFrame({"x": np.arange(8.0), "id": pd.array(ids, "Int64")})
    BatchPredictor(None, Looks, function=lambda rows: rows)
    predictor = BatchPredictor.from_pandas_udf(lambda part: part[["x"]] * 2)
    found = predictor.predict(
        frame,
        feature_columns=["x"],
        keep_columns=["id"],
        batch_size=2,
        output=tmp_path / "out.parquet",
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=tmp_path / "runs", verbose=0),
    )
    assert parquet.read_table(tmp_path / "out.parquet").column("id").to_pylist() == ids
    assert found.to_numpy()["id"].tolist() == ids


@pytest.mark.parametrize("part_type", [Hdf5Part, CsvPart])
def test_an_array_among_objects_is_named_by_its_shape(part_type: type[PartFile]) -> None:
    column = np.empty(2, dtype=object)
    column[:] = [np.arange(400.0).reshape(100, 4), np.zeros((0, 4))]
    with pytest.raises(ConfigError, match=r"column 'boxes' has an array of shape \(100, 4\) among"):
        part_type.check_values({"boxes": column})
    column[:] = [{"text": "a\n" * 200}, None]
    with pytest.raises(ConfigError, match=r"column 'boxes' has {'text': 'a.* among") as caught:
        part_type.check_values({"boxes": column})
    assert len(str(caught.value)) < 300
