from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from hpctrain.data import from_numpy
from hpctrain.errors import ConfigError, PreprocessorNotFittedException
from hpctrain.preprocessors import (
    BatchMapper,
    Chain,
    Concatenator,
    LabelEncoder,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    Preprocessor,
    SimpleImputer,
    StandardScaler,
)
from hpctrain.preprocessors.batches import rows_of, slices_of
from hpctrain.preprocessors.statistics import Moments, collect
from hpctrain.testing.thread_comm import ThreadComm, run_on_threads

FitStatus = Preprocessor.FitStatus


@pytest.fixture
def batch() -> dict[str, np.ndarray]:
    return {
        "x": np.array([1.0, 2.0, np.nan, 5.0]),
        "v": np.arange(8.0).reshape(4, 2),
        "c": np.array(["a", "b", "a", "c"], dtype=object),
        "other": np.arange(4),
    }


def plus_one(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**values, "x": values["x"] + 1}


def first_row(values: Any) -> Any:
    return values.iloc[:1]


def test_the_status_says_whether_there_is_something_to_learn(batch):
    scaler = StandardScaler(["x"])
    assert scaler.fit_status() == FitStatus.NOT_FITTED
    assert not scaler.has_stats()
    assert scaler.fit(batch) is scaler
    assert scaler.fit_status() == FitStatus.FITTED
    assert scaler.has_stats()
    assert Normalizer(["x"]).fit_status() == FitStatus.NOT_FITTABLE
    constant = SimpleImputer(["x"], "constant", fill_value=0)
    assert constant.fit_status() == FitStatus.NOT_FITTABLE
    assert Chain(Normalizer(["x"])).fit_status() == FitStatus.NOT_FITTABLE
    assert Chain(scaler, MinMaxScaler(["x"])).fit_status() == FitStatus.PARTIALLY_FITTED
    assert Chain(scaler, constant).fit_status() == FitStatus.FITTED


def test_what_has_learned_nothing_cannot_be_applied(batch):
    chain = Chain(StandardScaler(["x"]).fit(batch), MinMaxScaler(["x"]))
    for unfitted in (StandardScaler(["x"]), chain):
        with pytest.raises(PreprocessorNotFittedException, match=r"Call fit\(\), or give it to a"):
            unfitted.transform_batch(batch)
        with pytest.raises(PreprocessorNotFittedException):
            unfitted.transform(from_numpy(batch))


def test_fitting_again_is_said_and_replaces_what_was_learned(batch):
    scaler = StandardScaler(["x"]).fit({"x": np.array([7.0])})
    with pytest.warns(UserWarning, match="StandardScaler is fitted already"):
        scaler.fit(batch)
    assert scaler.stats_ is not None
    assert scaler.stats_["mean(x)"] == pytest.approx(8 / 3)


def test_what_comes_out_has_the_format_of_what_goes_in(batch):
    scaler = Chain(SimpleImputer(["x"]), StandardScaler(["x", "v"]), OneHotEncoder(["c"]))
    expected = scaler.fit(batch).transform_batch(batch)
    frame = pandas.DataFrame({n: list(v) for n, v in batch.items()}, index=[9, 8, 7, 6])
    from_frame = scaler.transform_batch(frame)
    assert list(from_frame.index) == [9, 8, 7, 6]
    table = pyarrow.table({n: pyarrow.array(v.tolist()) for n, v in batch.items() if n != "v"})
    table = table.append_column("v", pyarrow.FixedShapeTensorArray.from_numpy_ndarray(batch["v"]))
    from_table = scaler.transform_batch(table)
    assert isinstance(from_table, pyarrow.Table)
    for name in ("x", "v", "c"):
        assert_allclose(np.stack(list(from_frame[name])), expected[name])
    assert_allclose(from_table["x"].to_numpy(), expected["x"])
    for name in ("v", "c"):
        assert_allclose(from_table[name].combine_chunks().to_numpy_ndarray(), expected[name])
    assert from_table.column_names == ["x", "c", "other", "v"]


def test_what_is_given_does_not_change(batch):
    before = {name: values.copy() for name, values in batch.items()}
    frame = pandas.DataFrame({"x": batch["x"]})
    scaler = StandardScaler(["x"]).fit(frame)
    scaler.transform_batch(batch)
    scaler.transform_batch(frame)
    for name, values in before.items():
        assert_array_equal(batch[name], values)
    assert_array_equal(frame["x"], before["x"])


def test_every_form_of_a_dataset_is_learned_from_alike(batch):
    expected = StandardScaler(["x", "v"]).fit(batch).serialize()
    frame = pandas.DataFrame({n: list(v) for n, v in batch.items()})
    for dataset in (from_numpy(batch), frame, [batch], slices_of(batch, 4)):
        assert StandardScaler(["x", "v"]).fit(dataset).serialize() == expected
    parts = StandardScaler(["x"]).fit(slices_of(pyarrow.table({"x": batch["x"]}), 2))
    assert parts.stats_ is not None
    assert parts.stats_["mean(x)"] == pytest.approx(8 / 3)


def test_a_dataset_is_transformed_when_it_is_read(batch):
    dataset = from_numpy(batch)
    scaler = StandardScaler(["x"])
    made = scaler.fit_transform(dataset)
    assert made.num_rows == 4
    assert_allclose(made.to_numpy()["x"], scaler.transform_batch(batch)["x"])
    assert_array_equal(dataset.to_numpy()["x"], batch["x"])


def test_a_chain_learns_from_what_those_before_make(batch, fit_on_ranks):
    chain = fit_on_ranks(
        lambda: Chain(
            SimpleImputer(["x"]),
            BatchMapper(plus_one),
            MinMaxScaler(["x"]),
            Concatenator(["x", "other"], "features"),
        ),
        batch,
    )
    assert chain.preprocessors[2].stats_ == {"min(x)": 2.0, "max(x)": 6.0}
    made = chain.transform_batch(batch)
    assert list(made) == ["v", "c", "features"]
    assert_allclose(made["features"][:, 0], [0, 0.25, (8 / 3 - 1) / 4, 1])
    assert chain.get_input_columns() == ["x", "other"]
    assert chain.get_output_columns() == ["features"]


def test_a_chain_reads_only_the_columns_that_it_learns_from(batch):
    wanted: list[Any] = []

    class Watched:
        def select_columns(self, columns: list[str]) -> Any:
            wanted.append(columns)
            return from_numpy(batch).select_columns(columns)

        def iter_batches(self, **options: Any) -> Any:
            raise AssertionError("all columns were read")

    Chain(SimpleImputer(["x"]), LabelEncoder("c")).fit(Watched())
    assert wanted == [["x", "c"]]


def test_wide_rows_are_read_a_few_at_a_time():
    sizes: list[int] = []
    dataset = from_numpy({"x": np.zeros((9, 2**20)), "y": np.zeros(9)})

    class Watched:
        def select_columns(self, columns: list[str]) -> Any:
            return Watched()

        def schema(self) -> Any:
            return dataset.select_columns(["x"]).schema()

        def iter_batches(self, *, batch_size: int, **options: Any) -> Any:
            sizes.append(batch_size)
            return dataset.iter_batches(batch_size=batch_size, **options)

    MinMaxScaler(["x"]).fit(Watched())
    assert sizes == [8]


def test_pandas_own_types_are_understood():
    frame = pandas.DataFrame(
        {
            "whole": pandas.array([1, None, 3], dtype="Int64"),
            "category": pandas.Categorical(["b", "a", "b"]),
            "text": pandas.array(["v", "u", "v"], dtype="string"),
        }
    )
    assert StandardScaler(["whole"]).fit(frame).stats_ == {"mean(whole)": 2.0, "std(whole)": 1.0}
    made = OrdinalEncoder(["category", "text"]).fit(frame).transform_batch(frame)
    assert made["category"].tolist() == made["text"].tolist() == [1.0, 0.0, 1.0]


def test_a_chain_takes_preprocessors_only():
    with pytest.raises(ConfigError, match="Wrap a scikit-learn transformer in SklearnPreprocessor"):
        Chain(StandardScaler(["x"]), len)  # type: ignore[arg-type]


def test_a_function_gets_batches_in_the_format_and_size_it_wants(batch):
    sizes = []

    def note(frame: Any) -> Any:
        sizes.append(len(frame))
        return frame.assign(x=frame["x"] * 2)

    made = BatchMapper(note, "pandas", batch_size=3).transform_batch(batch)
    assert sizes == [3, 1]
    assert isinstance(made, dict)
    assert_allclose(made["x"], batch["x"] * 2)
    assert BatchMapper(first_row, "pandas").transform(from_numpy(batch)).count() == 1


def test_a_batch_without_rows_is_transformed_too(batch):
    empty = {name: values[:0] for name, values in batch.items()}
    chain = Chain(SimpleImputer(["x"]), StandardScaler(["x", "v"]), OneHotEncoder(["c"]))
    made = chain.fit(batch).transform_batch(empty)
    assert {name: array.shape for name, array in made.items()} == {
        "x": (0,),
        "v": (0, 2),
        "c": (0, 3),
        "other": (0,),
    }


def test_a_missing_column_is_named_with_those_that_there_are(batch):
    message = "column 'y' is missing. The batch has 'x', 'v', 'c', 'other': name one of these"
    with pytest.raises(ConfigError, match=message):
        StandardScaler(["y"]).fit(batch)
    with pytest.raises(ConfigError, match=message):
        Normalizer(["y"]).transform_batch(batch)
    with pytest.raises(ConfigError, match="a batch of type ndarray has no columns with names"):
        Normalizer(["y"]).transform_batch(np.ones(3))


@pytest.mark.parametrize(
    ("columns", "outputs", "message"),
    [
        ("x", None, "is not a list of names"),
        ([], None, "Give one or more names"),
        (["x", "x"], None, "each once"),
        (["x"], ["a", "b"], "has another length"),
    ],
)
def test_columns_that_are_none_are_refused(columns, outputs, message):
    with pytest.raises(ConfigError, match=message):
        StandardScaler(columns, outputs)


def test_what_fails_on_one_rank_fails_on_all():
    seen: dict[int, str] = {}

    def fit(comm: ThreadComm) -> None:
        column = np.array(["a"]) if comm.rank == 1 else np.ones(3)
        try:
            collect(rows_of({"x": column}, ["x"]), {"x": Moments}, comm)
        except ConfigError as error:
            seen[comm.rank] = str(error)

    run_on_threads(3, fit)
    assert sorted(seen) == [0, 1, 2]
    assert "column 'x': it holds text" in seen[1]
    assert seen[0] == seen[2] == f"on another rank: {seen[1]}"


def test_shapes_that_differ_between_ranks_are_refused():
    def fit(comm: ThreadComm) -> None:
        StandardScaler(["x"]).fit_shard({"x": np.ones((3, comm.rank + 1))}, comm)

    with pytest.raises(ConfigError, match=r"^column 'x': rows have shapes \(1,\) and \(2,\)"):
        run_on_threads(2, fit)


DIFFERING_SHAPES = """
import numpy as np
from mpi4py import MPI
from hpctrain import ConfigError
from hpctrain.preprocessors import StandardScaler

comm = MPI.COMM_WORLD
try:
    StandardScaler(["x"]).fit_shard({"x": np.ones((3, comm.rank + 1))}, comm)
except ConfigError as error:
    print(f"{error}\\n", end="", flush=True)
"""


@pytest.mark.mpi
def test_mpi_ranks_do_not_wait_for_one_that_cannot_merge():
    mpiexec = str(Path(sys.executable).with_name("mpiexec"))
    done = subprocess.run(
        [mpiexec, "-n", "2", sys.executable, "-c", DIFFERING_SHAPES],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    said = "column 'x': rows have shapes (1,) and (2,). "
    assert [line.startswith(said) for line in done.stdout.splitlines()] == [True, True]
