"""Bad data gets a clear error, before work is lost.

What can be known is refused before ranks are started; the rest is found by the ranks, before the
first round. What earlier runs made stays as it was.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from hpctrain import (
    Checkpoint,
    CheckpointError,
    ConfigError,
    HpctrainError,
    Result,
    RunConfig,
    ScalingConfig,
    TrainingFailedError,
)
from hpctrain.data import Dataset, from_pandas, read_csv, read_hdf5, read_parquet
from hpctrain.lightgbm import LightGBMPredictor, LightGBMTrainer
from hpctrain.predict import BatchPredictor
from hpctrain.preprocessors import BatchMapper, StandardScaler
from hpctrain.sklearn import SklearnPredictor, SklearnTrainer
from hpctrain.torch import TorchPredictor
from hpctrain.xgboost import XGBoostPredictor, XGBoostTrainer

ROWS = 200
SAMPLES = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("f4")
TABLE = pd.DataFrame(SAMPLES, columns=["a", "b", "c"]).assign(y=(SAMPLES[:, 0] > 0).astype("int64"))
TREES: dict[type[Any], dict[str, Any]] = {
    XGBoostTrainer: {"params": {"objective": "binary:logistic"}, "num_boost_round": 3},
    LightGBMTrainer: {"params": {"objective": "binary", "verbose": -1}, "num_boost_round": 3},
}
TRAINERS = dict(TREES)
TRAINERS[SklearnTrainer] = {"estimator": LogisticRegression()}


def train(
    trainer: type[Any], storage: Path, *, num_workers: int, name: str = "run", **changes: Any
) -> Result:
    arguments = {
        **TRAINERS[trainer],
        "datasets": {"train": from_pandas(TABLE)},
        "label_column": "y",
        "scaling_config": ScalingConfig(num_workers=num_workers),
        "run_config": RunConfig(
            storage_path=storage,
            name=name,
            verbose=0,
            launcher="local" if num_workers else "auto",
        ),
    }
    result: Result = trainer(**{**arguments, **changes}).fit()
    return result


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run that went well."""
    return train(XGBoostTrainer, tmp_path_factory.mktemp("earlier"), num_workers=0)


@pytest.fixture(scope="module")
def checkpoint(earlier: Result) -> Checkpoint:
    assert earlier.checkpoint is not None
    return earlier.checkpoint


def refused(storage: Path, complaint: str, **arguments: Any) -> None:
    """Ranks were never started: there is no run directory."""
    with pytest.raises((ConfigError, CheckpointError), match=complaint):
        train(storage=storage, num_workers=2, **arguments)
    assert not list(storage.iterdir())


def found_by_ranks(storage: Path, complaint: str, **arguments: Any) -> None:
    """Two ranks were started, and none of them has trained."""
    with pytest.raises(TrainingFailedError, match=complaint):
        train(storage=storage, num_workers=2, **arguments)
    result = Result.from_path(storage / "run")
    assert (result.state, result.metrics_history, result.checkpoint) == ("failed", [], None)


def digests(directory: Path, pattern: str = "**/*") -> dict[str, tuple[int, str]]:
    """Return when files were written and what is in them."""
    return {
        str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in directory.glob(pattern)
        if path.is_file()
    }


def write_h5(path: Path, table: pd.DataFrame = TABLE) -> Path:
    with h5py.File(path, "w") as file:
        for name in table:
            file[str(name)] = table[name].to_numpy()
    return path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-900])


# A label column that is missing.


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_label_column_that_is_missing_is_refused(trainer: type, tmp_path: Path) -> None:
    refused(
        tmp_path,
        r"dataset 'train' has no column 'yes', which label_column names. It has "
        r"\['a', 'b', 'c', 'y'\]. Name one of these, or add the column",
        trainer=trainer,
        label_column="yes",
    )


@pytest.mark.mpi
def test_a_label_column_that_a_preprocessor_takes_away_is_missed_by_the_ranks(
    tmp_path: Path,
) -> None:
    found_by_ranks(
        tmp_path,
        r"dataset 'train' has no column 'y', which label_column names. It has \['a', 'b', 'c'\]",
        trainer=XGBoostTrainer,
        preprocessor=BatchMapper(_without_label, batch_format="numpy"),
    )


def _without_label(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: values for name, values in batch.items() if name != "y"}


# A feature that appears or vanishes between training and prediction.


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        (
            TABLE.drop(columns="b"),
            r"has no 'b', which the model was trained on. The model has 3 features: 'a', 'b', 'c'",
        ),
        (TABLE.assign(d=1.0), r"has 'd', which the model was not trained on.* feature_columns="),
        (
            TABLE.rename(columns={"b": "B"}),
            r"has no 'b', which the model was trained on; the input has 'B', which the model was "
            r"not trained on.* or rename",
        ),
    ],
)
def test_other_features_than_in_training_are_not_predicted_on(
    checkpoint: Checkpoint, tmp_path: Path, table: pd.DataFrame, complaint: str
) -> None:
    predictor = BatchPredictor.from_checkpoint(checkpoint, XGBoostPredictor)
    output = tmp_path / "scores.h5"
    with pytest.raises(ConfigError, match=complaint):
        predict(predictor, from_pandas(table), output)
    assert not list(tmp_path.iterdir())


def predict(predictor: BatchPredictor, data: Any, output: Path) -> Dataset:
    return predictor.predict(
        data,
        output=output,
        batch_size=10,
        rows_per_part=10,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=output.parent / "runs", name="scores", verbose=0, launcher="local"
        ),
    )


@pytest.mark.mpi
def test_what_a_preprocessor_was_fitted_on_is_missed_before_ranks_start(tmp_path: Path) -> None:
    result = train(
        LightGBMTrainer, tmp_path, num_workers=0, preprocessor=StandardScaler(["a", "b"])
    )
    assert result.checkpoint is not None
    predictor = BatchPredictor.from_checkpoint(result.checkpoint, LightGBMPredictor)
    with pytest.raises(
        ConfigError, match=r"preprocessor StandardScaler does not accept .* column 'b' is missing"
    ):
        predict(predictor, from_pandas(TABLE.drop(columns="b")), tmp_path / "scores.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.mpi
def test_boosting_does_not_go_on_with_other_features(
    earlier: Result, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    before = digests(earlier.path)
    found_by_ranks(
        tmp_path,
        r"the checkpoint's model has 3 features, the datasets have 4; these differ: \['d'\]",
        trainer=XGBoostTrainer,
        datasets={"train": from_pandas(TABLE.assign(d=1.0))},
        resume_from_checkpoint=checkpoint,
        num_boost_round=6,
    )
    assert digests(earlier.path) == before


# A label that is NaN.


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("trainer", "complaint"),
    [
        (XGBoostTrainer, r"2 of 200 rows have a NaN or infinite label .*ranks \[1\].* drop these"),
        (LightGBMTrainer, r"2 of 200 rows have a NaN or infinite label .*ranks \[1\].* drop these"),
        (SklearnTrainer, r"2 of 200 rows have no label \(column 'y'\). Drop these rows, or fill"),
    ],
)
def test_a_label_that_is_nan_is_found_before_training(
    trainer: type, complaint: str, tmp_path: Path
) -> None:
    label = TABLE["y"].astype("f8").where(TABLE.index < ROWS - 2)
    found_by_ranks(
        tmp_path,
        complaint,
        trainer=trainer,
        datasets={"train": from_pandas(TABLE.assign(y=label))},
    )


# Fewer rows than ranks.


@pytest.mark.parametrize("trainer", TREES)
def test_fewer_rows_than_ranks_are_refused(trainer: type, tmp_path: Path) -> None:
    refused(
        tmp_path,
        "dataset 'train' has 1 rows for 2 workers.* Use fewer workers, or more rows",
        trainer=trainer,
        datasets={"train": from_pandas(TABLE[:1])},
    )


@pytest.mark.mpi
def test_rows_that_a_filter_leaves_to_one_rank_are_missed_by_the_other(tmp_path: Path) -> None:
    found_by_ranks(
        tmp_path,
        r"dataset 'train' has no rows on ranks \[1\] of 2.* Use fewer workers, or more rows",
        trainer=XGBoostTrainer,
        datasets={"train": from_pandas(TABLE.assign(n=range(ROWS))).filter(_is_early)},
    )


def _is_early(batch: dict[str, Any]) -> Any:
    return batch["n"] < 5


@pytest.mark.mpi
def test_one_row_is_predicted_by_two_ranks(checkpoint: Checkpoint, tmp_path: Path) -> None:
    predictor = BatchPredictor.from_checkpoint(checkpoint, XGBoostPredictor)
    assert predict(predictor, from_pandas(TABLE[:1]), tmp_path / "scores.h5").count() == 1


# Files with unlike schemas.


@pytest.mark.parametrize(
    ("suffix", "read"), [("parquet", read_parquet), ("h5", read_hdf5), ("csv", read_csv)]
)
def test_files_with_unlike_columns_are_no_dataset(suffix: str, read: Any, tmp_path: Path) -> None:
    tables = (TABLE[:100], TABLE[100:].rename(columns={"b": "B"}))
    for number, table in enumerate(tables):
        path = tmp_path / f"{number}.{suffix}"
        if suffix == "h5":
            write_h5(path, table)
        elif suffix == "csv":
            table.to_csv(path, index=False)
        else:
            table.to_parquet(path)
    with pytest.raises(ConfigError, match=r"0\..*1\..*'b'.*columns=\[") as caught:
        read(tmp_path)
    assert "'B'" in str(caught.value)


@pytest.mark.parametrize("trainer", TREES)
def test_datasets_with_unlike_columns_are_refused(trainer: type, tmp_path: Path) -> None:
    refused(
        tmp_path,
        "dataset 'train' has a column 'b' that dataset 'valid' lacks.* drop this one, or add it",
        trainer=trainer,
        datasets={"train": from_pandas(TABLE), "valid": from_pandas(TABLE.drop(columns="b"))},
    )


# An HDF5 file that is cut off.


def test_a_file_that_is_cut_off_is_no_dataset(tmp_path: Path) -> None:
    path = write_h5(tmp_path / "rows.h5")
    cut(path)
    with pytest.raises(
        ConfigError, match=r"rows\.h5 \(\d+ bytes\) .*It is truncated, .* write it again"
    ):
        read_hdf5(path)


@pytest.mark.mpi
def test_a_file_that_is_cut_off_later_is_found_by_the_ranks(tmp_path: Path) -> None:
    path = write_h5(tmp_path / "rows.h5")
    dataset = read_hdf5(path)
    cut(path)
    found_by_ranks(
        tmp_path,
        r"rows\.h5 \(\d+ bytes\) .*It is truncated, .* write it again",
        trainer=LightGBMTrainer,
        datasets={"train": dataset},
    )


@pytest.mark.mpi
def test_a_prediction_is_not_mixed_with_that_of_a_file_that_was_cut_off(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    files = tmp_path / "rows"
    files.mkdir()
    first = write_h5(files / "0.h5", TABLE[:100])
    second = write_h5(files / "1.h5", TABLE[100:])
    dataset = read_hdf5([first, second])
    whole = second.read_bytes()
    cut(second)
    predictor = BatchPredictor.from_checkpoint(checkpoint, XGBoostPredictor)
    output = tmp_path / "scores.h5"

    with pytest.raises(
        HpctrainError, match=r"1\.h5 \(\d+ bytes\) .*It is truncated, .* write it again"
    ):
        predict(predictor, dataset, output)
    assert not output.exists()
    parts = tmp_path / "scores.h5.parts"
    assert list(parts.glob("*.h5")), "parts of the rows before"

    # It could be another file as well, with other rows before the place where it was cut.
    second.write_bytes(whole)
    with pytest.raises(HpctrainError, match=r"the input differs, or has changed.*Remove it"):
        predict(predictor, dataset, output)
    shutil.rmtree(parts)
    assert predict(predictor, dataset, output).count() == ROWS


# An output path that cannot be one.


@pytest.mark.parametrize(
    ("output", "complaint"),
    [
        ("scores.xlsx", r"with one of \.h5, \.hdf5, \.parquet, \.csv"),
        ("s3://bucket/scores.h5", "is a URL.*filesystem that all nodes share. Give a path there"),
        ("/proc/scores.h5", "/proc is not writable .* Choose another path"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused(
    checkpoint: Checkpoint, tmp_path: Path, output: str, complaint: str
) -> None:
    predictor = BatchPredictor.from_checkpoint(checkpoint, XGBoostPredictor)
    with pytest.raises(ConfigError, match=complaint):
        predictor.predict(
            from_pandas(TABLE), output=output, run_config=RunConfig(storage_path=tmp_path)
        )
    assert not list(tmp_path.iterdir())


def test_an_output_that_is_there_is_kept(checkpoint: Checkpoint, tmp_path: Path) -> None:
    predictor = BatchPredictor.from_checkpoint(checkpoint, XGBoostPredictor)
    output = write_h5(tmp_path / "scores.h5")
    before = digests(tmp_path)
    with pytest.raises(ConfigError, match=r"is never overwritten: remove it, .*another path"):
        predict(predictor, from_pandas(TABLE), output)
    assert digests(tmp_path) == before


def test_a_run_is_not_written_to_a_url() -> None:
    with pytest.raises(ConfigError, match=r"is a URL.* give a directory there"):
        RunConfig(storage_path="s3://bucket/runs")


# A checkpoint of another framework.


@pytest.mark.parametrize("predictor", [LightGBMPredictor, SklearnPredictor, TorchPredictor])
def test_a_checkpoint_of_another_framework_is_not_predicted_with(
    checkpoint: Checkpoint, predictor: type[Any]
) -> None:
    complaint = rf"a model of xgboost, but {predictor.__name__} .*Use the predictor of xgboost"
    with pytest.raises(ConfigError, match=complaint):
        BatchPredictor.from_checkpoint(checkpoint, predictor)


def test_boosting_does_not_go_on_with_a_checkpoint_of_another_framework(
    earlier: Result, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    before = digests(earlier.path)
    refused(
        tmp_path,
        "is a checkpoint of xgboost, not of lightgbm. Open it with hpctrain.xgboost",
        trainer=LightGBMTrainer,
        resume_from_checkpoint=checkpoint,
    )
    assert digests(earlier.path) == before
