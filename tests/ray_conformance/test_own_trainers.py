"""Trainers as Ray's documentation shows how to write them: ``BaseTrainer`` with its loop."""

from pathlib import Path

import numpy as np
import pytest

import hpctrain as train
from hpctrain import Checkpoint, ConfigError, RunConfig, ScalingConfig
from hpctrain.data import from_numpy
from hpctrain.preprocessors import StandardScaler

COLUMNS = {"x": np.array([1.0, 2.0, 3.0]), "y": np.array([2.0, 4.0, 6.0])}


class SlopeTrainer(train.BaseTrainer):
    def setup(self):
        self.slope = 0.0

    def training_loop(self):
        if self.resume_from_checkpoint:
            self.slope = self.resume_from_checkpoint.to_dict()["slope"]
        for epoch in range(2):
            for batch in self.datasets["train"].iter_batches():
                self.slope += 0.1 * float(np.mean(batch["y"] - self.slope * batch["x"]))
            checkpoint = Checkpoint.from_dict({"slope": self.slope})
            train.report({"epoch": epoch, "slope": self.slope}, checkpoint=checkpoint)


def slope_after(passes, slope=0.0):
    for _ in range(passes):
        slope += 0.1 * float(np.mean(COLUMNS["y"] - slope * COLUMNS["x"]))
    return slope


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.mpi)])
def test_the_loop_reports_and_saves(tmp_path: Path, num_workers: int):
    def fit(name, **arguments):
        return SlopeTrainer(
            datasets={"train": from_numpy(COLUMNS)},
            scaling_config=ScalingConfig(num_workers=num_workers),
            run_config=RunConfig(name=name, storage_path=tmp_path, verbose=0),
            **arguments,
        ).fit()

    result = fit("first")
    assert result.metrics == {"epoch": 1, "slope": pytest.approx(slope_after(2))}
    assert result.checkpoint.to_dict()["slope"] == result.metrics["slope"]
    assert len(result.metrics_history) == 2
    again = fit("second", resume_from_checkpoint=result.checkpoint)
    assert again.metrics["slope"] == pytest.approx(slope_after(4))
    # The same name: what is stored, and nothing runs.
    assert fit("first").metrics == result.metrics
    assert SlopeTrainer.can_restore(result.path)


def test_datasets_are_preprocessed_before_the_loop(tmp_path: Path):
    class MeanTrainer(train.BaseTrainer):
        def training_loop(self):
            (batch,) = self.datasets["train"].iter_batches()
            mean = self.preprocessor.stats_["mean(x)"]
            train.report({"values": batch["x"].tolist(), "mean": mean})

    result = MeanTrainer(
        datasets={"train": lambda: from_numpy({"x": np.array([1.0, 3.0])})},
        preprocessor=StandardScaler(["x"]),
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=tmp_path, verbose=0),
    ).fit()
    assert result.metrics == {"values": [-1.0, 1.0], "mean": 2.0}


def test_one_loop_is_not_run_on_many_ranks():
    trainer = SlopeTrainer(scaling_config=ScalingConfig(num_workers=2))
    with pytest.raises(ConfigError, match="subclass DataParallelTrainer"):
        trainer.fit()
    with pytest.raises(ConfigError, match=r"has no restore\(\) of its own"):
        SlopeTrainer.restore("some/run")


def test_a_data_parallel_trainer_of_ones_own_prepares_itself_first(tmp_path: Path):
    class Prepared(train.DataParallelTrainer):
        def setup(self):
            self.train_loop_config = {"lr": 0.5}

    def loop(config):
        train.report(config)

    result = Prepared(
        loop,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=tmp_path, verbose=0),
    ).fit()
    assert result.metrics == {"lr": 0.5}
