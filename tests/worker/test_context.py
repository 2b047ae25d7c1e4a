from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import DataParallelTrainer, collective
from hpctrain.errors import ConfigError, WorkerContextError
from hpctrain.rundir.metrics import read_reports
from hpctrain.rundir.paths import RunPaths
from hpctrain.worker.context import ActiveWorker, activate, is_active
from hpctrain.worker.report import Session
from hpctrain.worker.train_context import TrainContext
from hpctrain.world import SerialComm
from tests.worlds import make_world


class SilentChannel:
    """An executor that takes note of nothing."""

    def report(self, line: bytes) -> None:
        """Take a report."""

    def stage(self, report: int, line: bytes, parts: bytes) -> None:
        """Take a report with a checkpoint."""

    def slot(self, number: int, wanted: bool) -> None:
        raise AssertionError("nobody need ask")

    def progress(self, op: str, **details: str | int) -> None:
        """Take a sign of life."""


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    (tmp_path / "checkpoints").mkdir()
    return RunPaths(tmp_path)


@pytest.fixture
def make_worker(paths: RunPaths) -> Iterator[Callable[..., ActiveWorker]]:
    sessions = []

    def make(
        *,
        rank: int = 0,
        size: int = 1,
        datasets: dict[str, Any] | None = None,
        datasets_to_split: Any = "all",
    ) -> ActiveWorker:
        world = make_world(rank, size)
        session = Session(
            world=world,
            paths=paths,
            channel=SilentChannel(),
            first_report=0,
            checkpoint=None,
            commit_timeout_s=10.0,
        )
        sessions.append(session)
        return ActiveWorker(
            context=TrainContext(
                world=world,
                name="run",
                storage=paths.root,
                metadata={"dataset": "digits"},
                gpu_ids=(),
            ),
            session=session,
            comm=SerialComm(),
            datasets=datasets or {},
            datasets_to_split=datasets_to_split,
        )

    yield make
    for session in sessions:
        session.close()


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (hpctrain.report, ({},)),
        (hpctrain.get_context, ()),
        (hpctrain.get_checkpoint, ()),
        (hpctrain.should_stop, ()),
        (hpctrain.get_dataset_shard, ()),
        (collective.barrier, ()),
        (collective.broadcast_from_rank_zero, (1,)),
    ],
)
def test_outside_of_a_training_function_each_says_its_own_name(function: Any, arguments: Any):
    message = rf"{function.__name__}\(\) was called outside of a training function\."
    with pytest.raises(WorkerContextError, match=message):
        function(*arguments)


def test_a_checkpoint_directory_needs_a_training_function_too():
    with (
        pytest.raises(WorkerContextError, match=r"checkpoint_dir\(\) was called outside"),
        hpctrain.checkpoint_dir(),
    ):
        pass


def test_a_training_function_sees_where_it_stands(
    make_worker: Callable[..., ActiveWorker], paths: RunPaths
):
    with activate(make_worker(rank=2, size=4)):
        assert is_active()
        context = hpctrain.get_context()
        assert context.get_world_rank() == context.get_local_rank() == 2
        assert context.get_world_size() == context.get_local_world_size() == 4
        assert context.get_node_rank() == 0
        assert context.get_experiment_name() == "run"
        assert context.get_storage() == paths.root
        assert context.get_metadata() == {"dataset": "digits"}
        assert hpctrain.get_checkpoint() is None
        assert not hpctrain.should_stop()
    assert not is_active()


def in_a_sweep(worker: ActiveWorker, sweep: Path) -> ActiveWorker:
    """Return a worker of a run in the directory of a sweep."""
    sweep.mkdir()
    (sweep / "tune.jsonl").touch()
    return replace(worker, context=replace(worker.context, storage=sweep / "run"))


def test_a_trial_is_of_an_experiment_that_is_called_as_its_sweep(
    make_worker: Callable[..., ActiveWorker], tmp_path: Path
):
    with activate(in_a_sweep(make_worker(), tmp_path / "sweep")):
        context = hpctrain.get_context()
        assert context.get_experiment_name() == "sweep"
        assert context.get_trial_name() == context.get_trial_id() == "run"


def test_a_trainer_in_a_trial_is_refused_with_how_to_tune_it(
    make_worker: Callable[..., ActiveWorker], tmp_path: Path
):
    trainer = DataParallelTrainer(lambda: None)
    with activate(make_worker()), pytest.raises(ConfigError, match=r"after the fit\(\) that"):
        trainer.fit()
    worker = in_a_sweep(make_worker(), tmp_path / "sweep")
    with activate(worker), pytest.raises(ConfigError, match="give Tuner the trainer itself: Tu"):
        trainer.fit()


def test_the_training_function_is_over_even_if_it_raised(make_worker: Callable[..., ActiveWorker]):
    with pytest.raises(KeyError), activate(make_worker()):
        raise KeyError
    assert not is_active()


def test_a_report_reaches_the_run_directory(
    make_worker: Callable[..., ActiveWorker], paths: RunPaths
):
    with activate(make_worker()):
        hpctrain.report({"loss": 0.5})
    assert [report["metrics"] for report in read_reports(paths)] == [{"loss": 0.5}]


def test_a_checkpoint_directory_is_empty_and_lies_inside_the_commit(
    make_worker: Callable[..., ActiveWorker], paths: RunPaths
):
    with activate(make_worker()), hpctrain.checkpoint_dir() as directory:
        assert Path(directory).parent.parent == paths.checkpoints
        assert list(Path(directory).iterdir()) == []


def test_a_dataset_is_split_over_the_ranks_unless_it_is_left_whole(
    make_worker: Callable[..., ActiveWorker],
):
    worker = make_worker(
        rank=1,
        size=2,
        datasets={"train": list(range(5)), "test": [1, 2], "lazy": lambda: [1, 2, 3]},
        datasets_to_split=("train", "lazy"),
    )
    with activate(worker):
        assert list(hpctrain.get_dataset_shard()) == [3, 4]
        assert hpctrain.get_dataset_shard("test") == [1, 2]
        assert list(hpctrain.get_dataset_shard("lazy")) == [3]


def test_a_dataset_that_is_not_there_is_told_with_those_that_are(
    make_worker: Callable[..., ActiveWorker],
):
    message = r"'test' was not given to the trainer\. It has \['a', 'b'\]"
    worker = make_worker(datasets={"b": [], "a": []})
    with activate(worker), pytest.raises(KeyError, match=message):
        hpctrain.get_dataset_shard("test")
    with activate(make_worker()), pytest.raises(KeyError, match="It has none"):
        hpctrain.get_dataset_shard()


def test_a_dataset_that_cannot_be_split_is_told_by_name(make_worker: Callable[..., ActiveWorker]):
    message = "dataset 'train': a dataset of type int cannot be split"
    with activate(make_worker(datasets={"train": 5})), pytest.raises(ConfigError, match=message):
        hpctrain.get_dataset_shard()


def test_collectives_of_one_rank_need_no_mpi(make_worker: Callable[..., ActiveWorker]):
    with activate(make_worker()):
        collective.barrier()
        assert collective.broadcast_from_rank_zero({"seed": 3}) == {"seed": 3}


def test_collectives_of_elastic_workers_say_what_to_use(make_worker: Callable[..., ActiveWorker]):
    from hpctrain.horovod.elastic_worker import _NoCommunicator

    worker = replace(make_worker(size=2), comm=_NoCommunicator())
    with activate(worker):
        with pytest.raises(ConfigError, match=r"Use Horovod's: hvd\.barrier\(\)"):
            collective.barrier()
        with pytest.raises(ConfigError, match=r"hvd\.broadcast_object\(value"):
            collective.broadcast_from_rank_zero(1)


def test_a_dataset_of_files_gives_the_same_iterator_each_time_for_the_device_of_the_rank(
    make_worker: Callable[..., ActiveWorker], monkeypatch: pytest.MonkeyPatch
):
    from hpctrain.data import from_numpy

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    rows = from_numpy({"x": range(10)})
    worker = make_worker(
        rank=1,
        size=2,
        datasets={"train": rows, "valid": rows},
        datasets_to_split=("train",),
    )
    with activate(worker):
        shard = hpctrain.get_dataset_shard("train")
        next(shard.iter_batches(batch_size=2))
        assert hpctrain.get_dataset_shard("train") is shard
        assert (shard.num_rows, shard.device) == (5, "cpu")
        assert hpctrain.get_dataset_shard("valid").num_rows == 10
    with_gpu = replace(worker, context=replace(worker.context, gpu_ids=("7",)), iterators={})
    with activate(with_gpu):
        assert hpctrain.get_dataset_shard("train").device == "cuda:1"


def test_a_forked_process_does_not_report_in_place_of_its_worker(
    make_worker: Callable[..., ActiveWorker], paths: RunPaths
) -> None:
    with activate(make_worker()):
        hpctrain.report({"loss": 1.0})
        if (child := os.fork()) == 0:
            try:
                with pytest.raises(WorkerContextError, match="Return its values to the training"):
                    hpctrain.report({"loss": -5.0})
                # What does not change the run is there, as for the workers of a DataLoader.
                hpctrain.get_context()
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        hpctrain.report({"loss": 2.0})
    assert [line["metrics"]["loss"] for line in read_reports(paths)] == [1.0, 2.0]
