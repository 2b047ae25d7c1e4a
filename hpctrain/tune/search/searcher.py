"""`Searcher`: what proposes the configuration of each trial, given what came of those before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from hpctrain.checks import NamedArguments, shown
from hpctrain.errors import ConfigError
from hpctrain.tune.metric import set_metric

FINISHED = "FINISHED"
STOP = "STOP"


class SearchAlgorithm(Protocol):
    """The three methods that a search of your own needs; `Searcher` names the others too."""

    def suggest(self, trial_id: str) -> Mapping[str, Any] | str | None:
        """Return a configuration, None if there is none now, or ``"FINISHED"``."""

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> str | None:
        """Note a report of a trial; ``"STOP"`` ends it after that."""

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Note that a trial has ended, with its last report."""


class Searcher(NamedArguments):
    """A base for search algorithms, by Ray Tune's name.

    Parameters
    ----------
    metric, mode
        What is optimized, and whether large (``max``) or small (``min``) values are better. None:
        those of the TuneConfig.
    """

    FINISHED: ClassVar[str] = FINISHED
    stops_trials = False
    """Whether `on_trial_result` may return ``"STOP"``. A trial waits for it after each report."""

    def __init__(self, metric: str | None = None, mode: str | None = None) -> None:
        self.metric = metric
        self.mode = mode

    def set_search_properties(
        self, metric: str | None, mode: str | None, space: Mapping[str, Any]
    ) -> None:
        """Take the metric, the mode and the search space of the sweep. Not collective.

        Raises
        ------
        ConfigError
            If metric and mode are missing, or given twice.
        """
        set_metric(self, metric, mode)
        if isinstance(self.metric, (list, tuple)):
            raise ConfigError(
                f"{type(self).__name__}(metric={shown(self.metric)}): a sweep optimizes one "
                f"metric. Name one, or report a number that combines them."
            )
        if self.metric is None or self.mode not in ("min", "max"):
            raise ConfigError(
                f"{type(self).__name__} needs a metric and a mode, 'min' or 'max': "
                f"TuneConfig(metric='loss', mode='min')."
            )

    def suggest(self, trial_id: str) -> Mapping[str, Any] | str | None:
        """Return a configuration, None if there is none now, or ``Searcher.FINISHED``.

        Not collective.
        """
        raise NotImplementedError

    def on_trial_result(  # of interest to some
        self, trial_id: str, result: Mapping[str, Any]
    ) -> str | None:
        """Note a report of a trial; return ``"STOP"`` to end it after that. Not collective."""
        return None

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Note that a trial has ended, with its last report. Not collective."""
        raise NotImplementedError

    def restore_trial(self, trial_id: str, config: Mapping[str, Any]) -> None:
        """Note a trial that was begun before the sweep was restored. Not collective.

        An algorithm without a method of its own is asked `suggest` again, and learns from the
        trials for which it proposes what it did.
        """
        raise NotImplementedError

    def retry_trial(self, trial_id: str, config: Mapping[str, Any]) -> None:  # of interest to some
        """Note that a trial that has failed runs again. Not collective.

        An algorithm without a method of its own is sent no more of such a trial: it has been sent
        its end.
        """


def has_restore(search: object) -> bool:
    """Return whether a search has a ``restore_trial()`` of its own. Not collective."""
    return _has_own(search, "restore_trial")


def has_retry(search: object) -> bool:
    """Return whether a search has a ``retry_trial()`` of its own. Not collective."""
    return _has_own(search, "retry_trial")


def _has_own(search: object, name: str) -> bool:
    own = getattr(type(search), name, None)
    return callable(getattr(search, name, None)) and own is not getattr(Searcher, name)
