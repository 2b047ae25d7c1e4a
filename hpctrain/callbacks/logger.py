"""`LoggerCallback`: the base of all loggers."""

from __future__ import annotations

import abc
from collections.abc import Container, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from hpctrain.callback import RunContext, UserCallback
from hpctrain.errors import ConfigError
from hpctrain.log import log
from hpctrain.metric_names import as_float, flatten
from hpctrain.rundir.metrics import read_reports
from hpctrain.rundir.paths import RunPaths

if TYPE_CHECKING:
    from hpctrain.checkpoint import Checkpoint
    from hpctrain.result import Result


class LoggerCallback(UserCallback, abc.ABC):
    """Writes rank 0's metrics of each report into a record of the run.

    A subclass says what is done with them. What holds a file or a connection is made in `open` and
    given up in `close`: the object is pickled before, and may log another run after that.
    """

    package: ClassVar[str] = ""
    """Library that it needs, as it is imported; empty for none."""
    extra: ClassVar[str] = ""
    """The extra of hpctrain that installs it."""

    parameters: Mapping[str, Any] = {}
    """Hyperparameters of the run."""
    _attempt = 0
    # Class attributes, so that a subclass need not call an __init__ of ours.
    _named: frozenset[str] = frozenset()

    @abc.abstractmethod
    def open(self, run_context: RunContext) -> None:
        """Open the record, or continue it: before the first report of each attempt that makes one.

        The attempt goes on with report ``run_context.report``; an earlier one may have made it too.
        """

    @abc.abstractmethod
    def log(
        self, run_context: RunContext, metrics: dict[str, Any], checkpoint: Checkpoint | None
    ) -> None:
        """Write a report.

        Parameters
        ----------
        run_context
            The run, and the number of the report.
        metrics
            Metrics of rank 0, flat: what was ``{"val": {"loss": 1}}`` is ``val/loss``.
        checkpoint
            The checkpoint of the report.
        """

    @abc.abstractmethod
    def close(self, run_context: RunContext, state: str) -> None:
        """End the record. The run may continue in a later ``fit()``.

        Parameters
        ----------
        run_context
            The run.
        state
            How it ended: ``finished``, ``failed`` or ``stopped``.
        """

    def on_submit(self, parameters: Mapping[str, Any]) -> None:
        """Refuse to start without the library; see `hpctrain.UserCallback`."""
        require_package(type(self).__name__, self.package, self.extra)
        self.parameters = dict(parameters)
        self._attempt = 0

    def after_report(
        self,
        run_context: RunContext,
        metrics: Sequence[Mapping[str, Any]],
        checkpoint: Checkpoint | None,
    ) -> None:
        """Write a report; see `hpctrain.UserCallback`."""
        self._open(run_context)
        self.log(run_context, self._as_written(metrics[0]), checkpoint)

    def _as_written(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        return flatten(metrics)

    def on_finish(self, run_context: RunContext, result: Result) -> None:
        """End the record, if there is one; see `hpctrain.UserCallback`."""
        is_open, self._attempt = self._attempt > 0, 0
        if is_open:
            self.close(run_context, result.state)

    def _open(self, run_context: RunContext) -> None:
        if self._attempt != run_context.attempt:
            self.open(run_context)
            # Not before: where it raises, the next report tries again.
            self._attempt = run_context.attempt

    def say_left_out(self, names: Iterable[str], why: str) -> None:
        """Log once for each metric that a tracker cannot take."""
        new = frozenset(names) - self._named
        if new:
            self._named |= new
            shown = ", ".join(sorted(map(repr, new)))
            log(f"{type(self).__name__} leaves out {shown:.300}: {why}.")


def require_package(what: str, package: str, extra: str) -> None:
    """Find out whether a library is installed, without importing it. Not collective.

    Raises
    ------
    ConfigError
        If it is not.
    """
    if package and find_spec(package) is None:
        raise ConfigError(
            f"{what} needs {package}, which is not installed: pip install 'hpctrain[{extra}]'."
        )


def missing_reports(run_context: RunContext, logged: Container[float]) -> list[dict[str, Any]]:
    """Return the reports before that of an attempt which a record lacks, by number.

    Not collective. An executor that is killed after it has committed a report has not logged it.
    """
    if all(number in logged for number in range(1, run_context.report)):
        return []
    reports = read_reports(RunPaths(run_context.path))
    return [r for r in reports if r["report"] < run_context.report and r["report"] not in logged]


def encodable(text: str) -> str:
    """Return a text that UTF-8 can hold. Not collective.

    Python keeps the bytes of a file's name that are no text as lone surrogates.
    """
    return text.encode("utf-8", "backslashreplace").decode()


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are numbers; true is 1.0. Not collective.

    NaN and infinity are numbers.

    Examples
    --------
    >>> numbers({"loss": 1, "best": True, "note": "text"})
    {'loss': 1.0, 'best': 1.0}
    """
    return {
        name: as_float(value) for name, value in metrics.items() if isinstance(value, (int, float))
    }
