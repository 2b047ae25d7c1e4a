"""Every error that hpctrain raises on purpose.

::

    HpctrainError
    ├── ConfigError            a value is invalid; raised before anything is submitted or started
    │   ├── UnknownFieldError      a keyword that a configuration, trainer or predictor lacks
    │   ├── WrongTypeError         a value of another type, where Ray Train raises a TypeError
    │   ├── NotSerializableError   a value that is sent to the workers cannot be pickled
    │   ├── MissingDatasetError    a dataset that a trainer needs was not given
    │   ├── ReservedNameError      a dataset has a name that a trainer uses for something else
    │   ├── NoBestTrialError       no trial of a sweep has a value of its metric
    │   └── UnavailableNameError   a name of Ray Train that hpctrain does not have
    ├── LaunchError            the scheduler, MPI or a node refused; ``transient``: try again
    ├── CheckpointError        a checkpoint is missing, damaged, or could not be committed
    ├── DamagedFileError       a file of a run directory is not what hpctrain wrote
    ├── WorkerContextError     a function of the training function was called outside of one
    ├── PreprocessorNotFittedException  a preprocessor was applied before it was fitted
    └── TrainingFailedError    ranks were started, and the run failed
        ├── WorkerError        a rank failed: which one, where, with the user's own traceback
        │   ├── NodeLostError      its node, or that of another rank, was lost
        │   └── WorkerHangError    a rank made no progress for too long: with its stack
        ├── PreemptionError    the run was preempted more often than FailureConfig allows
        └── RunStoppedError    the run was stopped and can be resumed
            └── SupersededError    another executor has taken over the run

A message gives the values, then the rule, then the next step. An uncaught error is shown once,
without the frames of hpctrain, and ends the process with its `exit_code`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hpctrain.frames import format_user_traceback


class HpctrainError(Exception):
    """Base of all errors raised on purpose."""

    brief: str = ""
    """What happened, in one line, if the message is longer."""
    exit_code: ClassVar[int] = 4
    """Exit code of a process that does not catch it, a script or ``hpctrain``."""
    is_shown_elsewhere = False
    """Whether another process shows it: rank 0 among ranks that the user started."""

    def describe(self) -> str:
        """Return the text that is shown if it is not caught. Not collective."""
        return format_user_traceback(self, HpctrainError)

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython and Jupyter show; they look for this name."""
        return self.describe().splitlines()


class ConfigError(HpctrainError, ValueError):
    """An invalid value, detected before anything was submitted or lost."""

    exit_code = 2


class UnknownFieldError(ConfigError, TypeError):
    """A keyword that a configuration, trainer or predictor does not have: also a TypeError."""


class WrongTypeError(ConfigError, TypeError):
    """A value of another type, where Ray Train raises a TypeError: also a TypeError."""


class NotSerializableError(ConfigError, TypeError):
    """A value that is sent to the workers cannot be pickled: also a TypeError."""


class MissingDatasetError(ConfigError, KeyError):
    """A dataset that a trainer needs was not given: also a KeyError."""

    # KeyError's would quote the message.
    __str__ = Exception.__str__


class ReservedNameError(ConfigError, KeyError):
    """A dataset has a name that a trainer uses for something else: also a KeyError."""

    # KeyError's would quote the message.
    __str__ = Exception.__str__


class NoBestTrialError(ConfigError, RuntimeError):
    """No trial has a value of the metric, where Ray Tune raises a RuntimeError: also one."""


class UnavailableNameError(ConfigError, ImportError):
    """A name of Ray Train that hpctrain does not have: also an ImportError."""


class LaunchError(HpctrainError):
    """The scheduler, MPI or a node refused the start.

    Parameters
    ----------
    message
        Values, rule, next step.
    transient
        Whether the same request can succeed later without a change (a controller that does not
        answer), as opposed to one that never will (an unknown partition).
    """

    exit_code = 3

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient

    @property
    def controller_failure(self) -> BaseException:
        """Its cause, under the name of Ray Train's ControllerError."""
        return self.__cause__ or self

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep ``transient`` through pickling."""
        return _rebuild, (type(self), str(self), {"transient": self.transient})


class CheckpointError(HpctrainError):
    """A checkpoint is missing, damaged, or could not be committed."""


class DamagedFileError(HpctrainError):
    """A file of a run directory is not what hpctrain wrote, and cannot be rebuilt from others."""


class WorkerContextError(HpctrainError, RuntimeError):
    """``report()``, ``get_context()`` and the like were called outside of a training function."""

    exit_code = 2


class PreprocessorNotFittedException(HpctrainError, RuntimeError):  # noqa: N818  # Ray's name
    """A preprocessor was applied before it was fitted."""


class TrainingFailedError(HpctrainError, RuntimeError):
    """Ranks were started, and the run failed."""

    def describe(self) -> str:
        """Return the text that is shown if it is not caught: its message only. Not collective.

        The message has the traceback of the training function; that of ``fit()`` is not useful.
        """
        return f"{type(self).__module__}.{type(self).__qualname__}: {self}"


class WorkerError(TrainingFailedError):
    """A rank failed.

    Parameters
    ----------
    message
        Names the rank, its node, its log and the last complete checkpoint, and ends with the
        traceback of the user's code.
    worker_failures
        The exception of each failed rank, by world rank: the original one if it can be pickled,
        otherwise a `RuntimeError` with its text.
    rank
        World rank of the rank that failed first; -1 if none could be identified.
    hostname
        Its node.
    lasting
        Whether the ranks would fail again after every restart, because their environment lacks
        something on every node.
    """

    def __init__(
        self,
        message: str,
        worker_failures: Mapping[int, BaseException] | None = None,
        *,
        rank: int = -1,
        hostname: str = "",
        lasting: bool = False,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.hostname = hostname
        self.worker_failures = dict(worker_failures or {})
        self.lasting = lasting

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the attributes through pickling."""
        state = {
            "rank": self.rank,
            "hostname": self.hostname,
            "worker_failures": self.worker_failures,
            "lasting": self.lasting,
        }
        return _rebuild, (type(self), str(self), state)


class NodeLostError(WorkerError):
    """A node of the run was lost: it sends no heartbeats, or Slurm reports it as down."""


class WorkerHangError(WorkerError):
    """A rank made no progress for longer than ``FailureConfig`` allows.

    The message names the rank, its phase and since when, the phases of other ranks, and the files
    with the stacks of all ranks; it ends with the stack of that rank.
    """


class PreemptionError(TrainingFailedError):
    """The run was preempted, or lost its job in another way, too often.

    ``FailureConfig(max_preemption_failures=...)`` is the limit.
    """


class RunStoppedError(TrainingFailedError):
    """The run was stopped before its training function ended; ``fit()`` again resumes it."""

    exit_code = 5


class SupersededError(RunStoppedError):
    """Another executor has taken over the run and continues it; this one has ended."""

    exit_code = 6


def _rebuild(cls: type[HpctrainError], message: str, state: dict[str, Any]) -> HpctrainError:
    return cls(message, **state)
