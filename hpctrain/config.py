"""What a user asks for: frozen values that check themselves. No I/O, no environment.

The names are Ray Train's where Ray Train has the field and Slurm's where Slurm has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from os import PathLike
from typing import Any, Literal, get_args

from hpctrain.callback import UserCallback
from hpctrain.checks import show_changes
from hpctrain.data_config import DataConfig as DataConfig
from hpctrain.errors import ConfigError
from hpctrain.log import log_once
from hpctrain.rules import (
    checked,
    choice,
    count,
    kind,
    mapping,
    number,
    optional,
    or_default,
    path,
    seconds,
    several,
    text,
    with_value,
)
from hpctrain.scaling_config import PlacementStrategy as PlacementStrategy
from hpctrain.scaling_config import ScalingConfig as ScalingConfig
from hpctrain.slurm_config import TIME
from hpctrain.slurm_config import GpuRequest as GpuRequest
from hpctrain.slurm_config import SlurmConfig as SlurmConfig
from hpctrain.slurm_config import time_limit_minutes as time_limit_minutes

Launcher = Literal["auto", "local", "allocation", "slurm", "mpiexec", "spmd", "inline"]
ExistingPolicy = Literal["auto", "resume", "restart", "error"]
Stop = Mapping[str, float] | Callable[[int, Mapping[str, Any]], bool]

EXISTING_POLICIES: tuple[ExistingPolicy, ...] = get_args(ExistingPolicy)
LAUNCHERS: tuple[Launcher, ...] = get_args(Launcher)
# Whoever says less has said megabytes.
_MIN_BYTES_PER_S = 1e6
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")


@checked(
    renamed={"hang_timeout": "hang_timeout_s", "start_timeout": "start_timeout_s"},
    max_failures=or_default(count(-1)),
    fail_fast=or_default(choice(False, True, "raise")),
    controller_failure_limit=or_default(count(-1)),
    max_preemption_failures=or_default(count(-1)),
    hang_timeout_s=optional(seconds),
    start_timeout_s=seconds,
    node_timeout_s=number(
        5, explain="seconds, 5 or more. Less would give up nodes that are only busy."
    ),
)
@dataclass(frozen=True, kw_only=True)
class FailureConfig:
    """How many failures a run may survive before it gives up; -1 is without end.

    They are counted over all jobs of a run, from the last ``fit()`` that a person called. Whatever
    the budgets, a run that fails five times in a row without a newer checkpoint is stopped.
    """

    max_failures: int = 0
    """Restarts after a failed rank, from the newest checkpoint."""
    fail_fast: bool | Literal["raise"] = False
    """Ray Tune's: True and ``"raise"`` only say that `max_failures` is 0."""
    controller_failure_limit: int = -1
    """Restarts after ranks could not be started for a passing reason, or their executor died."""
    max_preemption_failures: int = -1
    """Restarts after the job was preempted, requeued, or taken away in another way. The end of the
    time limit does not count."""
    hang_timeout_s: float | None = None
    """Seconds without progress after which a rank hangs: the stacks of all ranks are written down,
    and they are ended, which counts as a failed rank. Progress is a report, a change of phase, or
    `hpctrain.heartbeat`, so it has to be longer than the longest step, validation and checkpoint.
    None ends nothing; after half an hour the stacks are written all the same."""
    start_timeout_s: float = 1800.0
    """Seconds that each of the phases around the training function may take: the start of the ranks
    up to their MPI world, imports, the set-up of the backend and its end. While a preprocessor is
    fitted, each batch of a rank is progress, and a rank may wait so long for the others."""
    node_timeout_s: float = 30.0
    """Seconds of silence after which a node is given up; its agent says something every two."""

    def __post_init__(self) -> None:
        """Check the fields against each other."""
        if self.fail_fast and self.max_failures:
            raise ConfigError(
                f"FailureConfig(fail_fast={self.fail_fast!r}, max_failures={self.max_failures}): a "
                f"run that ends at its first failure has none to survive. Leave one of them out."
            )

    __repr__ = show_changes


@checked(
    num_to_keep=optional(count(1)),
    checkpoint_score_attribute=optional(text),
    checkpoint_score_order=or_default(choice("max", "min")),
    keep_every_s=optional(seconds),
    checkpoint_frequency=or_default(count(0)),
    checkpoint_at_end=optional(kind(bool)),
)
@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Which checkpoints are kept."""

    num_to_keep: int | None = None
    """How many; None keeps all, unless `keep_every_s` is given. The newest is never deleted, even
    if it is the worst."""
    checkpoint_score_attribute: str | None = None
    """Metric by which the best are kept; None keeps the newest. ``a/b`` is the metric of that name,
    else ``b`` inside the mapping ``a``. A checkpoint without the metric, or with a score that is
    not finite, ranks last. A name that the first checkpoint does not have is refused then;
    ``training_iteration`` is the number of the report where it is no metric."""
    checkpoint_score_order: Literal["max", "min"] = "max"
    """Whether large or small scores are better."""
    keep_every_s: float | None = None
    """Seconds. One checkpoint of each such interval is kept for good, beside the `num_to_keep`."""
    checkpoint_frequency: int = 0
    """Rounds, or epochs, between two checkpoints where the trainer has the loop; 0 is none. A
    training function of the user's saves when it wants to."""
    checkpoint_at_end: bool | None = None
    """Whether a trainer that has the loop saves after the last round. None is yes."""

    __repr__ = show_changes


@checked(
    sync_timeout=seconds,
    scratch_dir=optional(path),
    sync_artifacts=or_default(kind(bool)),
    max_writers=optional(count(1)),
    max_bytes_per_s=optional(
        number(
            _MIN_BYTES_PER_S,
            explain=f"bytes a second of each rank, {_MIN_BYTES_PER_S:.0e} or more; None is as fast "
            f"as it can.",
        )
    ),
)
@dataclass(frozen=True, kw_only=True)
class SyncConfig:
    """How checkpoints and artifacts reach the run directory."""

    sync_timeout: float = 1800.0
    """Seconds that a checkpoint may be under way. A rank waits that long in ``report()`` for it to
    be committed, which takes as long as the slowest rank needs to report. Then it fails, and says
    what it waited for."""
    scratch_dir: str | PathLike[str] | None = None
    """Directory on each node's own disk, such as ``"$TMPDIR"``; variables are those of the rank.
    `hpctrain.checkpoint_dir` then leads there, and ``report()`` copies from there into the run
    directory, behind the training function with ``ASYNC``."""
    sync_artifacts: bool = False
    """Whether `hpctrain.artifact_dir` leads to `scratch_dir` too. What is new there is copied to
    ``artifacts/`` behind the training function, with each checkpoint and at the end. Without a
    `scratch_dir` artifacts are written where they belong, and nothing has to be copied."""
    max_writers: int | None = None
    """Ranks of the whole job that may write their parts of a checkpoint at the same time; the
    others wait for their turn, and have to get it within `sync_timeout`. None lets all write. It
    is for what ``report()`` and `hpctrain.torch.report_state` write, not for what a training
    function writes into `hpctrain.checkpoint_dir`, which is only made durable in its turn."""
    max_bytes_per_s: float | None = None
    """Bytes a second at which each rank copies checkpoints and artifacts, from `scratch_dir` or
    from a directory of its own; None is as fast as it can. With `max_writers` the job as a whole
    copies at most at the product of the two."""

    __repr__ = show_changes


def _run_name(what: str, value: Any) -> Any:
    if not isinstance(value, str) or not _RUN_NAME.fullmatch(value):
        raise ConfigError(
            f"{with_value(what, value)}: a run is a directory and a Slurm job name. Use 1 "
            f"to 128 letters, digits, '.', '_', '+' or '-', beginning with a letter or digit."
        )
    return value


def _storage_path(what: str, value: Any) -> Any:
    value = path(what, value)
    if "://" in value:
        raise ConfigError(
            f"{with_value(what, value)} is a URL. Runs live on a "
            f"filesystem that all nodes share: give a directory there."
        )
    return value


def _log_to_file(what: str, value: Any) -> Any:
    # Ray's names of the files, or of one, of a trial.
    names = value if isinstance(value, (tuple, list)) else (value,)
    if names and all(isinstance(name, str) for name in names):
        log_once(
            f"{with_value(what, value)}: the names have no meaning here. Each rank writes a file "
            f"of its own, logs/ATTEMPT/rank-RANK.out in the run directory."
        )
        return True
    return kind(bool)(what, value)


def _stop(what: str, value: Any) -> Any:
    if callable(value):
        return value
    limit = number(float("-inf"), explain="the number of a metric at which to stop is needed.")
    return mapping(" of metrics", limit)(what, value)


def _level(what: str, value: Any) -> Any:
    name = value.upper() if isinstance(value, str) else value
    return choice(*_VERBOSE_OF)(what, name) if isinstance(name, str) else kind(str)(what, value)


_VERBOSE_OF = {"DEBUG": 2, "INFO": 1, "WARNING": 0, "ERROR": 0, "CRITICAL": 0}


@checked(log_level=_level)
@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """How much of a run is shown in the terminal, in Ray Train's words.

    What ranks print is in the files of the run directory, whatever is shown.
    """

    log_level: str = "INFO"
    """``INFO`` is ``RunConfig(verbose=1)``, ``DEBUG`` is 2; ``WARNING``, ``ERROR`` and ``CRITICAL``
    are 0."""


@checked(
    name=optional(_run_name),
    storage_path=or_default(_storage_path),
    failure_config=or_default(kind(FailureConfig)),
    checkpoint_config=or_default(kind(CheckpointConfig)),
    sync_config=or_default(kind(SyncConfig)),
    total_time=TIME,
    callbacks=or_default(several(kind(UserCallback), of="callbacks")),
    stop=optional(_stop),
    verbose=or_default(choice(0, 1, 2)),
    logging_config=optional(kind(LoggingConfig)),
    log_to_file=or_default(_log_to_file),
    launcher=or_default(choice(*LAUNCHERS)),
    existing=or_default(choice(*EXISTING_POLICIES)),
)
@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What the run is called, where it lands, and how it is looked after."""

    name: str | None = None
    """Name of the run; with `storage_path` it identifies it. ``fit()`` again with the same two
    follows, resumes, or returns the stored result. None makes a new name."""
    storage_path: str | PathLike[str] = "hpctrain_runs"
    """Directory of runs. On a cluster it has to be on a filesystem that every node sees."""
    failure_config: FailureConfig = field(default_factory=FailureConfig)
    """How many failures the run may survive."""
    checkpoint_config: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Which checkpoints are kept."""
    sync_config: SyncConfig = field(default_factory=SyncConfig)
    """How checkpoints reach the run directory."""
    total_time: str | int | timedelta | None = None
    """How long the run may run, over all its jobs, in the forms of ``SlurmConfig(time=...)``. None
    is without a limit: a run whose job ends goes on in another one until it is finished."""
    callbacks: Sequence[UserCallback] = ()
    """Hooks that run in the executor."""
    stop: Stop | None = None
    """When to stop: ``{"accuracy": 0.99}`` (reached or passed; ``a/b`` looks inside mappings; a
    name that the first report does not have is refused then), or a function of the report's number
    and rank 0's metrics. ``training_iteration``, the number of the report, and ``time_total_s``,
    the seconds of all attempts, need not be reported; nor need ``iterations_since_restore`` and
    ``time_since_restore``, those of this attempt. Training functions see it through
    ``should_stop()``."""
    verbose: int = 1
    """0: nothing. 1: progress, and what rank 0 prints. 2: what every rank prints."""
    logging_config: LoggingConfig | None = None
    """Says what `verbose` says, in Ray Train's words. None leaves it to that."""
    log_to_file: bool = True
    """Whether the output of a rank goes to a file of its own in the run directory. Otherwise it
    goes wherever the output of the launcher goes. Names of files, as in Ray Train, are True."""
    launcher: Launcher = "auto"
    """Where the ranks start; ``auto`` finds out. ``--launcher`` and ``HPCTRAIN_LAUNCHER``, which
    are said later, win over this."""
    existing: ExistingPolicy = "auto"
    """What ``fit()`` does with a run of this name that is over. ``auto`` resumes one that was
    interrupted, returns the result of one that is finished, and refuses to if this ``fit()`` asks
    for something else. ``resume`` goes on from its last checkpoint then. ``restart`` moves the run
    aside and begins anew. ``error`` accepts no run of this name. ``--existing`` and
    ``HPCTRAIN_EXISTING`` win over this."""

    def __post_init__(self) -> None:
        """Check the fields against each other."""
        if self.logging_config is None:
            return
        verbose = _VERBOSE_OF[self.logging_config.log_level]
        if self.verbose not in (1, verbose):
            raise ConfigError(
                f"RunConfig(verbose={self.verbose}, logging_config={self.logging_config!r}): both "
                f"say how much is shown, and differ. Leave one of them out."
            )
        object.__setattr__(self, "verbose", verbose)

    __repr__ = show_changes
