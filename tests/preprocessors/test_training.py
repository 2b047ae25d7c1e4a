from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import sklearn.preprocessing
from numpy.testing import assert_allclose

from hpctrain import (
    Checkpoint,
    CheckpointError,
    ConfigError,
    DataParallelTrainer,
    RunConfig,
    ScalingConfig,
    WorkerError,
)
from hpctrain.data import from_numpy, read_hdf5
from hpctrain.preprocessors import (
    BatchMapper,
    Chain,
    Concatenator,
    OrdinalEncoder,
    Preprocessor,
    RobustScaler,
    SklearnPreprocessor,
    StandardScaler,
    load,
)

ROWS = 1001


@pytest.fixture
def columns(random: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "x": random.normal(5, 3, size=(ROWS, 4)).astype("float32"),
        "y": random.integers(0, 2, size=ROWS),
    }


def train_and_save(config: dict[str, Any]) -> Any:
    """Return what rank 0 sees of its data; fail once if it is told to."""
    import hpctrain

    rank = hpctrain.get_context().get_world_rank()
    mine = [b["x"] for b in hpctrain.get_dataset_shard("train").iter_batches(batch_size=100)]
    with hpctrain.checkpoint_dir() as directory:
        # Rank 0 has nothing to save: what is stored does not depend on it.
        if rank > 0 or hpctrain.get_context().get_world_size() == 1:
            (Path(directory) / f"rank{rank}").write_text(str(sum(map(len, mine))))
            hpctrain.report({"rows": len(mine)}, Checkpoint.from_directory(directory))
        else:
            hpctrain.report({"rows": len(mine)})
    if config.get("fail") and hpctrain.get_context().world.attempt == 1:
        raise RuntimeError("fails once")
    return np.concatenate(mine)


def trainer(
    tmp_path: Path, *, num_workers: int = 2, name: str = "run", **arguments: Any
) -> DataParallelTrainer:
    return DataParallelTrainer(
        train_and_save,
        scaling_config=ScalingConfig(num_workers=num_workers),
        run_config=RunConfig(name=name, storage_path=tmp_path),
        **{"train_loop_config": {}, **arguments},
    )


def expected_scaler(columns: dict[str, np.ndarray]) -> sklearn.preprocessing.StandardScaler:
    return sklearn.preprocessing.StandardScaler().fit(columns["x"].astype("float64"))


@pytest.mark.mpi
def test_ranks_fit_together_and_what_they_learned_is_in_the_checkpoint(
    tmp_path: Path, columns: dict[str, np.ndarray]
):
    import h5py

    with h5py.File(tmp_path / "data.h5", "w") as file:
        for name, values in columns.items():
            file[name] = values
    given = StandardScaler(["x"])
    dataset = read_hdf5(tmp_path / "data.h5")
    result = trainer(tmp_path, datasets={"train": dataset}, preprocessor=given).fit()
    reference = expected_scaler(columns)
    assert result.checkpoint is not None
    stored = result.checkpoint.get_preprocessor()
    assert stored is not None
    assert_allclose(stored.stats_["mean(x)"], reference.mean_, rtol=1e-9)
    assert_allclose(stored.stats_["std(x)"], reference.scale_, rtol=1e-9)
    seen = result.return_value
    assert_allclose(seen, reference.transform(columns["x"])[: len(seen)], rtol=1e-5, atol=1e-6)
    assert len(seen) in (ROWS // 2, ROWS // 2 + 1)
    assert given.stats_ is None, "what the script holds is not changed"


@pytest.mark.mpi
def test_three_ranks_learn_the_same_to_the_last_bit(
    tmp_path: Path, columns: dict[str, np.ndarray], random: np.random.Generator
):
    def save_what_was_learned() -> None:
        import hpctrain
        from hpctrain.worker.context import active_worker

        fitted: Any = active_worker("the test").preprocessor
        rank = hpctrain.get_context().get_world_rank()
        with hpctrain.checkpoint_dir() as directory:
            (Path(directory) / f"rank{rank}").write_text(fitted.serialize())
            hpctrain.report({}, Checkpoint.from_directory(directory))

    chain = Chain(RobustScaler(["x"]), StandardScaler(["x"]), OrdinalEncoder(["word"]))
    words = np.array(["a", "b", "c"], dtype=object)[random.integers(0, 3, size=ROWS)]
    batch = {**columns, "word": words}
    result = DataParallelTrainer(
        save_what_was_learned,
        scaling_config=ScalingConfig(num_workers=3),
        run_config=RunConfig(name="run", storage_path=tmp_path),
        datasets={"train": from_numpy(batch)},
        preprocessor=chain,
    ).fit()
    assert result.checkpoint is not None
    learned = [(result.checkpoint.path / f"rank{rank}").read_text() for rank in range(3)]
    assert learned[0] == learned[1] == learned[2]
    robust, standard, ordinal = Preprocessor.deserialize(learned[0]).preprocessors  # type: ignore[attr-defined]
    assert_allclose(robust.stats_["median(x)"], np.median(columns["x"], axis=0), rtol=1e-9)
    scaled = sklearn.preprocessing.RobustScaler().fit_transform(columns["x"].astype("float64"))
    assert_allclose(standard.stats_["std(x)"], scaled.std(axis=0), rtol=1e-6)
    assert ordinal.stats_ == {"unique_values(word)": {"a": 0, "b": 1, "c": 2}}


@pytest.mark.mpi
def test_ranks_that_save_together_store_one_preprocessor(
    tmp_path: Path, columns: dict[str, np.ndarray], capfd: pytest.CaptureFixture[str]
):
    def save() -> None:
        import hpctrain

        rank = hpctrain.get_context().get_world_rank()
        with hpctrain.checkpoint_dir() as directory:
            (Path(directory) / f"rank{rank}").write_text("weights")
            hpctrain.report({}, Checkpoint.from_directory(directory))

    transformer = sklearn.preprocessing.QuantileTransformer(n_quantiles=20)
    result = DataParallelTrainer(
        save,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="run", storage_path=tmp_path),
        datasets={"train": from_numpy(columns)},
        preprocessor=SklearnPreprocessor(transformer, ["x"]),
    ).fit()
    assert "different content" not in capfd.readouterr().err
    assert result.checkpoint is not None
    stored: Any = result.checkpoint.get_preprocessor()
    expected = transformer.fit(columns["x"]).quantiles_
    assert_allclose(stored.stats_["transformer"].quantiles_, expected, rtol=1e-9)


@pytest.mark.mpi
def test_a_run_that_goes_on_takes_what_its_checkpoint_holds(
    tmp_path: Path, columns: dict[str, np.ndarray]
):
    def arguments(rows: int) -> dict[str, Any]:
        data = {name: values[:rows] for name, values in columns.items()}
        return {
            "datasets": {"train": from_numpy(data)},
            "preprocessor": StandardScaler(["x"]),
            "train_loop_config": {"fail": True},
        }

    with pytest.raises(WorkerError, match="fails once"):
        trainer(tmp_path, **arguments(ROWS)).fit()
    # With fewer rows another mean would be learned, if one were.
    result = trainer(tmp_path, **arguments(10)).fit()
    assert result.checkpoint is not None
    stored = result.checkpoint.get_preprocessor()
    assert stored is not None
    assert_allclose(stored.stats_["mean(x)"], expected_scaler(columns).mean_, rtol=1e-9)


class Centred(Preprocessor):
    """A user's own, which learns in the way of Ray Train."""

    def _fit(self, ds: Any) -> Preprocessor:
        self.mean_ = float(np.mean([row["x"] for row in ds.iter_rows()]))
        return self

    def _transform_numpy(self, np_data: Any) -> Any:
        return {**np_data, "x": np_data["x"] - self.mean_}


@pytest.mark.parametrize(
    "make", [Centred, lambda: Chain(StandardScaler(["y"]), Centred()), lambda: Chain(Centred())]
)
def test_a_users_own_preprocessor_is_not_fitted_again_when_a_run_goes_on(
    tmp_path: Path, columns: dict[str, np.ndarray], make: Callable[[], Preprocessor]
):
    def arguments(rows: int) -> dict[str, Any]:
        data = {name: values[:rows] for name, values in columns.items()}
        return {
            "num_workers": 0,
            "datasets": {"train": from_numpy(data)},
            "preprocessor": make(),
            "train_loop_config": {"fail": True},
        }

    def learned(preprocessor: Any) -> float:
        last = preprocessor.preprocessors[-1] if isinstance(preprocessor, Chain) else preprocessor
        mean: float = last.mean_
        return mean

    with pytest.raises(RuntimeError, match="fails once"):
        trainer(tmp_path, **arguments(ROWS)).fit()
    result = trainer(tmp_path, **arguments(10)).fit()
    assert result.checkpoint is not None
    first = load(tmp_path / "run" / "checkpoints" / "000001", trusted=True)
    assert learned(result.checkpoint.get_preprocessor()) == learned(first)
    assert learned(first) == pytest.approx(columns["x"].mean(), rel=1e-6)


def test_another_preprocessor_than_that_of_the_checkpoint_is_fitted(
    tmp_path: Path, columns: dict[str, np.ndarray]
):
    first = trainer(
        tmp_path,
        num_workers=0,
        datasets={"train": from_numpy(columns)},
        preprocessor=StandardScaler(["x"]),
    ).fit()
    chain = Chain(StandardScaler(["x"]), Concatenator(["x"], "x", flatten=True))
    result = trainer(
        tmp_path,
        num_workers=0,
        name="other",
        datasets={"train": from_numpy({**columns, "x": columns["x"] + 100})},
        preprocessor=chain,
        resume_from_checkpoint=first.checkpoint,
    ).fit()
    assert result.checkpoint is not None
    stored: Any = result.checkpoint.get_preprocessor()
    scaler = stored.preprocessors[0]
    assert_allclose(scaler.stats_["mean(x)"], expected_scaler(columns).mean_ + 100, rtol=1e-5)


def test_one_that_is_fitted_is_taken_as_it_is(tmp_path: Path, columns: dict[str, np.ndarray]):
    fitted = StandardScaler(["x"]).fit({"x": columns["x"][:10]})
    result = trainer(
        tmp_path,
        num_workers=0,
        datasets={"train": lambda: from_numpy(columns)},
        preprocessor=fitted,
    ).fit()
    assert result.checkpoint is not None
    assert load(result.checkpoint.path).serialize() == fitted.serialize()


def test_a_data_frame_is_transformed_too(tmp_path: Path):
    def look() -> Any:
        import hpctrain

        return hpctrain.get_dataset_shard("train")["x"].tolist()

    frame = pandas.DataFrame({"x": [1.0, 3.0]})
    result = DataParallelTrainer(
        look,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(name="run", storage_path=tmp_path),
        datasets={"train": frame},
        preprocessor=StandardScaler(["x"]),
    ).fit()
    assert result.return_value == [-1.0, 1.0]


@pytest.mark.parametrize(
    ("preprocessor", "datasets", "message"),
    [
        ({"mean": 1}, {}, "is a dict, not a Preprocessor. Wrap a transformer of scikit-learn"),
        (StandardScaler(["x"]), {}, "learns from a dataset 'train'.* has none"),
        (StandardScaler(["x"]), {"train": [1, 2]}, "'train' is a list; a preprocessor needs"),
        (StandardScaler(["z"]), {"train": from_numpy({"x": np.ones(3)})}, r"needs columns \['z'\]"),
    ],
)
def test_what_cannot_work_is_refused_before_the_run_is_started(
    tmp_path: Path, preprocessor: Any, datasets: Any, message: str
):
    with pytest.raises(ConfigError, match=message):
        trainer(tmp_path, preprocessor=preprocessor, datasets=datasets)


class Lacking(Preprocessor):
    def __init__(self) -> None:
        self.is_same = True

    def _transform_numpy(self, np_data: Any) -> Any:
        return np_data


@pytest.mark.parametrize("preprocessor", [Preprocessor(), Lacking()])
@pytest.mark.parametrize("name", ["train", "valid"])
def test_one_that_cannot_learn_is_refused_before_the_run_is_started(
    tmp_path: Path, preprocessor: Preprocessor, name: str
):
    datasets = {name: from_numpy({"x": np.ones(3)})}
    made = trainer(tmp_path, preprocessor=preprocessor, datasets=datasets)
    with pytest.raises(ConfigError, match=r"defines no fit. Define _fit\(self, ds\)"):
        made.fit()
    assert not list(tmp_path.iterdir())


def test_one_that_cannot_learn_and_need_not_is_stored_as_it_is(tmp_path: Path):
    def save() -> None:
        import hpctrain

        hpctrain.report({}, Checkpoint.from_dict({"step": 1}))

    result = DataParallelTrainer(
        save,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(name="run", storage_path=tmp_path),
        preprocessor=Lacking(),
    ).fit()
    assert result.checkpoint is not None
    assert result.checkpoint.get_preprocessor().is_same  # type: ignore[union-attr]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_function_is_stored_and_opened_elsewhere_only_if_it_is_trusted(
    tmp_path: Path,
    columns: dict[str, np.ndarray],
    num_workers: int,
    in_another_process: Callable[..., None],
):
    def shifted(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {**batch, "x": batch["x"] + 1}

    result = trainer(
        tmp_path,
        num_workers=num_workers,
        datasets={"train": from_numpy(columns)},
        preprocessor=Chain(BatchMapper(shifted), StandardScaler(["x"])),
    ).fit()
    assert result.checkpoint is not None
    json.loads((result.checkpoint.path / "preprocessor.json").read_bytes())
    # The ranks have written what this process has sent them.
    mine: Any = result.checkpoint.get_preprocessor()
    assert len(mine.transform_batch({"x": columns["x"][:2]})["x"]) == 2
    in_another_process()
    # It lies in a run directory of this user's own.
    assert result.checkpoint.get_preprocessor() is not None
    in_another_process(result.checkpoint.path)
    with pytest.raises(
        CheckpointError, match=r"holds a pickle; opening it runs code\. .*trusted=True"
    ):
        result.checkpoint.get_preprocessor()
    stored: Any = result.checkpoint.get_preprocessor(trusted=True)
    assert_allclose(
        stored.preprocessors[1].stats_["mean(x)"], expected_scaler(columns).mean_ + 1, rtol=1e-6
    )
