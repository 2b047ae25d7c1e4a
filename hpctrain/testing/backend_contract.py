"""`BackendContract`: the tests that every `Backend` must pass, for authors of backends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar

import pytest

from hpctrain import (
    BackendConfig,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
    WorkerError,
    environ,
)
from hpctrain.execute.step_launcher import find_mpiexec, launcher_variables
from hpctrain.plan import spec
from hpctrain.plan.argv import worker_step_argv
from hpctrain.plan.resources import Placement
from hpctrain.testing.backend_runs import (
    Fits,
    Place,
    Questions,
    train_one_step,
    train_three_steps,
)
from hpctrain.testing.watched_backend import WatchedConfig

__all__ = ["BackendContract"]

_TIMEOUT_S = 200.0
_TWO_RANKS = Placement(
    tasks_per_node=(2,),
    cpus_per_task=1,
    gpus_per_task=0,
    mem_bytes_per_task=None,
)


class BackendContract:
    """Run a backend on real ranks of this machine. Subclass it in a test module.

    Its hooks are watched: it is an error if ranks call different collectives of the communicator in
    one.

    Examples
    --------
    ::

        class TestMyBackend(BackendContract):
            backend_config = MyConfig()

            @staticmethod
            def rank_and_size():
                import my_framework

                return my_framework.rank(), my_framework.size()
    """

    backend_config: ClassVar[BackendConfig]
    """Settings of the backend under test, of a class that ranks can import."""
    fits_in_one_process: ClassVar[int] = 2
    """How many runs follow each other in processes that are ranks already. 1 is for a framework
    that a process can set up only once."""

    @staticmethod
    def rank_and_size() -> tuple[int, int] | None:
        """Return what the framework takes for this rank and the number of ranks. Not collective.

        Called in a training function. None, the default: the framework has no ranks.
        """
        return None

    @staticmethod
    def sum_over_ranks(value: float) -> float | None:
        """Return the sum of every rank's `value`, made by the framework. Collective.

        Called in a training function. None, the default: the framework has no such thing.
        """
        return None

    def test_ranks_train_and_resume_from_their_checkpoint(self, tmp_path: Path) -> None:
        """Hold that a run trains, fails, resumes at the next step, and returns."""
        with pytest.raises(WorkerError, match=r"rank 1 of 2 .*stopped on purpose"):
            self._fit_two_ranks(tmp_path, failure="raise")
        result = self._fit_two_ranks(tmp_path, failure="raise")
        assert [metrics["step"] for metrics in result.metrics_history] == [0, 1, 2]
        self._check_places(result, attempt=2, first_step=2)

    def test_a_killed_rank_is_started_again_and_all_go_on_at_the_right_step(
        self, tmp_path: Path
    ) -> None:
        """Hold that a SIGKILL is survived: by rank 0, which has whatever server there is."""
        result = self._fit_two_ranks(tmp_path, failure="kill", max_failures=1)
        assert [metrics["step"] for metrics in result.metrics_history] == [0, 1, 2]
        self._check_places(result, attempt=2, first_step=2)

    def test_processes_that_are_ranks_already_run_one_fit_after_the_other(
        self, tmp_path: Path
    ) -> None:
        """Hold that it works under ``mpiexec python train.py``, where processes outlive runs."""
        names = tuple(f"fit-{number}" for number in range(self.fits_in_one_process))
        fits = Fits(
            backend_config=WatchedConfig(watched=self.backend_config),
            questions=self._questions(),
            storage=tmp_path,
            names=names,
        )
        task = tmp_path / "fits.pkl"
        task.write_bytes(spec.pack(fits, what="the backend"))
        launcher = find_mpiexec("auto")
        # Not with -m: what ranks send each other are classes of this module, and not of __main__.
        code = "import sys; from hpctrain.testing.backend_runs import run_fits as f; f(sys.argv[1])"
        command = [sys.executable, "-c", code, str(task)]
        done = subprocess.run(
            worker_step_argv(launcher, _TWO_RANKS, command, local=True),
            env={
                **environ.environment(),
                **launcher_variables(launcher.kind, local=True),
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            },
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        for name in names:
            self._check_places(Result.from_path(tmp_path / name), attempt=1, first_step=0)

    def test_one_rank_trains_in_this_interpreter_and_leaves_it_as_it_was(
        self, tmp_path: Path
    ) -> None:
        """Hold that ``num_workers=0`` works twice, and leaves the environment as it was."""
        before = environ.environment()
        for name in ("one", "two"):
            result = DataParallelTrainer(
                train_one_step,
                backend_config=self.backend_config,
                scaling_config=ScalingConfig(num_workers=0),
                run_config=RunConfig(storage_path=tmp_path, name=name),
            ).fit()
            assert result.return_value == (0, 1)
        assert environ.environment() == before

    def _fit_two_ranks(self, tmp_path: Path, *, failure: str, max_failures: int = 0) -> Result:
        return DataParallelTrainer(
            train_three_steps,
            train_loop_config={"questions": self._questions(failure)},
            backend_config=WatchedConfig(watched=self.backend_config),
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(
                storage_path=tmp_path,
                name="contract",
                launcher="local",
                failure_config=FailureConfig(max_failures=max_failures),
            ),
        ).fit()

    def _questions(self, failure: str = "") -> Questions:
        return Questions(
            rank_and_size=_by_value(self.rank_and_size),
            sum_over_ranks=_by_value(self.sum_over_ranks),
            failure=failure,
        )

    def _check_places(self, result: Result, *, attempt: int, first_step: int) -> None:
        places: list[Place] = result.return_value
        assert [(p.world_rank, p.world_size) for p in places] == [(0, 2), (1, 2)]
        assert {(p.attempt, p.first_step) for p in places} == {(attempt, first_step)}
        # What the author has written has to answer; None is of the methods of this class.
        counts = self.rank_and_size is not BackendContract.rank_and_size
        sums_up = self.sum_over_ranks is not BackendContract.sum_over_ranks
        for place in places:
            expected = (place.world_rank, place.world_size) if counts else None
            assert place.in_framework == expected, (
                f"the framework's rank and size are {place.in_framework} on rank "
                f"{place.world_rank} of {place.world_size}"
            )
            assert place.sum_over_ranks == (3.0 if sums_up else None), (
                f"1 of rank 0 and 2 of rank 1 is {place.sum_over_ranks} on rank {place.world_rank}"
            )


def _by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy that is pickled with its code: ranks cannot import pytest's test modules."""
    assert isinstance(function, FunctionType)
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__module__ = "__main__"
    return copy
