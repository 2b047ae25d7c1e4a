"""Batch prediction on real ranks, with real files."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import lightgbm
import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
import xgboost

from hpctrain import (
    Checkpoint,
    CheckpointError,
    ConfigError,
    FailureConfig,
    Result,
    RunConfig,
    RunStoppedError,
    ScalingConfig,
    TrainingFailedError,
    UserCallback,
    get_context,
    pickle_trust,
)
from hpctrain.data import from_numpy, read_hdf5
from hpctrain.lightgbm import LightGBMPredictor
from hpctrain.predict import BatchPredictor, Predictor, progress
from hpctrain.predict.features import ModelFeatures
from hpctrain.preprocessors import BatchMapper
from hpctrain.rundir.paths import RunPaths
from hpctrain.xgboost import XGBoostPredictor
from tests.waiting import wait_until

ROWS = 3000
NAMES = tuple(f"x_{i}" for i in range(4))
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("f4")
Y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype("f4")


@pytest.fixture(scope="module")
def booster(tmp_path_factory):
    data = xgboost.DMatrix(X, Y, feature_names=NAMES)
    return xgboost.train({"objective": "binary:logistic", "max_depth": 3}, data, 8)


@pytest.fixture(scope="module")
def checkpoint(booster, tmp_path_factory) -> Checkpoint:
    directory = tmp_path_factory.mktemp("checkpoint")
    booster.save_model(directory / "model.ubj")
    ModelFeatures(framework="xgboost", features=NAMES, label="y").write(directory)
    return Checkpoint(directory)


@pytest.fixture(scope="module")
def expected(booster) -> np.ndarray:
    return booster.predict(xgboost.DMatrix(X, feature_names=NAMES))


@pytest.fixture
def rows_h5(tmp_path) -> Path:
    path = tmp_path / "rows.h5"
    with h5py.File(path, "w") as file:
        file["x"] = X
        file["y"] = Y
        file["id"] = np.arange(ROWS)
    return path


@pytest.fixture
def predictor(checkpoint) -> BatchPredictor:
    return BatchPredictor.from_checkpoint(checkpoint, XGBoostPredictor)


def here(tmp_path: Path, **run) -> dict:
    """In this process: no ranks to wait for."""
    return {
        "scaling_config": ScalingConfig(num_workers=0),
        "run_config": RunConfig(storage_path=tmp_path / "runs", verbose=0, **run),
    }


def two_ranks(tmp_path: Path, **run) -> dict:
    return {
        "scaling_config": ScalingConfig(num_workers=2),
        "run_config": RunConfig(storage_path=tmp_path / "runs", verbose=0, launcher="local", **run),
    }


def read_h5(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        return {name: dataset[()] for name, dataset in file.items()}


def digests(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.mark.mpi
def test_two_ranks_score_hdf5_to_hdf5_in_the_order_of_the_input(
    predictor, rows_h5, expected, tmp_path
):
    output = tmp_path / "scores.h5"
    dataset = predictor.predict(
        rows_h5,
        keep_columns=["id"],
        batch_size=100,
        rows_per_part=200,
        output=output,
        **two_ranks(tmp_path, name="scores"),
    )

    assert dataset.columns() == ["id", "predictions"]
    scored = read_h5(output)
    assert np.array_equal(scored["predictions"], expected)
    assert np.array_equal(scored["id"], np.arange(ROWS))
    assert np.array_equal(dataset.to_numpy()["predictions"], expected)
    # A file for each part, and nothing else.
    assert sorted(p.name for p in (tmp_path / "scores.h5.parts").iterdir()) == [
        "_columns.json",
        "_plan.json",
        *(f"part-{part:06d}.h5" for part in range(15)),
    ]
    metrics = Result.from_path(tmp_path / "runs" / "scores").metrics
    assert metrics["rows"] == metrics["of"] == ROWS
    assert sum(metrics["rows_of_ranks"]) == ROWS
    assert all(metrics["rows_of_ranks"])


@pytest.mark.parametrize("suffix", [".h5", ".parquet", ".csv", ".npy"])
def test_every_format_has_all_rows_in_order(predictor, rows_h5, expected, tmp_path, suffix):
    output = tmp_path / f"scores{suffix}"
    keep = [] if suffix == ".npy" else ["id", "x"]
    predictor.predict(
        rows_h5,
        feature_columns=["x"],
        keep_columns=keep,
        batch_size=100,
        rows_per_part=700,
        output=output,
        **here(tmp_path),
    )

    if suffix == ".npy":
        assert np.array_equal(np.load(output), expected)
        return
    if suffix == ".h5":
        scored = read_h5(output)
        scored |= {f"x_{i}": scored["x"][:, i] for i in range(4)}
    elif suffix == ".parquet":
        table = pyarrow.parquet.read_table(output)
        scored = {name: table[name].to_numpy() for name in ("id", "predictions")}
        cells = table["x"].combine_chunks()
        scored |= {f"x_{i}": cells.to_numpy_ndarray()[:, i] for i in range(4)}
    else:
        scored = {n: c.to_numpy() for n, c in pd.read_csv(output, dtype={"id": int}).items()}
    assert np.array_equal(scored["id"], np.arange(ROWS))
    assert np.array_equal(scored["predictions"].astype("f4"), expected)
    assert np.array_equal(scored["x_3"].astype("f4"), X[:, 3])


def test_the_output_can_be_moved_together_with_its_parts(predictor, rows_h5, expected, tmp_path):
    predictor.predict(rows_h5, keep_columns=["id"], output=tmp_path / "s.h5", **here(tmp_path))
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("s.h5", "s.h5.parts"):
        (tmp_path / name).rename(moved / name)
    assert np.array_equal(read_h5(moved / "s.h5")["predictions"], expected)


def test_without_a_path_the_output_is_in_the_run_directory(predictor, rows_h5, expected, tmp_path):
    dataset = predictor.predict(rows_h5, feature_columns=["x"], **here(tmp_path, name="run"))
    assert np.array_equal(dataset.to_numpy()["predictions"], expected)
    assert (tmp_path / "runs" / "run" / "artifacts" / "predictions.h5").exists()


@pytest.mark.parametrize("make", [lambda: X, lambda: pd.DataFrame(X, columns=NAMES)])
def test_what_is_in_memory_can_be_predicted_on(booster, tmp_path, expected, make):
    directory = tmp_path / "nameless"
    directory.mkdir()
    booster.feature_names = None
    booster.save_model(directory / "model.ubj")
    booster.feature_names = list(NAMES)
    predictor = BatchPredictor(Checkpoint(directory), XGBoostPredictor)
    dataset = predictor.predict(make(), **here(tmp_path))
    assert np.array_equal(dataset.to_numpy()["predictions"], expected)


def test_a_filtered_dataset_has_as_many_predictions_as_rows_are_left(
    predictor, rows_h5, expected, tmp_path
):
    dataset = read_hdf5(rows_h5).filter(lambda batch: batch["y"] > 0)
    predictor.predict(
        dataset,
        keep_columns=["id"],
        batch_size=100,
        rows_per_part=300,
        output=tmp_path / "s.h5",
        **here(tmp_path),
    )
    scored = read_h5(tmp_path / "s.h5")
    assert np.array_equal(scored["id"], np.flatnonzero(Y))
    assert np.array_equal(scored["predictions"], expected[Y > 0])


@pytest.mark.parametrize("suffix", [".h5", ".parquet", ".csv"])
def test_parts_without_a_row_are_left_out(predictor, rows_h5, expected, tmp_path, suffix):
    dataset = read_hdf5(rows_h5).filter(lambda batch: batch["id"] // 1000 == 1)
    scored = predictor.predict(
        dataset,
        keep_columns=["id"],
        batch_size=100,
        rows_per_part=100,
        output=tmp_path / f"s{suffix}",
        **here(tmp_path),
    ).to_numpy()
    assert np.array_equal(scored["id"], np.arange(1000, 2000))
    assert np.array_equal(scored["predictions"].astype("f4"), expected[1000:2000])


def test_a_dataset_whose_steps_leave_nothing_is_said_to_be(predictor, rows_h5, tmp_path):
    dataset = read_hdf5(rows_h5).filter(lambda batch: batch["id"] < 0)
    with pytest.raises(ConfigError, match="leave no row"):
        predictor.predict(dataset, keep_columns=["id"], **here(tmp_path))


def test_a_function_of_frames_scores_too(rows_h5, tmp_path):
    def strings(frame):
        return pd.DataFrame({"sign": np.where(frame["y"] > 0, "yes", "no").astype(object)})

    predictor = BatchPredictor.from_pandas_udf(strings)
    predictor.predict(rows_h5, feature_columns=["y"], output=tmp_path / "s.h5", **here(tmp_path))
    with h5py.File(tmp_path / "s.h5") as file:
        signs = file["sign"].asstr()[()]
    assert np.array_equal(signs == "yes", Y > 0)


class Shift:
    """A preprocessor that renames what the model knows."""

    def transform_batch(self, batch):
        return {"x": batch["raw"] / 2, "id": batch["id"]}


def test_columns_are_chosen_after_the_preprocessor(checkpoint, expected, tmp_path):
    predictor = BatchPredictor.from_checkpoint(checkpoint, XGBoostPredictor)
    predictor.set_preprocessor(Shift())
    data = from_numpy({"raw": X * 2, "id": np.arange(ROWS)})
    dataset = predictor.predict(data, keep_columns=["id"], **here(tmp_path))
    assert dataset.columns() == ["id", "predictions"]
    assert np.array_equal(dataset.to_numpy()["predictions"], expected)
    with pytest.raises(ConfigError, match="no column 'raw'"):
        predictor.predict(data, keep_columns=["raw"], **here(tmp_path))


@pytest.mark.mpi
def test_the_preprocessor_in_the_checkpoint_is_applied_on_all_ranks(
    checkpoint, rows_h5, expected, tmp_path, monkeypatch
):
    copy = Checkpoint(checkpoint.to_directory(tmp_path / "copy"))
    doubled = from_numpy({"x": X * 2})
    # Twice the numbers, and half of that again.
    copy.set_preprocessor(BatchMapper(lambda batch: {**batch, "x": batch["x"] / 2}, "numpy"))
    # As in a process that has pickled nothing yet.
    monkeypatch.setattr(pickle_trust, "_made", set())
    mine = BatchPredictor.from_checkpoint(copy, XGBoostPredictor)
    assert np.array_equal(
        mine.predict(doubled, **two_ranks(tmp_path)).to_numpy()["predictions"], expected
    )
    Path(copy.path).chmod(0o775)
    with pytest.raises(CheckpointError, match="pickle"):
        BatchPredictor.from_checkpoint(copy, XGBoostPredictor).predict(doubled, **here(tmp_path))
    predictor = BatchPredictor.from_checkpoint(copy, XGBoostPredictor, trust_preprocessor=True)
    dataset = predictor.predict(doubled, **two_ranks(tmp_path))
    assert np.array_equal(dataset.to_numpy()["predictions"], expected)


def test_lightgbm_scores_as_its_library_does(rows_h5, tmp_path):
    data = lightgbm.Dataset(X, Y, feature_name=list(NAMES))
    booster = lightgbm.train({"objective": "binary", "verbose": -1}, data, 5)
    directory = tmp_path / "lightgbm"
    directory.mkdir()
    booster.save_model(directory / "model.txt")
    predictor = BatchPredictor(Checkpoint(directory), LightGBMPredictor)
    dataset = predictor.predict(rows_h5, feature_columns=["x"], **here(tmp_path))
    assert np.array_equal(dataset.to_numpy()["predictions"], booster.predict(X))


# What cannot work is said before anything is started.


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"keep_columns": ["nothing"]}, "no column 'nothing'"),
        ({"feature_columns": ["y"]}, "has no 'x_0', 'x_1', 'x_2', 'x_3', which the model"),
        ({"feature_columns": ["x", "y"]}, "has 'y', which the model was not trained on"),
        ({}, "has 'id', which the model was not trained on"),
        ({"keep_columns": "id"}, r"is a text, not a list of names. Give \['id'\]"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"output": "s3://bucket/scores.h5"}, "is a URL"),
        ({"output": "scores.xlsx"}, "the format of .* is unknown. .* with one of .h5"),
        ({"output": "scores.npy", "keep_columns": ["id"]}, "holds one array"),
        ({"output": "/proc/scores.h5", "keep_columns": ["id"]}, "is not writable"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    predictor, rows_h5, tmp_path, monkeypatch, arguments, complaint
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=complaint):
        predictor.predict(rows_h5, **arguments, **here(tmp_path))
    assert not (tmp_path / "runs").exists()


def test_a_checkpoint_of_another_framework_is_refused_at_once(checkpoint):
    with pytest.raises(ConfigError, match="Use the predictor of xgboost"):
        BatchPredictor.from_checkpoint(checkpoint, LightGBMPredictor)


def test_a_checkpoint_that_does_not_exist_is_refused_at_once():
    for make in (XGBoostPredictor.from_checkpoint, BatchPredictor.from_checkpoint):
        arguments = (XGBoostPredictor,) if make == BatchPredictor.from_checkpoint else ()
        with pytest.raises(ConfigError, match=r"Checkpoint\('/no/where'\) does not exist"):
            make(Checkpoint("/no/where"), *arguments)


def test_a_class_that_predicts_nothing_is_refused(checkpoint):
    with pytest.raises(ConfigError, match="a class that extends"):
        BatchPredictor(checkpoint, dict)


def test_an_empty_input_is_refused(predictor, tmp_path):
    with pytest.raises(ConfigError, match="no rows"):
        predictor.predict({"x": X[:0]}, **here(tmp_path))


def test_an_output_that_exists_is_not_written_over(predictor, rows_h5, tmp_path):
    output = tmp_path / "s.h5"
    output.write_text("precious")
    with pytest.raises(ConfigError, match="exists, but is not the output of this prediction"):
        predictor.predict(rows_h5, keep_columns=["id"], output=output, **here(tmp_path))
    assert output.read_text() == "precious"


def test_the_same_call_again_returns_what_is_there_and_another_is_refused(
    predictor, rows_h5, tmp_path
):
    arguments = {"keep_columns": ["id"], "output": tmp_path / "s.h5"}
    predictor.predict(rows_h5, **arguments, **here(tmp_path))
    before = digests(tmp_path / "s.h5.parts")
    again = predictor.predict(rows_h5, **arguments, **here(tmp_path))
    assert again.num_rows == ROWS
    assert digests(tmp_path / "s.h5.parts") == before
    assert len(list((tmp_path / "runs").iterdir())) == 1
    with pytest.raises(ConfigError, match="is not the output of this prediction"):
        predictor.predict(rows_h5, **arguments, batch_size=64, **here(tmp_path))


class Hands(Predictor):
    """Adds columns up; slowly, and with accidents, where files beside the checkpoint say so."""

    def __init__(self, directory: Path):
        super().__init__()
        self.slow, self.die = (Path(f"{directory}.{what}") for what in ("slow", "die"))

    @classmethod
    def from_checkpoint(cls, checkpoint, **kwargs):
        return cls(checkpoint.path)

    def _predict_numpy(self, data):
        if self.slow.exists():
            time.sleep(0.02)
        if self.die.exists() and data["x"][0, 0] == X[2000, 0]:
            self.die.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"sum": data["x"].sum(axis=1)}


@pytest.mark.mpi
def test_a_rank_that_is_killed_costs_no_row_and_no_byte(rows_h5, tmp_path):
    arguments = {"keep_columns": ["id"], "batch_size": 50, "rows_per_part": 100}
    for name, accident in (("whole", None), ("killed", "die")):
        model = tmp_path / name
        model.mkdir()
        if accident:
            Path(f"{model}.{accident}").touch()
        BatchPredictor(Checkpoint(model), Hands).predict(
            rows_h5,
            feature_columns=["x"],
            output=tmp_path / f"{name}.h5",
            **arguments,
            **two_ranks(tmp_path, name=name, failure_config=FailureConfig(max_failures=1)),
        )

    killed = Result.from_path(tmp_path / "runs" / "killed")
    assert len(killed.attempts) == 2
    assert 0 < killed.metrics["rows_before"] < ROWS
    assert sum(killed.metrics["rows_of_ranks"]) == ROWS - killed.metrics["rows_before"]
    whole, parts = digests(tmp_path / "whole.h5.parts"), digests(tmp_path / "killed.h5.parts")
    assert whole.pop("_plan.json") != parts.pop("_plan.json")
    assert parts == whole
    assert np.array_equal(read_h5(tmp_path / "killed.h5")["id"], np.arange(ROWS))


SCRIPT = """
import sys
import time

import hpctrain
from hpctrain.predict import BatchPredictor, Predictor

rows, model, output, name, ranks = sys.argv[1:]


class Slow(Predictor):
    @classmethod
    def from_checkpoint(cls, checkpoint, **kwargs):
        return cls()

    def _predict_numpy(self, data):
        time.sleep(0.02)
        return {"sum": data["x"].sum(axis=1)}


BatchPredictor(hpctrain.Checkpoint(model), Slow).predict(
    rows,
    keep_columns=["id"],
    batch_size=50,
    rows_per_part=100,
    output=output,
    scaling_config=hpctrain.ScalingConfig(num_workers=int(ranks)),
    run_config=hpctrain.RunConfig(name=name, storage_path="runs", launcher="local"),
)
"""


@pytest.mark.mpi
@pytest.mark.parametrize("suffix", [".h5", ".csv"])
def test_a_whole_job_that_is_killed_goes_on_with_another_number_of_ranks(rows_h5, tmp_path, suffix):
    script = tmp_path / "predict.py"
    script.write_text(SCRIPT)
    (tmp_path / "model").mkdir()

    def start(name: str, ranks: int) -> subprocess.Popen:
        argv = [script, rows_h5, tmp_path / "model", tmp_path / f"{name}{suffix}", name, ranks]
        return subprocess.Popen(
            [sys.executable, *map(str, argv)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    job = start("killed", 2)
    parts = tmp_path / f"killed{suffix}.parts"
    wait_until(lambda: len(list(parts.glob("part-*"))) >= 4, "parts", interval_s=0.01, process=job)
    job.kill()
    job.communicate(timeout=30)
    done = {path: path.stat().st_mtime_ns for path in parts.glob("part-*")}
    assert not (tmp_path / f"killed{suffix}").exists()
    for name, ranks in (("killed", 1), ("whole", 2)):
        job = start(name, ranks)
        said, _ = job.communicate(timeout=120)
        assert job.returncode == 0, said

    result = Result.from_path(tmp_path / "runs" / "killed")
    assert result.metrics["rows_before"] >= 400
    if suffix == ".h5":
        # What was done was not done again.
        assert {path: path.stat().st_mtime_ns for path in done} == done
        ids = read_h5(tmp_path / "killed.h5")["id"]
    else:
        ids = pd.read_csv(tmp_path / "killed.csv")["id"]
    assert np.array_equal(ids, np.arange(ROWS))
    whole = digests(tmp_path / f"whole{suffix}.parts")
    killed = digests(parts)
    del whole["_plan.json"], killed["_plan.json"]
    assert killed == whole
    if suffix == ".csv":
        assert (tmp_path / "killed.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


class Uneven(Predictor):
    """Reports and saves all the time; rank 1 is slower than rank 0."""

    @classmethod
    def from_checkpoint(cls, checkpoint, **kwargs):
        progress._REPORT_INTERVAL_S = progress._CHECKPOINT_INTERVAL_S = 0.02
        return cls()

    def _predict_numpy(self, data):
        time.sleep(0.04 + 0.16 * get_context().get_world_rank())
        if RunPaths(get_context().get_storage()).stop_request.exists():
            # However long the request takes on a busy machine, most rows are left.
            time.sleep(0.5)
        return {"sum": data["x"].sum(axis=1)}


class Ends(UserCallback):
    """Asks for the end of the run, as `hpctrain cancel` does, once some rows are done."""

    def after_report(self, run_context, metrics, checkpoint):
        if metrics[0].get("rows", 0) >= 200:
            RunPaths(run_context.path).stop_request.touch()


@pytest.mark.mpi
def test_a_prediction_that_is_cancelled_leaves_whole_parts_and_goes_on(rows_h5, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    predictor = BatchPredictor(Checkpoint(model), Uneven)
    arguments = {
        "feature_columns": ["x"],
        "keep_columns": ["id"],
        "batch_size": 40,
        "rows_per_part": 80,
        "output": tmp_path / "s.h5",
    }
    with pytest.raises(RunStoppedError):
        predictor.predict(
            rows_h5, **arguments, **two_ranks(tmp_path, name="cancelled", callbacks=[Ends()])
        )
    stopped = Result.from_path(tmp_path / "runs" / "cancelled")
    # By checkpoints the budgets of failures know that a run makes progress.
    assert stopped.checkpoint is not None
    assert stopped.checkpoint.get_metadata()["of"] == ROWS
    done = {p: p.stat().st_mtime_ns for p in (tmp_path / "s.h5.parts").glob("part-*")}
    assert 3 <= len(done) < 37
    predictor.predict(rows_h5, **arguments, **two_ranks(tmp_path, name="cancelled"))
    assert {p: p.stat().st_mtime_ns for p in done} == done
    scored = read_h5(tmp_path / "s.h5")
    assert np.array_equal(scored["id"], np.arange(ROWS))
    metrics = Result.from_path(tmp_path / "runs" / "cancelled").metrics
    assert metrics["rows_before"] == 80 * len(done)
    # The fast rank has taken parts of the slow one.
    fast, slow = metrics["rows_of_ranks"]
    assert fast > slow


def test_a_prediction_that_would_stop_early_is_refused(predictor, rows_h5, tmp_path):
    with pytest.raises(ConfigError, match="before all rows are scored"):
        predictor.predict(
            rows_h5, keep_columns=["id"], **here(tmp_path, stop=lambda report, metrics: True)
        )


class SaysWhatIsImported(Predictor):
    needless_packages = ("wave",)

    @classmethod
    def from_checkpoint(cls, checkpoint, **kwargs):
        return cls()

    @classmethod
    def import_framework(cls):
        try:
            import wave  # noqa: F401

            cls.has_wave = True
        except ImportError:
            cls.has_wave = False

    def _predict_numpy(self, data):
        import wave  # noqa: F401  # afterwards it is there again

        return np.full(len(data["x"]), self.has_wave)


class NeedsMore(SaysWhatIsImported):
    pass


@pytest.mark.mpi
@pytest.mark.parametrize(("cls", "has_wave"), [(SaysWhatIsImported, False), (NeedsMore, True)])
def test_a_rank_does_not_import_what_scoring_does_not_need(rows_h5, tmp_path, cls, has_wave):
    (tmp_path / "model").mkdir()
    arguments = two_ranks(tmp_path) | {"scaling_config": ScalingConfig(num_workers=1)}
    dataset = BatchPredictor(Checkpoint(tmp_path / "model"), cls).predict(rows_h5, **arguments)
    assert (dataset.to_numpy()["predictions"] == has_wave).all()


def test_this_process_imports_everything(rows_h5, tmp_path):
    sys.modules.pop("wave", None)
    (tmp_path / "model").mkdir()
    predictor = BatchPredictor(Checkpoint(tmp_path / "model"), SaysWhatIsImported)
    dataset = predictor.predict(rows_h5, **here(tmp_path))
    assert dataset.to_numpy()["predictions"].all()


@pytest.mark.mpi
def test_a_prediction_is_submitted_and_its_handle_waits_for_it(
    predictor, rows_h5, tmp_path, expected, monkeypatch
):
    # The turns in the background are nobody else's.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    arguments = {"keep_columns": ["id"], "output": tmp_path / "out.h5"}
    handle = predictor.submit(rows_h5, **arguments, **two_ranks(tmp_path, name="run"))
    assert handle.path == tmp_path / "runs" / "run"
    assert handle.result(timeout_s=100).metrics["output"] == str(tmp_path / "out.h5")
    again = predictor.predict(rows_h5, **arguments, **two_ranks(tmp_path, name="run"))
    assert np.array_equal(again.to_numpy()["predictions"], expected)
    assert predictor.submit(rows_h5, **arguments, **two_ranks(tmp_path, name="run")) == handle
    assert len(handle.result().attempts) == 1, "and nothing runs again"
    with pytest.raises(
        ConfigError, match=r"out.h5 holds these predictions already.* Call predict\(\), which"
    ):
        predictor.submit(rows_h5, **arguments, **two_ranks(tmp_path, name="other"))
    with pytest.raises(ConfigError, match="num_workers=0 runs in this interpreter"):
        predictor.submit(rows_h5, keep_columns=["id"], **here(tmp_path, name="here"))


class SumsOfBatches(Predictor):
    """Gives one row for a batch, of those that begin with a row from `start`."""

    def __init__(self, start):
        super().__init__()
        self.start = start

    @classmethod
    def from_checkpoint(cls, checkpoint, start=0):
        return cls(start)

    def _predict_numpy(self, data):
        ids = data["id"]
        return np.array([ids.sum()]) if ids[0] >= self.start else ids


@pytest.mark.parametrize("suffix", [".h5", ".parquet", ".csv", ".npy"])
def test_a_predictor_may_give_another_number_of_rows_and_that_is_logged(
    rows_h5, tmp_path, suffix, capsys
):
    (tmp_path / "model").mkdir()
    predictor = BatchPredictor(Checkpoint(tmp_path / "model"), SumsOfBatches)
    scored = predictor.predict(
        rows_h5,
        feature_columns=["id"],
        batch_size=300,
        rows_per_part=600,
        output=tmp_path / f"out{suffix}",
        **here(tmp_path),
    )
    assert scored.count() == 10
    ids = np.arange(ROWS).reshape(10, 300)
    assert next(iter(scored.to_numpy().values())).ravel().tolist() == ids.sum(1).tolist()
    warning = "SumsOfBatches returned 1 rows for 300: predictions do not match rows"
    assert capsys.readouterr().err.count(warning) == 1


@pytest.mark.parametrize(
    ("start", "options", "message"),
    [
        (
            0,
            {"keep_columns": ["x"]},
            "returned 1 rows for 300, so keep_columns=.* cannot be copied beside",
        ),
        (300, {}, "returned 301 rows for 600: a row for each row of some batches, but not of"),
    ],
)
def test_rows_that_belong_to_no_row_are_refused_where_that_would_mislead(
    rows_h5, tmp_path, start, options, message
):
    (tmp_path / "model").mkdir()
    predictor = BatchPredictor(Checkpoint(tmp_path / "model"), SumsOfBatches, start=start)
    with pytest.raises((ConfigError, TrainingFailedError), match=message):
        predictor.predict(
            rows_h5,
            feature_columns=["id"],
            batch_size=300,
            rows_per_part=600,
            output=tmp_path / "out.h5",
            **options,
            **here(tmp_path),
        )
    assert not (tmp_path / "out.h5").exists()
