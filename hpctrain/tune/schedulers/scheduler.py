"""`TrialScheduler`: what decides, report by report, which trials go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from hpctrain.checks import check_choice, check_text, is_number, shown
from hpctrain.errors import ConfigError
from hpctrain.metric_names import find_number

Decision = Literal["CONTINUE", "STOP"]


class TrialScheduler:
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
    needs_metric: ClassVar[bool] = True
    """Whether it compares trials."""

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
        for name, given in (("metric", metric), ("mode", mode)):
            own = getattr(self, name)
            if given is not None and own is not None and own != given:
                raise ConfigError(
                    f"{name} is {shown(own)} in {type(self).__name__}, and {shown(given)} in "
                    f"TuneConfig. Leave one of them out."
                )
            setattr(self, name, own if own is not None else given)
        if self.needs_metric and (self.metric is None or self.mode is None):
            raise ConfigError(
                f"{type(self).__name__} compares trials and needs a metric and a mode: "
                f"TuneConfig(metric='loss', mode='min')."
            )

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

    def _score(self, metrics: Mapping[str, Any]) -> tuple[float, float] | None:
        """Return the time and the value that is larger for better trials; None if one lacks."""
        assert self.metric is not None
        when, value = find_number(metrics, self.time_attr), find_number(metrics, self.metric)
        if when is None or value is None:
            return None
        return when, value if self.mode == "max" else -value


class FIFOScheduler(TrialScheduler):
    """Lets each trial run to its end."""

    needs_metric = False

    def __init__(self) -> None:
        super().__init__()


def check_positive(what: str, value: object) -> None:
    """Refuse everything except numbers above 0."""
    if not is_number(value) or not value > 0:  # type: ignore[operator]
        raise ConfigError(f"{what} is {shown(value)}. A number above 0 is needed.")
