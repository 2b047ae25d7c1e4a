"""Predictions are never returned for, or mixed with those of, files that have changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest

from hpctrain import (
    Checkpoint,
    ConfigError,
    FailureConfig,
    HpctrainError,
    RunConfig,
    ScalingConfig,
    TrainingFailedError,
)
from hpctrain.checkpoint_files import MANIFEST_NAME, VALIDATION_NAME
from hpctrain.data.identity import identify_files
from hpctrain.predict import BatchPredictor, Predictor
from hpctrain.trainer import DataParallelTrainer

ROWS = 20


class Same(Predictor):
    """Gives its input; after so many rows an accident happens, once."""

    def __init__(self, accident: Callable[[], None] | None = None):
        super().__init__()
        self.accident = accident

    @classmethod
    def from_checkpoint(cls, checkpoint: Any, **kwargs: Any) -> Same:
        return cls(**kwargs)

    def _predict_numpy(self, data: Any) -> Any:
        (values,) = data.values()
        if self.accident is not None and values[0] % 100 == 10:
            self.accident()
        return values


def write_npy(path: Path, values: np.ndarray) -> None:
    # At once: whoever reads ahead meanwhile reads the one or the other.
    np.save(path.with_suffix(".new.npy"), values)
    path.with_suffix(".new.npy").replace(path)


def write_h5(path: Path, values: np.ndarray) -> None:
    with h5py.File(path, "a") as file:
        dataset = file.require_dataset("x", (ROWS,), "i8")
        dataset[:] = values


def write_parquet(path: Path, values: np.ndarray) -> None:
    pd.DataFrame({"x": values}).to_parquet(path)


def write_csv(path: Path, values: np.ndarray) -> None:
    path.write_text("\n".join(["x", *(f"{value:03}" for value in values), ""]))


WRITERS = {".npy": write_npy, ".h5": write_h5, ".parquet": write_parquet, ".csv": write_csv}
BEFORE, AFTER = np.arange(ROWS), np.arange(ROWS) + 100


def where(tmp_path: Path, **run: Any) -> dict[str, Any]:
    return {
        "scaling_config": ScalingConfig(num_workers=0),
        "run_config": RunConfig(storage_path=tmp_path / "runs", verbose=0, **run),
    }


def values_of(dataset: Any) -> list[int]:
    (values,) = dataset.to_numpy().values()
    return values.tolist()


@pytest.mark.parametrize("suffix", WRITERS)
def test_the_output_of_what_was_there_before_is_not_returned(tmp_path: Path, suffix: str) -> None:
    path, output = tmp_path / f"rows{suffix}", tmp_path / "out.parquet"
    predictor = BatchPredictor(None, Same)
    WRITERS[suffix](path, BEFORE)
    scored = predictor.predict(path, output=output, **where(tmp_path))
    assert values_of(scored) == BEFORE.tolist()
    assert values_of(predictor.predict(path, output=output, **where(tmp_path))) == BEFORE.tolist()

    WRITERS[suffix](path, AFTER)
    with pytest.raises(ConfigError, match="the input differs, or has changed since"):
        predictor.predict(path, output=output, **where(tmp_path))
    scored = predictor.predict(path, output=tmp_path / "new.parquet", **where(tmp_path))
    assert values_of(scored) == AFTER.tolist()


@pytest.mark.parametrize("suffix", WRITERS)
def test_nor_is_that_of_a_run_by_its_name(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows{suffix}"
    predictor = BatchPredictor(None, Same)
    WRITERS[suffix](path, BEFORE)
    assert values_of(predictor.predict(path, **where(tmp_path, name="a"))) == BEFORE.tolist()
    assert values_of(predictor.predict(path, **where(tmp_path, name="a"))) == BEFORE.tolist()
    WRITERS[suffix](path, AFTER)
    with pytest.raises(ConfigError, match="the input differs, or has changed since"):
        predictor.predict(path, **where(tmp_path, name="a"))


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("name", ["a", None])
def test_a_prediction_does_not_go_on_with_other_rows(
    tmp_path: Path, suffix: str, name: str | None
) -> None:
    path = tmp_path / f"rows{suffix}"
    fails = tmp_path / "fails"
    fails.touch()

    def accident() -> None:
        if fails.exists():
            raise RuntimeError("an accident")

    predictor = BatchPredictor(None, Same, accident=accident)
    how = {"batch_size": 5, "rows_per_part": 5}
    if name is None:
        how["output"] = tmp_path / "out.npy"
    WRITERS[suffix](path, BEFORE)
    with pytest.raises(RuntimeError, match="an accident"):
        predictor.predict(path, **how, **where(tmp_path, name=name))

    WRITERS[suffix](path, AFTER)
    fails.unlink()
    with pytest.raises(HpctrainError, match="the input differs, or has changed since"):
        predictor.predict(path, **how, **where(tmp_path, name=name))
    WRITERS[suffix](path, BEFORE)
    if suffix != ".h5":
        # What is as it was goes on; HDF5 keeps times of its own inside.
        scored = predictor.predict(path, **how, **where(tmp_path, name=name))
        assert values_of(scored) == BEFORE.tolist()


def test_an_input_that_changes_meanwhile_gives_no_output(tmp_path: Path) -> None:
    path, output = tmp_path / "rows.npy", tmp_path / "out.npy"
    write_npy(path, BEFORE)
    predictor = BatchPredictor(None, Same, accident=lambda: write_npy(path, AFTER))
    with pytest.raises(HpctrainError, match=r"the input has changed since .* last .*rows\.npy"):
        predictor.predict(path, batch_size=5, rows_per_part=5, output=output, **where(tmp_path))
    assert not output.exists()


@pytest.mark.mpi
def test_an_attempt_does_not_go_on_with_other_rows(tmp_path: Path) -> None:
    path, output, once = tmp_path / "rows.npy", tmp_path / "out.npy", tmp_path / "once"
    write_npy(path, BEFORE)

    def accident() -> None:
        assert not once.exists()
        once.touch()
        write_npy(path, AFTER)
        raise RuntimeError("an accident")

    run = RunConfig(
        storage_path=tmp_path / "runs",
        verbose=0,
        launcher="local",
        failure_config=FailureConfig(max_failures=1),
    )
    with pytest.raises(TrainingFailedError, match="the input has changed since"):
        BatchPredictor(None, Same, accident=accident).predict(
            path,
            batch_size=5,
            rows_per_part=5,
            output=output,
            scaling_config=ScalingConfig(num_workers=1),
            run_config=run,
        )
    assert once.exists()
    assert not output.exists()


def test_a_file_of_the_model_counts_wherever_it_lies(tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / "variables").mkdir(parents=True)
    (model / "variables" / "weights").write_text("1")
    output = tmp_path / "out.npy"
    predictor = BatchPredictor(Checkpoint(model), Same)
    predictor.predict(BEFORE, output=output, **where(tmp_path))
    (model / "variables" / "weights").write_text("2")
    with pytest.raises(ConfigError, match="the checkpoint differs, or its files have changed"):
        predictor.predict(BEFORE, output=output, **where(tmp_path))


def test_a_validation_that_ends_does_not_change_the_model(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    files = [model / MANIFEST_NAME, model / "weights"]
    for file in files:
        file.write_text("{}")
    output = tmp_path / "out.npy"
    predictor = BatchPredictor(Checkpoint(model), Same)
    predictor.predict(BEFORE, output=output, **where(tmp_path))
    plan = tmp_path / "out.npy.parts" / "_plan.json"
    # As ever: an output of before has this digest.
    assert json.loads(plan.read_text())["model"] == identify_files(map(str, files))
    (model / VALIDATION_NAME).write_text('{"loss": 1.0}')
    again = predictor.predict(BEFORE, output=output, **where(tmp_path))
    assert values_of(again) == BEFORE.tolist()


def test_a_finished_training_is_not_that_of_other_rows(tmp_path: Path) -> None:
    from hpctrain.data import read_numpy

    path = tmp_path / "rows.npy"

    def fit() -> Any:
        return DataParallelTrainer(
            lambda: None, datasets={"train": read_numpy(path)}, **where(tmp_path, name="training")
        ).fit()

    write_npy(path, BEFORE)
    assert fit().path == fit().path
    write_npy(path, AFTER)
    with pytest.raises(ConfigError, match=r"something else:\n  files of the datasets\n"):
        fit()
