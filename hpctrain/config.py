"""The configurations of a run: frozen, checked values. No I/O, no environment.

Field names are Ray Train's, or else Slurm's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from os import PathLike
from typing import Any, Literal, get_args

from hpctrain.callback import HOOKS, UserCallback
from hpctrain.checkpoint_config import CheckpointConfig as CheckpointConfig
from hpctrain.checks import show_changes
from hpctrain.container import Container as Container
from hpctrain.data_config import DataConfig as DataConfig
from hpctrain.errors import ConfigError
from hpctrain.log import log_once
from hpctrain.path_string import expand_home
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
    with_value,
)
from hpctrain.scaling_config import PlacementStrategy as PlacementStrategy
from hpctrain.scaling_config import ScalingConfig as ScalingConfig
from hpctrain.slurm_config import TIME
from hpctrain.slurm_config import GpuRequest as GpuRequest
from hpctrain.slurm_config import SlurmConfig as SlurmConfig
from hpctrain.slurm_config import time_limit_minutes as time_limit_minutes
from hpctrain.train_function import kind_not_run_by_a_call

Launcher = Literal["auto", "local", "allocation", "slurm", "mpiexec", "spmd", "inline"]
ExistingPolicy = Literal["auto", "resume", "restart", "error"]
Stop = Mapping[str, float] | Callable[[int, Mapping[str, Any]], bool]

EXISTING_POLICIES: tuple[ExistingPolicy, ...] = get_args(ExistingPolicy)
LAUNCHERS: tuple[Launcher, ...] = get_args(Launcher)
# A smaller value was probably meant as megabytes.
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
        5, explain="seconds, 5 or more. A shorter timeout would drop busy nodes."
    ),
    slow_node_factor=optional(
        number(
            1.25,
            explain="how many times as long a step may take because of one node; 1.25 or more, "
            "since noise hides less. None leaves no slow node out.",
        )
    ),
)
@dataclass(frozen=True, kw_only=True)
class FailureConfig:
    """How many failures a run may survive; -1 is unlimited.

    They are counted over all jobs of a run, from the last ``fit()`` that a person called.
    Independently of the budgets, a run stops after five consecutive failures without a newer
    checkpoint.
    """

    max_failures: int = 0
    """Restarts after a failed rank, from the newest checkpoint."""
    fail_fast: bool | Literal["raise"] = False
    """Of a sweep: True ends it at the first trial that fails, and with ``"raise"`` its ``fit()``
    raises that error. Of a run both only mean that `max_failures` is 0."""
    controller_failure_limit: int = -1
    """Restarts after ranks could not be started for a transient reason, or their executor died."""
    max_preemption_failures: int = -1
    """Restarts after the job was preempted, requeued, or ended by Slurm in another way. The end of
    the time limit does not count."""
    hang_timeout_s: float | None = None
    """Seconds without progress after which a rank counts as hanging: the stacks of all ranks are
    written, and the ranks are ended, which counts as a failed rank. Progress is a report, a change
    of phase, or `hpctrain.heartbeat`, so the value must exceed the longest step, validation and
    checkpoint. With None nothing is ended; the stacks are still written after half an hour."""
    start_timeout_s: float = 1800.0
    """Seconds that each phase around the training function may take: the start of the ranks up to
    their MPI world, imports, the set-up of the backend and its end. While a preprocessor is fitted,
    each batch of a rank is progress, and a rank may wait this long for the others."""
    node_timeout_s: float = 30.0
    """Seconds without a heartbeat after which a node counts as lost; its agent sends one every
    two."""
    slow_node_factor: float | None = None
    """How many times as long a step may take because of one slow node. One that is at or above it
    for half a minute is left out of the job, where a spare node or fewer workers can take its
    place: the ranks stop after a checkpoint and start again, which costs no budget. None only names
    slow nodes, as does any value where nothing times the steps."""

    def __post_init__(self) -> None:
        """Check the fields against each other."""
        if self.fail_fast and self.max_failures:
            raise ConfigError(
                f"FailureConfig(fail_fast={self.fail_fast!r}, max_failures={self.max_failures}): a "
                f"run that ends at its first failure cannot restart. Leave one of them out."
            )

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
    """Seconds that a checkpoint may take. A rank waits this long in ``report()`` for the commit,
    which follows the report of the slowest rank. Then it fails, and the error names what it waited
    for."""
    scratch_dir: str | PathLike[str] | None = None
    """Directory on each node's own disk, such as ``"$TMPDIR"``; variables are those of the rank.
    `hpctrain.checkpoint_dir` is then there, and ``report()`` copies from there into the run
    directory, in the background with ``ASYNC``."""
    sync_artifacts: bool = False
    """Whether `hpctrain.artifact_dir` is in `scratch_dir` too. New files there are copied to
    ``artifacts/`` in the background, with each checkpoint and at the end. Without a `scratch_dir`
    artifacts are written there directly."""
    max_writers: int | None = None
    """Ranks of the whole job that may write their parts of a checkpoint at the same time; the
    others wait for a write slot, at most `sync_timeout`. None lets all write. It limits the writes
    of ``report()`` and `hpctrain.torch.report_state`. A training function writes into
    `hpctrain.checkpoint_dir` without a slot; only the fsync needs one."""
    max_bytes_per_s: float | None = None
    """Bytes a second at which each rank copies checkpoints and artifacts, from `scratch_dir` or
    from your own directory; None is unlimited. With `max_writers` the whole job copies at most at
    the product of the two."""

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
            f"{with_value(what, value)} is a URL. Runs need a "
            f"filesystem that all nodes share: give a directory there."
        )
    return str(expand_home(value)) if value.startswith("~") else value


def _callback(what: str, value: Any) -> Any:
    value = kind(UserCallback)(what, value)
    for hook in HOOKS:
        if found := kind_not_run_by_a_call(getattr(value, hook)):
            raise ConfigError(
                f"{what}: {type(value).__name__}.{hook} is {found}, of which a call runs nothing. "
                f"Let it be a function that does its work when it is called."
            )
    return value


def _log_to_file(what: str, value: Any) -> Any:
    # Ray's names of the files, or of one, of a trial.
    names = value if isinstance(value, (tuple, list)) else (value,)
    if names and all(isinstance(name, str) for name in names):
        log_once(
            f"{with_value(what, value)}: the file names are ignored. Each rank writes its own "
            f"file, logs/ATTEMPT/rank-RANK.out in the run directory."
        )
        return True
    return kind(bool)(what, value)


def _stop(what: str, value: Any) -> Any:
    if callable(value):
        return value
    if isinstance(value, Mapping):
        # Ray Tune's {"done": True}.
        value = {k: int(goal) if isinstance(goal, bool) else goal for k, goal in value.items()}
    limit = number(float("-inf"), explain="the number of a metric at which to stop.")
    return mapping(" of metrics", limit)(what, value)


def _verbose(what: str, value: Any) -> Any:
    # Ray Tune's, which has True, False, and 3 for more than 2.
    if isinstance(value, bool) or (isinstance(value, int) and value == _MOST_VERBOSE_OF_RAY):
        value = min(int(value), 2)
    return choice(0, 1, 2)(what, value)


def _level(what: str, value: Any) -> Any:
    name = value.upper() if isinstance(value, str) else value
    return choice(*_VERBOSE_OF)(what, name) if isinstance(name, str) else kind(str)(what, value)


_MOST_VERBOSE_OF_RAY = 3
_VERBOSE_OF = {"DEBUG": 2, "INFO": 1, "WARNING": 0, "ERROR": 0, "CRITICAL": 0}


@checked(log_level=_level)
@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """How much of a run the terminal shows, in Ray Train's terms.

    The files of the run directory always have the full output of the ranks.
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
    callbacks=or_default(several(_callback, of="callbacks")),
    stop=optional(_stop),
    verbose=or_default(_verbose),
    logging_config=optional(kind(LoggingConfig)),
    log_to_file=or_default(_log_to_file),
    launcher=or_default(choice(*LAUNCHERS)),
    snapshot=or_default(kind(bool)),
    existing=or_default(choice(*EXISTING_POLICIES)),
)
@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The name of a run, its storage, and how it handles failures and checkpoints."""

    name: str | None = None
    """Name of the run; with `storage_path` it identifies the run. Another ``fit()`` with the same
    two follows, resumes, or returns the stored result. None creates a new name."""
    storage_path: str | PathLike[str] = "hpctrain_runs"
    """Directory of runs. On a cluster it must be on a filesystem that every node sees."""
    failure_config: FailureConfig = field(default_factory=FailureConfig)
    """How many failures the run may survive."""
    checkpoint_config: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Which checkpoints are kept."""
    sync_config: SyncConfig = field(default_factory=SyncConfig)
    """How checkpoints reach the run directory."""
    total_time: str | int | timedelta | None = None
    """Time limit of the run, over all its jobs, in the formats of ``SlurmConfig(time=...)``. None
    is unlimited: a run whose job ends continues in another one until it is finished."""
    callbacks: Sequence[UserCallback] = ()
    """Hooks that run in the executor."""
    stop: Stop | None = None
    """When to stop: ``{"accuracy": 0.99}`` (reached or passed; ``a/b`` looks inside mappings; the
    first report must have the name), or a function of the report's number and rank 0's metrics.
    ``training_iteration``, the number of the report, and ``time_total_s``, the seconds of all
    attempts, need not be reported; nor need ``iterations_since_restore`` and
    ``time_since_restore``, the values of this attempt. A function has them among the metrics.
    ``should_stop()`` then returns true in training functions."""
    verbose: int = 1
    """0: nothing. 1: progress, and the output of rank 0. 2: the output of every rank."""
    logging_config: LoggingConfig | None = None
    """The same as `verbose`, in Ray Train's terms. With None `verbose` counts."""
    log_to_file: bool = True
    """Whether each rank writes its output to its own file in the run directory. Otherwise it goes
    to the output of the launcher. File names, as in Ray Train, count as True."""
    launcher: Launcher = "auto"
    """Where the ranks start; ``auto`` detects it. ``--launcher`` and ``HPCTRAIN_LAUNCHER`` override
    it."""
    snapshot: bool = True
    """Whether the run keeps your own modules as they are when ``fit()`` is called: its ranks import
    them so, also after restarts, in a job that has waited, and in later jobs. False: as they are
    then. The training function itself, and what is defined in the script or in a notebook, is kept
    in any case."""
    existing: ExistingPolicy = "auto"
    """What ``fit()`` does with an existing run of this name. ``auto`` resumes an interrupted run,
    and returns the result of a finished one, or raises an error if this ``fit()`` requests
    something else. ``resume`` then continues from the last checkpoint. ``restart`` renames the old
    run, unless it is running, and begins a new one. ``error`` accepts no existing run.
    ``--existing`` and ``HPCTRAIN_EXISTING`` override it."""

    def __post_init__(self) -> None:
        """Check the fields against each other."""
        if self.logging_config is None:
            return
        verbose = _VERBOSE_OF[self.logging_config.log_level]
        if self.verbose not in (1, verbose):
            raise ConfigError(
                f"RunConfig(verbose={self.verbose}, logging_config={self.logging_config!r}): both "
                f"set how much is shown, and they differ. Leave one of them out."
            )
        object.__setattr__(self, "verbose", verbose)

    __repr__ = show_changes
