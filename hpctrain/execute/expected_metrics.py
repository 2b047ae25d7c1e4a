"""`ExpectedMetrics`: names of metrics that a RunConfig gives, which reports must have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpctrain.config import RunConfig
from hpctrain.errors import ConfigError
from hpctrain.metric_names import COUNTED, DONE, explain_unknown, flatten, has_metric


class ExpectedMetrics:
    """Refuses a name that no report has, at the first report that could have it.

    Later reports may lack a metric: it is known then that the name is no slip.

    Parameters
    ----------
    run_config
        Its score attribute and its stop rule name metrics.
    """

    def __init__(self, run_config: RunConfig) -> None:
        stop = run_config.stop
        self._stop = set(stop).difference((*COUNTED, DONE)) if isinstance(stop, Mapping) else set()
        score = run_config.checkpoint_config.checkpoint_score_attribute
        self._score = set() if score in (None, COUNTED[0]) else {score}

    @property
    def is_settled(self) -> bool:
        """Whether every name was seen."""
        return not (self._stop or self._score)

    def note(self, metrics: Mapping[str, Any]) -> None:
        """Record the names that metrics have. Not collective."""
        for names in (self._stop, self._score):
            names -= {name for name in names if has_metric(metrics, name)}

    def check(
        self,
        report: int,
        metrics: Mapping[str, Any],
        *,
        has_checkpoint: bool,
        lacks: str | None = None,
    ) -> None:
        """Record a report. Not collective.

        Parameters
        ----------
        has_checkpoint
            Only checkpoints have scores.
        lacks
            What names begin with that later reports may have; None if all metrics are measured.

        Raises
        ------
        ConfigError
            If it lacks a metric that it should have.
        """
        self.note(metrics)

        def unknown(names: set[str]) -> list[str]:
            return sorted(n for n in names if lacks is None or not n.startswith(lacks))

        for name in unknown(self._stop):
            _refuse(f"RunConfig(stop={{{name!r}: ...}})", name, report, metrics)
        for name in unknown(self._score) if has_checkpoint else ():
            what = f"CheckpointConfig(checkpoint_score_attribute={name!r})"
            _refuse(what, name, report, metrics)


def _refuse(what: str, name: str, report: int, metrics: Mapping[str, Any]) -> None:
    raise ConfigError(
        f"{what}: report {report} has no metric {name!r}. "
        f"{explain_unknown(name, flatten(metrics))}\n"
        f"Mend the name and call fit() again, which resumes the run. A metric that is measured "
        f"later is reported as None until then."
    )
