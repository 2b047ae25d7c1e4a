"""Preprocessors as Ray's documentation shows how to write them.

Ray 2.60 gives the numbers of the first two tests, with a dict for each batch of `SumOnly`; here a
batch has the format that was given.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import hpctrain
from hpctrain import (
    Checkpoint,
    CheckpointError,
    ConfigError,
    RunConfig,
    ScalingConfig,
    pickle_trust,
)
from hpctrain.data import from_pandas
from hpctrain.predict import BatchPredictor, Predictor
from hpctrain.preprocessors import (
    BatchMapper,
    Chain,
    Preprocessor,
    StandardScaler,
    load,
    save,
)

FRAME = pandas.DataFrame({"a": [1.0, 2.0, 4.0], "b": [10.0, 20.0, 40.0]})


class LargestIsOne(Preprocessor):
    """Learns from a dataset, and keeps it in an attribute; does not call ``super().__init__()``."""

    def __init__(self, column):
        self.name = column

    def _fit(self, ds):
        self.largest_ = max(float(batch[self.name].max()) for batch in ds.iter_batches())
        return self

    def _transform_pandas(self, df):
        df[self.name] = df[self.name] / self.largest_
        return df


class SumOnly(Preprocessor):
    """Drops what it has read, and needs no fit."""

    _is_fittable = False

    def _transform_numpy(self, data):
        return {"sum": data["a"] + data["b"]}


class Ten(Preprocessor):
    _is_fittable = False

    def _transform_numpy(self, data):
        return data * 10


def test_fit_and_transform_of_a_dataset():
    scale = LargestIsOne("a")
    assert scale.fit_status() is Preprocessor.FitStatus.NOT_FITTED
    made = scale.fit_transform(from_pandas(FRAME))
    assert scale.fit_status() is Preprocessor.FitStatus.FITTED
    (batch,) = made.iter_batches(batch_format="pandas")
    assert batch["a"].tolist() == [0.25, 0.5, 1.0]
    assert batch["b"].tolist() == [10.0, 20.0, 40.0]
    assert FRAME["a"].tolist() == [1.0, 2.0, 4.0]


def test_a_batch_of_any_form_is_transformed_whole():
    for batch in (FRAME, {name: FRAME[name].to_numpy() for name in FRAME}):
        made = SumOnly().transform_batch(batch)
        assert list(made) == ["sum"]
        assert list(made["sum"]) == [11.0, 22.0, 44.0]
    assert Ten().transform_batch(np.array([1, 2])).tolist() == [10, 20]


def test_a_chain_mixes_them_with_ours():
    chain = Chain(LargestIsOne("a"), SumOnly(), StandardScaler(["sum"]))
    made = chain.fit_transform(FRAME)
    assert list(made) == ["sum"]
    sums = np.array([10.25, 20.5, 41.0])
    np.testing.assert_allclose(made["sum"], (sums - sums.mean()) / sums.std())


def test_what_was_learned_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    save(Chain(LargestIsOne("a")).fit(FRAME), tmp_path)
    assert load(tmp_path).transform_batch(FRAME)["a"].tolist() == [0.25, 0.5, 1.0]
    # As in a process that has pickled nothing yet.
    monkeypatch.setattr(pickle_trust, "_made", set())
    assert load(tmp_path).transform_batch(FRAME)["a"].tolist() == [0.25, 0.5, 1.0]
    tmp_path.chmod(0o775)
    with pytest.raises(CheckpointError, match="trusted=True"):
        load(tmp_path)
    made = load(tmp_path, trusted=True).transform_batch(FRAME)
    assert made["a"].tolist() == [0.25, 0.5, 1.0]


def test_one_that_transforms_nothing_says_so():
    class Nothing(Preprocessor):
        pass

    with pytest.raises(ConfigError, match="set _is_fittable = False"):
        Nothing().fit(FRAME)
    Nothing._is_fittable = False
    with pytest.raises(ConfigError, match=r"Define _transform_pandas\(self, df\) or"):
        Nothing().transform_batch(FRAME)


@pytest.mark.mpi
def test_ranks_are_given_what_rank_0_learned_from_all_rows(tmp_path: Path):
    def train() -> Any:
        shard = hpctrain.get_dataset_shard("train")
        values = [float(row["a"]) for row in shard.iter_rows()]
        hpctrain.report({"values": values})
        return values

    result = hpctrain.DataParallelTrainer(
        train,
        datasets={"train": from_pandas(FRAME)},
        preprocessor=LargestIsOne("a"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tmp_path, verbose=0),
    ).fit()
    # Rank 0 has not the largest: it is in the second half.
    assert result.return_value[0] == 0.25


class Sums(Predictor):
    @classmethod
    def from_checkpoint(cls, checkpoint):
        return cls(checkpoint.get_preprocessor())

    def _predict_numpy(self, data):
        return {"made": data["a"] + 0.5}


def test_ranks_that_score_open_what_the_process_that_sent_them_has_pickled(tmp_path: Path):
    def tenfold(df):
        return df * 10

    checkpoint = Checkpoint.from_dict({"unused": 1})
    checkpoint.set_preprocessor(BatchMapper(tenfold, batch_format="pandas"))
    made = BatchPredictor.from_checkpoint(checkpoint, Sums).predict(
        from_pandas(pandas.DataFrame({"a": [1.0, 2.0, 4.0]})),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="score", storage_path=tmp_path, verbose=0),
    )
    assert sorted(row["made"] for row in made.iter_rows()) == [10.5, 20.5, 40.5]


class Counted(Preprocessor):
    """Has a ``fit()`` of its own, which returns nothing."""

    def fit(self, ds):
        self.rows_ = ds.count()

    def _transform_pandas(self, df):
        return df


def test_a_trainer_takes_a_fit_that_returns_nothing(tmp_path: Path):
    def save_something():
        with hpctrain.checkpoint_dir() as directory:
            Path(directory, "one").write_text("1")
            hpctrain.report({}, Checkpoint.from_directory(directory))

    result = hpctrain.DataParallelTrainer(
        save_something,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=tmp_path),
        datasets={"train": from_pandas(FRAME)},
        preprocessor=Counted(),
    ).fit()
    assert result.checkpoint is not None
    assert result.checkpoint.get_preprocessor(trusted=True).rows_ == 3
