"""`FunctionRun`: what trainers, batch predictions and servers share: a function on every rank.

Scripts import this before anything is asked of it, so what starts a run is imported by ``fit()``.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, ClassVar

from hpctrain.checks import NamedArguments, given_or_default, shown
from hpctrain.config import RunConfig, ScalingConfig
from hpctrain.errors import ConfigError
from hpctrain.unresolved import DEEPEST, find_too_deep, find_unresolved

if TYPE_CHECKING:
    from hpctrain.launch.handle import RunHandle
    from hpctrain.launch.request import Request
    from hpctrain.plan.spec import WorkerSpec
    from hpctrain.result import Result


class FunctionRun(NamedArguments, abc.ABC):
    """Runs a function on every rank, in whichever home this process is in.

    Parameters
    ----------
    scaling_config
        How many workers, and what each of them needs.
    run_config
        What the run is called, where it lands, and how it is looked after.
    """

    _keeps_arguments: ClassVar[bool] = True

    def __init__(
        self,
        *,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
    ) -> None:
        self.scaling_config = given_or_default("scaling_config", scaling_config, ScalingConfig)
        self.run_config = given_or_default("run_config", run_config, RunConfig)
        _refuse_domains("scaling_config", self.scaling_config)
        _refuse_domains("run_config", self.run_config)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: not what it was constructed with."""
        return {name: value for name, value in vars(self).items() if name != "_arguments"}

    def __repr__(self) -> str:
        """Return a short line."""
        return f"{type(self).__name__}(num_workers={self.scaling_config.num_workers})"

    def fit(self) -> Result:
        """Run it, and return what came out of it.

        Not collective, except where this process already is a rank (``srun python train.py``): then
        every rank must call it.

        Raises
        ------
        ConfigError
            If something is impossible; nothing has been started then.
        LaunchError
            If the ranks, or the job, could not be started.
        TrainingFailedError
            If the run failed or was stopped; ``fit()`` with the same name resumes it.
        """
        from hpctrain.launch.fit import refuse_nested_fit

        refuse_nested_fit("fit")
        self._check_before_run()
        result: Result = self._launch_run()
        return result

    def submit(self) -> RunHandle:
        """Begin the run and return at once; it goes on without this process.

        Not collective. On a login node the run is a job of Slurm. On a laptop, and inside an
        allocation, its executor is a process in the background, and such runs go one after another.
        A run that is there already is treated as by ``fit()``: followed, resumed or left as it is.

        Returns
        -------
        RunHandle
            The run: its state, ``wait()``, ``result()`` and ``cancel()``.

        Raises
        ------
        ConfigError
            If something is impossible, as with ``num_workers=0`` or where this process already is
            a rank; nothing has been started then.
        LaunchError
            If Slurm refused the job.
        """
        from hpctrain.launch.fit import refuse_nested_fit, submit

        refuse_nested_fit("submit")
        self._check_before_run()
        return submit(self._request())

    def _check_before_run(self) -> None:
        """Check what can be known before the run. Not collective."""
        config = getattr(self, "train_loop_config", None)
        _refuse_domains("train_loop_config", config)
        _refuse_depth("train_loop_config", config)
        # Here and not when it is made, as in Ray Train: a RunConfig may be shared by trainers.
        checkpoints = self.run_config.checkpoint_config
        automatic = checkpoints.checkpoint_frequency or checkpoints.checkpoint_at_end
        if automatic and not self._has_loop():
            raise ConfigError(
                "CheckpointConfig(checkpoint_frequency=..., checkpoint_at_end=...) is for trainers "
                "that have the loop. This one runs a training function, which saves by "
                "report(metrics, checkpoint)."
            )

    def _has_loop(self) -> bool:
        """Return whether the training function is the trainer's own."""
        return False

    def _launch_run(self) -> Any:
        from hpctrain.launch.fit import fit

        return fit(self._request())

    def _request(self) -> Request:
        from hpctrain.launch.request import Request

        return Request(
            trainer=class_path(type(self)),
            scaling_config=self.scaling_config,
            run_config=self.run_config,
            worker_spec=self._make_worker_spec(),
            resume_from=None,
        )

    @abc.abstractmethod
    def _make_worker_spec(self) -> WorkerSpec:
        """Return what each rank runs. Not collective."""


def _refuse_domains(what: str, value: object) -> None:
    """Refuse a value that a sweep is yet to choose."""
    for path, domain in find_unresolved(value):
        raise ConfigError(
            f"{what} holds {shown(domain)} at {'/'.join(map(str, path))}, which a sweep chooses "
            f"from. Give it to the sweep: "
            f"hpctrain.tune.Tuner(trainer, param_space={{{what!r}: ...}})."
        )


def _refuse_depth(what: str, value: object) -> None:
    """Refuse a value that holds itself: nothing that walks through it would come to an end."""
    if (path := find_too_deep(value)) is not None:
        raise ConfigError(
            f"{what} holds itself, or is more than {DEEPEST} levels deep, at "
            f"{'/'.join(map(str, path[:4]))}/... Flatten it, or make such a value in the training "
            f"function."
        )


def class_path(cls: type) -> str:
    """Return what a run's plan calls its trainer: ``module.Class``. Not collective."""
    return f"{cls.__module__}.{cls.__qualname__}"
