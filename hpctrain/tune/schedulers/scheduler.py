"""`TrialScheduler`: what decides, report by report, which trials go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from hpctrain.checks import (
    NamedArguments,
    check_choice,
    check_count,
    check_text,
    is_number,
    plain_number,
    shown,
)
from hpctrain.errors import ConfigError
from hpctrain.metric_names import as_float, find_number
from hpctrain.tune.metric import set_metric

Decision = Literal["CONTINUE", "STOP", "PAUSE"]
# Nothing would call them.
_NAMES_OF_RAY = {
    "choose_trial_to_run": "choose(waiting)",
    "on_trial_complete": "on_complete(trial_id, metrics)",
    "on_trial_error": "on_remove(trial_id)",
    "on_trial_remove": "on_remove(trial_id)",
    "on_trial_result": "on_result(trial_id, metrics)",
}


@dataclass(frozen=True, kw_only=True)
class Exploit:
    """That a trial goes on as another one: from its newest checkpoint, with a configuration."""

    trial_id: str
    donor: str
    """The other one."""
    config: Mapping[str, Any]


class Population(Protocol):
    """What a scheduler may ask of the trials of its sweep."""

    @property
    def is_complete(self) -> bool:
        """Whether all trials have been made: no further ones come."""

    def has_waiting(self, *, besides: str) -> bool:
        """Return whether another trial than this one waits for a slot."""

    def can_donate(self, trial_id: str) -> bool:
        """Return whether a trial has a committed checkpoint from which others can go on."""

    def config_of(self, trial_id: str) -> Mapping[str, Any]:
        """Return the configuration that a trial has now."""


class TrialScheduler(NamedArguments):
    """Decides, report by report, which trials go on. Subclass it for a rule of your own.

    Parameters
    ----------
    time_attr
        Metric that counts what a trial has been given: ``training_iteration``, the number of its
        report, ``time_total_s``, its seconds, or a number that it reports.
    metric, mode
        What is compared, and whether large (``max``) or small (``min``) values are better. None:
        those of the TuneConfig.
    """

    CONTINUE: ClassVar[Decision] = "CONTINUE"
    STOP: ClassVar[Decision] = "STOP"
    PAUSE: ClassVar[Decision] = "PAUSE"
    """The trial stops at its next report, and goes on from its newest checkpoint when `choose`
    returns it. One that has no checkpoint yet goes on at once."""
    needs_metric: ClassVar[bool] = True
    """Whether it compares trials."""
    is_replaying: bool = False
    """Whether the reports that it is sent were made before the sweep was restored: its decisions
    on them have been carried out."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Refuse a rule that was written for Ray Tune.

        Raises
        ------
        ConfigError
            If it has a method by Ray Tune's name.
        """
        super().__init_subclass__(**kwargs)
        for name, ours in _NAMES_OF_RAY.items():
            if name in vars(cls):
                raise ConfigError(
                    f"{cls.__name__}.{name}() is Ray Tune's name, and nothing calls it. Here it is "
                    f"{ours}: see hpctrain.tune.schedulers.TrialScheduler."
                )

    def __init__(
        self,
        *,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
    ) -> None:
        check_text(f"{type(self).__name__}(time_attr=...)", time_attr)
        if metric is not None:
            check_text(f"{type(self).__name__}(metric=...)", metric)
        if mode is not None:
            check_choice(f"{type(self).__name__}(mode=...)", mode, ("min", "max"))
        self.time_attr = time_attr
        self.metric = metric
        self.mode = mode

    def set_search_properties(self, metric: str | None, mode: str | None) -> None:
        """Take the metric and the mode of the TuneConfig. Not collective.

        Raises
        ------
        ConfigError
            If one of them is missing, or given twice.
        """
        set_metric(self, metric, mode)
        if self.needs_metric and (self.metric is None or self.mode is None):
            raise ConfigError(
                f"{type(self).__name__} compares trials and needs a metric and a mode: "
                f"TuneConfig(metric='loss', mode='min')."
            )

    def check_sweep(self, space: Mapping[str, Any], search_alg: object) -> None:
        """Refuse a sweep that the rule cannot be used with. Not collective.

        Raises
        ------
        ConfigError
            If the rule cannot be used with the sweep.
        """

    def set_population(self, population: Population) -> None:  # of interest to few
        """Take what answers questions about the trials. Not collective."""

    def on_trial_add(self, trial_id: str) -> None:  # nothing to note, unless a rule has to
        """Note that a trial is about to begin. Not collective."""

    def on_result(self, trial_id: str, metrics: Mapping[str, Any]) -> Decision:
        """Return what becomes of a trial after a report. Not collective."""
        return self.CONTINUE

    def on_complete(self, trial_id: str, metrics: Mapping[str, Any]) -> None:
        """Note that a trial has ended by itself. Not collective.

        Parameters
        ----------
        metrics
            Its last ones.
        """

    def on_remove(self, trial_id: str) -> None:  # after on_complete(), and where that is not called
        """Note that a trial has ended, in whichever way. Not collective."""

    def on_exploit(self, exploit: Exploit) -> None:  # of interest to what makes them
        """Note what `take_exploits` returned before the sweep was restored. Not collective."""

    def take_exploits(self) -> Sequence[Exploit]:
        """Return which trials are to go on as others since the last call. Not collective."""
        return ()

    def take_stops(self) -> Sequence[str]:
        """Return which trials that wait are to end since the last call. Not collective."""
        return ()

    def choose(self, waiting: Sequence[str]) -> str | None:
        """Return which of the trials that wait begins or goes on next; None if all have to wait.

        Not collective.

        Parameters
        ----------
        waiting
            One or more, in the order in which they were made.
        """
        return waiting[0]

    def _score(self, metrics: Mapping[str, Any]) -> tuple[float, float] | None:
        """Return the time and the value that is larger for better trials; None if one lacks."""
        assert self.metric is not None
        when, value = find_number(metrics, self.time_attr), find_number(metrics, self.metric)
        if when is None or value is None:
            return None
        value = as_float(value)
        return as_float(when), value if self.mode == "max" else -value


class FIFOScheduler(TrialScheduler):
    """Lets each trial run to its end."""

    needs_metric = False

    def __init__(self) -> None:
        super().__init__()


def positive(what: str, value: Any) -> Any:
    """Return a number above 0, also one of numpy's, as one of Python's. Not collective.

    Raises
    ------
    ConfigError
        If it is not.
    """
    value = plain_number(value)
    if not is_number(value) or not value > 0:
        raise ConfigError(f"{what} is {shown(value)}. A number above 0 is needed.")
    return value


def growing(name: str, reduction_factor: Any) -> Any:
    """Return a factor from one milestone to the next, as `positive` does. Not collective.

    Raises
    ------
    ConfigError
        If milestones would not grow.
    """
    reduction_factor = positive(f"{name}(reduction_factor=...)", reduction_factor)
    if reduction_factor <= 1:
        raise ConfigError(
            f"{name}(reduction_factor={shown(reduction_factor)}): milestones have to grow. Use a "
            f"number above 1."
        )
    return reduction_factor


def whole(what: str, value: Any, *, at_least: int) -> Any:
    """Return a whole number, also one of numpy's, as one of Python's. Not collective.

    Raises
    ------
    ConfigError
        If it is not, or too small.
    """
    value = plain_number(value)
    check_count(what, value, at_least=at_least)
    return value
