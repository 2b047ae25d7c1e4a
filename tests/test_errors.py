from __future__ import annotations

import pickle

from hpctrain.errors import (
    CheckpointError,
    ConfigError,
    HpctrainError,
    LaunchError,
    RunStoppedError,
    TrainingFailedError,
    WorkerContextError,
    WorkerError,
)


def test_every_error_can_be_caught_as_one_of_hpctrain():
    for kind in (
        ConfigError,
        LaunchError,
        CheckpointError,
        WorkerContextError,
        TrainingFailedError,
        WorkerError,
        RunStoppedError,
    ):
        assert issubclass(kind, HpctrainError)
    assert issubclass(WorkerError, TrainingFailedError)
    assert issubclass(RunStoppedError, TrainingFailedError)
    assert issubclass(ConfigError, ValueError)


def test_a_launch_error_keeps_through_pickling_whether_trying_again_can_help():
    error = pickle.loads(pickle.dumps(LaunchError("the controller is away", transient=True)))
    assert (str(error), error.transient) == ("the controller is away", True)


def test_a_worker_error_keeps_its_rank_and_what_ranks_raised_through_pickling():
    error = WorkerError(
        "rank 3 of 4 failed", rank=3, hostname="n1", worker_failures={3: KeyError()}
    )
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.rank, copy.hostname) == ("rank 3 of 4 failed", 3, "n1")
    assert isinstance(copy.worker_failures[3], KeyError)
