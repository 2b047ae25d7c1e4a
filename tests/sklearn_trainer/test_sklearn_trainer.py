"""SklearnTrainer: folds and searches over ranks, with the numbers of one process."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("skops")

from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import hpctrain
from hpctrain import (
    CheckpointError,
    ConfigError,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
    WorkerError,
)
from hpctrain.data import from_pandas
from hpctrain.sklearn import SklearnCheckpoint, SklearnTrainer
from hpctrain.sklearn.fitting import as_frame
from tests.imports import forks_of_one_import

_forks = forks_of_one_import("sklearn.linear_model")


@pytest.fixture(scope="module")
def frames() -> dict[str, Any]:
    table = load_iris(as_frame=True).frame.sample(frac=1, random_state=0).reset_index(drop=True)
    return {"train": table[:120], "valid": table[120:].reset_index(drop=True)}


def run_config(storage: Path, num_workers: int) -> RunConfig:
    launcher: Any = "local" if num_workers else "auto"
    return RunConfig(storage_path=storage, name="run", verbose=0, launcher=launcher)


def fit(storage: Path, frames: Any, *, num_workers: int = 2, **changes: Any) -> Result:
    arguments = {
        "estimator": make_pipeline(StandardScaler(), LogisticRegression()),
        "datasets": frames,
        "label_column": "target",
        "scaling_config": ScalingConfig(num_workers=num_workers),
        "run_config": run_config(storage, num_workers),
    }
    return SklearnTrainer(**{**arguments, **changes}).fit()


@pytest.mark.mpi
def test_folds_over_ranks_have_the_scores_of_one_process(tmp_path: Path, frames: Any) -> None:
    # A shuffle without a seed: all ranks must make the same folds.
    result = fit(tmp_path, frames, cv=KFold(5, shuffle=True), return_train_score_cv=True)
    folds = result.metrics["cv"]
    assert len(folds["test_score"]) == len(folds["train_score"]) == 5
    assert folds["test_score_mean"] == pytest.approx(np.mean(folds["test_score"]))
    fixed = fit(tmp_path / "b", frames, cv=3, scoring=["accuracy", "neg_log_loss"])
    model = make_pipeline(StandardScaler(), LogisticRegression())
    train = frames["train"]
    x, y = train.drop(columns="target"), train["target"]
    alone = cross_validate(model, x, y, cv=3, scoring=["accuracy", "neg_log_loss"])
    for name in ("test_accuracy", "test_neg_log_loss"):
        assert fixed.metrics["cv"][name] == pytest.approx(list(alone[name]), abs=1e-12)
    valid = frames["valid"]
    score = model.fit(x, y).score(valid.drop(columns="target"), valid["target"])
    assert fixed.metrics["valid"]["test_accuracy"] == pytest.approx(score)
    assert set(fixed.metrics) == {"cv", "fit_time", "valid"}


@pytest.mark.mpi
def test_every_rank_runs_its_share_of_the_tasks_and_errors_come_from_all(tmp_path: Path) -> None:
    def train() -> Any:
        from joblib import Parallel, delayed

        from hpctrain.sklearn import parallel_over_ranks

        rank = hpctrain.get_context().get_world_rank()

        def task(number: int) -> tuple[int, int, list[int]]:
            # Tasks of tasks stay on the rank.
            inner = Parallel(n_jobs=2)(delayed(lambda n: rank)(n) for n in range(3))
            return number, rank, inner

        def failing(number: int) -> int:
            if number == 3:
                raise ZeroDivisionError("task 3")
            return number

        with parallel_over_ranks():
            done = Parallel()(delayed(task)(number) for number in range(400))
            try:
                Parallel()(delayed(failing)(number) for number in range(6))
            except ZeroDivisionError as error:
                complaint = str(error)
            drawn = np.random.rand()
        comm = hpctrain.worker.context.active_worker("test").comm
        return done, comm.allgather((complaint, drawn))

    result = DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=run_config(tmp_path, 2),
    ).fit()
    done, seen = result.return_value
    assert done == [(number, number % 2, [number % 2] * 3) for number in range(400)]
    assert seen[0] == seen[1]
    assert seen[0][0] == "task 3"


@pytest.mark.mpi
def test_tasks_that_prefer_threads_use_all_cpus_of_each_rank(tmp_path: Path) -> None:
    def train() -> Any:
        from joblib import Parallel, delayed

        from hpctrain.sklearn import parallel_over_ranks

        both = threading.Barrier(2, timeout=20)

        def task(number: int) -> int:
            both.wait()
            return number

        with parallel_over_ranks():
            return Parallel(prefer="threads")(delayed(task)(number) for number in range(4))

    result = DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 2}),
        run_config=run_config(tmp_path, 2),
    ).fit()
    assert result.return_value == [0, 1, 2, 3]


@pytest.mark.mpi
def test_the_candidates_of_a_search_are_spread_and_the_best_is_stored(
    tmp_path: Path, frames: Any
) -> None:
    search = GridSearchCV(LogisticRegression(max_iter=500), {"C": [0.01, 1.0]}, cv=2)
    result = fit(tmp_path, frames, estimator=search)
    assert result.checkpoint is not None
    stored = SklearnTrainer.get_model(result.checkpoint)
    train, valid = frames["train"], frames["valid"]
    alone = search.fit(train.drop(columns="target"), train["target"])
    assert stored.best_params_ == alone.best_params_
    assert (
        stored.predict(valid.drop(columns="target")) == alone.predict(valid.drop(columns="target"))
    ).all()


def test_a_checkpoint_holds_the_estimator_and_its_features(tmp_path: Path, frames: Any) -> None:
    forest = RandomForestClassifier(n_estimators=5, random_state=0)
    result = fit(
        tmp_path,
        frames,
        estimator=forest,
        params={"max_depth": 2},
        scaling_config=ScalingConfig(num_workers=0, resources_per_worker={"CPU": 2}),
        num_workers=0,
    )
    assert result.checkpoint is not None
    checkpoint = SklearnCheckpoint(result.checkpoint.path)
    assert checkpoint.get_features().names == tuple(frames["train"].columns.drop("target"))
    assert checkpoint.get_estimator().max_depth == 2
    assert checkpoint.get_estimator().n_jobs == 2, "the CPUs of a worker"
    assert SklearnTrainer.restore(result.path).fit().metrics == result.metrics


def test_a_restored_run_takes_cpus_and_gpus_from_the_config_of_now(
    tmp_path: Path, frames: Any
) -> None:
    result = fit(tmp_path, frames, num_workers=0)
    workers = ScalingConfig(num_workers=1, resources_per_worker={"CPU": 3, "GPU": 1}, use_gpu=True)
    fitting: Any = SklearnTrainer.restore(result.path, scaling_config=workers).train_loop_per_worker
    assert fitting.cpus == 3
    assert not fitting.has_parallel_folds


@pytest.mark.parametrize("cpus", [None, 2])
def test_a_run_of_an_older_version_fits_and_is_restored(
    tmp_path: Path, frames: Any, cpus: int | None
) -> None:
    trainer = SklearnTrainer(
        estimator=RandomForestClassifier(n_estimators=2, random_state=0),
        datasets=frames,
        label_column="target",
        cv=2,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=run_config(tmp_path, 0),
    )
    fitting = vars(trainer.train_loop_per_worker)
    del fitting["set_estimator_cpus"], fitting["use_gpu"]
    # No number of CPUs was one, or the estimator's own.
    fitting.update(parallelize_cv=True, cpus=cpus)
    result = trainer.fit()
    assert result.checkpoint is not None
    assert SklearnTrainer.get_model(result.checkpoint).n_jobs == cpus
    restored: Any = SklearnTrainer.restore(result.path).train_loop_per_worker
    assert restored.cpus == 1
    assert restored.has_parallel_folds


def test_an_estimator_that_runs_code_of_others_is_only_opened_if_it_is_trusted(
    tmp_path: Path,
) -> None:
    checkpoint = SklearnCheckpoint.from_estimator(FunctionTransformer(np.linalg.norm))
    assert checkpoint.get_estimator().func is np.linalg.norm
    Path(checkpoint.path).chmod(0o777)
    with pytest.raises(CheckpointError, match="creating them would run their code") as raised:
        checkpoint.get_estimator()
    assert "trusted=['numpy.linalg.norm']" in str(raised.value)
    assert checkpoint.get_estimator(["numpy.linalg.norm"]).func is np.linalg.norm


def test_labels_may_be_text_and_columns_wide(tmp_path: Path) -> None:
    from hpctrain.data import from_numpy

    x, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    result = fit(tmp_path, {"train": from_numpy({"x": x, "target": names})}, num_workers=0, cv=2)
    assert result.checkpoint is not None
    features = SklearnCheckpoint(result.checkpoint.path).get_features()
    assert features.names == ("x_0", "x_1", "x_2", "x_3")
    assert result.metrics["cv"]["test_score_mean"] > 0.8


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"label_column": "colour"}, "dataset 'train' has no column 'colour'"),
        ({"datasets": {}}, "datasets has nothing, but no 'train'"),
        ({"estimator": 1}, "is not an estimator of scikit-learn"),
        (
            {"parallelize_cv": True, "scaling_config": ScalingConfig(use_gpu=True)},
            "parallel folds would share GPUs",
        ),
        ({"scaling_config": {}}, "of type dict; type ScalingConfig is needed"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    tmp_path: Path, frames: Any, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        fit(tmp_path, frames, num_workers=0, **changes)


def test_a_dataset_cannot_be_called_as_the_metrics_of_the_folds(
    tmp_path: Path, frames: Any
) -> None:
    with pytest.raises(ConfigError, match=r"^a dataset is called 'cv'") as caught:
        fit(tmp_path, {**frames, "cv": frames["valid"]}, num_workers=0)
    # As Ray Train's.
    assert isinstance(caught.value, KeyError)


def test_labels_that_are_missing_are_counted(tmp_path: Path, frames: Any) -> None:
    train = frames["train"].astype(float)
    train.loc[:4, "target"] = np.nan
    with pytest.raises((ConfigError, WorkerError), match="5 of 120 rows have no label"):
        fit(tmp_path, {"train": train}, num_workers=0)


class FailsOnce(LogisticRegression):
    """Its first fit fails, as on a node that is lost."""

    def __init__(self, mark: str = "") -> None:
        super().__init__()
        self.mark = mark

    def fit(self, x: Any, y: Any) -> Any:
        if not Path(self.mark).exists():
            Path(self.mark).touch()
            raise OSError("lost")
        return super().fit(x, y)


def test_a_restart_before_the_report_fits_though_the_run_began_with_a_foreign_checkpoint(
    tmp_path: Path, frames: Any
) -> None:
    foreign = SklearnCheckpoint.from_estimator(LogisticRegression(), path=str(tmp_path / "foreign"))
    result = fit(
        tmp_path,
        frames,
        num_workers=1,
        estimator=FailsOnce(str(tmp_path / "mark")),
        resume_from_checkpoint=foreign,
        run_config=replace(run_config(tmp_path, 1), failure_config=FailureConfig(max_failures=1)),
    )
    assert result.metrics is not None
    assert result.metrics["valid"]["test_score"] > 0.8
    assert result.checkpoint is not None
    assert result.checkpoint.path.is_relative_to(tmp_path / "run")


def test_a_dataset_keeps_its_categories_and_has_a_column_for_each_component() -> None:
    frame = pandas.DataFrame(
        {
            "c": pandas.Categorical(["a", "b", "a"], categories=["b", "a", "z"]),
            "v": [np.array([1.0, 2.0])] * 3,
            "n": pandas.array([1, 2, None], dtype="Int64"),
        }
    )
    found = as_frame(from_pandas(frame), "train")
    assert found["c"].dtype == frame["c"].dtype
    assert list(found.columns) == ["c", "v_0", "v_1", "n"]
    assert found["v_1"].tolist() == [2.0, 2.0, 2.0]
    assert found["n"].dtype == np.float64
