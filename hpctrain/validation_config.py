"""`ValidationConfig`: how checkpoints are validated in the background."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from hpctrain.checks import check_type, is_number, show_changes
from hpctrain.errors import ConfigError
from hpctrain.rules import (
    checked,
    count,
    kind,
    mapping,
    optional,
    or_default,
    seconds,
    with_value,
)
from hpctrain.slurm_config import SlurmConfig
from hpctrain.validation_task_config import ValidationTaskConfig as ValidationTaskConfig

if TYPE_CHECKING:
    from hpctrain.checkpoint import Checkpoint


class ValidationFn(Protocol):
    """A function that validates a checkpoint."""

    # With both, type checkers accept a function with any further arguments, or none.
    def __call__(self, checkpoint: Checkpoint, *args: Any, **kwargs: Any) -> Mapping[str, Any]:
        """Return the metrics of a checkpoint. Not collective."""


def _function(what: str, value: Any) -> Any:
    if not callable(value):
        raise ConfigError(
            f"{with_value(what, value)}: a function is needed that takes a checkpoint and returns "
            f"a dict of metrics."
        )
    return value


def _amount(what: str, value: Any) -> Any:
    if not is_number(value) or value < 0 or value != int(value):
        raise ConfigError(f"{with_value(what, value)}: a whole number is needed, 0 or more.")
    return value


def _resources(what: str, value: Any) -> Any:
    value = mapping(rule=_amount)(what, value)
    if unknown := sorted(set(value) - {"CPU", "GPU", "memory"}):
        raise ConfigError(
            f"{what} has the keys {unknown}. A job has CPU, GPU and memory (bytes); ask for "
            f"anything else with slurm_config=SlurmConfig(sbatch_args=...)."
        )
    return value


@checked(
    fn=_function,
    task_config=or_default(kind(ValidationTaskConfig)),
    use_gpu=or_default(kind(bool)),
    wait_timeout_s=or_default(seconds),
    slurm_config=optional(kind(SlurmConfig)),
    resources=or_default(_resources),
    max_jobs=or_default(count(1)),
)
@dataclass(frozen=True, kw_only=True)
class ValidationConfig:
    """How checkpoints are validated that are reported with ``report(..., validation=...)``.

    The validation runs in the background, in a separate process on the node of the executor, one
    checkpoint at a time. With `slurm_config` each is a separate job.
    """

    fn: ValidationFn
    """Called as ``fn(checkpoint, **fn_kwargs)``; returns a dict of metrics, which are added to
    those of the checkpoint, and replace metrics of the same name."""
    task_config: ValidationTaskConfig = field(default_factory=ValidationTaskConfig)
    """Defaults of every validation, which ``report(..., validation=ValidationTaskConfig(...))`` can
    override."""
    use_gpu: bool = False
    """Whether the function sees the GPUs of its node, which it shares with the training; in a
    separate job: the GPUs of that job."""
    wait_timeout_s: float = 3600.0
    """Seconds that ``fit()`` waits for pending validations once the training has ended, also for
    jobs that Slurm has not started. All jobs of the run together wait this long; their nodes are
    idle meanwhile. Checkpoints that are not validated by then keep their reported metrics."""
    slurm_config: SlurmConfig | None = None
    """Runs each validation as a separate job: its partition, its time limit. ``account``, ``site``,
    ``setup`` and ``skip_directives`` default to the trainer's. If the training is not a Slurm job,
    and with None, the validation is a process."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """``{"CPU": 4, "GPU": 1, "memory": 8 * 2**30}`` of such a job; memory is in bytes. By default
    the CPUs of a worker and, with `use_gpu`, its GPUs, at least one."""
    max_jobs: int = 1
    """Maximum of such jobs that are pending or running at a time. Further checkpoints wait."""

    __repr__ = show_changes

    def __post_init__(self) -> None:
        """Check the fields against each other."""
        gpus = self.resources.get("GPU", 1 if self.use_gpu else 0)
        if bool(gpus) != self.use_gpu:
            raise ConfigError(
                f"ValidationConfig(use_gpu={self.use_gpu}, resources={dict(self.resources)!r}): "
                f"set use_gpu={bool(gpus)}, or leave GPU out."
            )
        if self.slurm_config is not None:
            _refuse_fields_of_steps(self.slurm_config)
        elif self.resources or self.max_jobs != 1:
            raise ConfigError(
                "ValidationConfig(resources=..., max_jobs=...) are for validations in jobs of "
                "their own: give slurm_config=SlurmConfig(...), or leave them out."
            )


def _refuse_fields_of_steps(slurm: SlurmConfig) -> None:
    """Refuse options that have no effect in a job of one process."""
    given = {
        "nodes": slurm.nodes not in (None, 1),
        "tasks_per_node": slurm.tasks_per_node not in (None, 1),
        "spare_nodes": slurm.spare_nodes != 0,
        "srun_args": bool(slurm.srun_args),
        "mpi": slurm.mpi != "auto",
        "stop_notice_s": slurm.stop_notice_s is not None,
    }
    for name in (name for name, is_given in given.items() if is_given):
        raise ConfigError(
            f"ValidationConfig(slurm_config=SlurmConfig({name}={getattr(slurm, name)!r})): a "
            f"validation is one process on one node, without srun. Leave {name} out."
        )


def check_validation_config(value: object) -> None:
    """Refuse everything except a ValidationConfig and None. Not collective."""
    if value is not None:
        check_type("validation_config", value, ValidationConfig)
