"""`TuneConfig`: how a sweep searches, and when it ends."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hpctrain.checks import (
    check_count,
    check_seconds,
    did_you_mean,
    plain_number,
    show_changes,
)
from hpctrain.errors import ConfigError
from hpctrain.rules import checked, choice, optional, or_default, text, with_value
from hpctrain.tune.schedulers.scheduler import TrialScheduler

_METHODS = ("suggest", "on_trial_result", "on_trial_complete")
# Ray Tune's names, and the one that everybody knows.
_SCHEDULERS = {
    "fifo": "FIFOScheduler",
    "asha": "ASHAScheduler",
    "async_hyperband": "ASHAScheduler",
    "asynchyperband": "ASHAScheduler",
    "median_stopping_rule": "MedianStoppingRule",
    "medianstopping": "MedianStoppingRule",
    "hyperband": "HyperBandScheduler",
    "pbt": "PopulationBasedTraining",
}


def _num_samples(what: str, value: Any) -> Any:
    value = plain_number(value)
    if value == -1:
        raise ConfigError(
            f"{with_value(what, value)}: a sweep without an end is not supported. Give the largest "
            f"number of samples that you want, and time_budget_s=."
        )
    check_count(what, value, at_least=1)
    return value


def _seed(what: str, value: Any) -> Any:
    value = plain_number(value)
    check_count(what, value, at_least=0)
    return value


def _search_alg(what: str, value: Any) -> Any:
    lacking = [name for name in _METHODS if not callable(getattr(value, name, None))]
    if isinstance(value, type) or lacking:
        raise ConfigError(
            f"{with_value(what, value)}: an object with the methods {', '.join(_METHODS)} "
            f"is needed, such as hpctrain.tune.search.optuna.OptunaSearch()."
        )
    return value


def _scheduler(what: str, value: Any) -> Any:
    if isinstance(value, TrialScheduler):
        return value
    from hpctrain.tune import schedulers

    if isinstance(value, str) and value in _SCHEDULERS:
        return getattr(schedulers, _SCHEDULERS[value])()
    if isinstance(value, type) and issubclass(value, TrialScheduler):
        meant = f"Construct it: {value.__name__}()."
    elif isinstance(value, str) and (close := did_you_mean(value.lower(), _SCHEDULERS)):
        meant = close
    else:
        meant = f"By name there are {', '.join(_SCHEDULERS)}."
    raise ConfigError(
        f"{with_value(what, value)}: a scheduler is needed, such as "
        f"hpctrain.tune.schedulers.ASHAScheduler(), or its name. {meant}"
    )


def _budget(what: str, value: Any) -> Any:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    value = plain_number(value)
    check_seconds(what, value)
    return value


def _most_trials(what: str, value: Any) -> Any:
    value = plain_number(value)
    # Ray Tune's 0 is no limit, too.
    check_count(what, value, at_least=0)
    return value or None


def _most_jobs(what: str, value: Any) -> Any:
    value = plain_number(value)
    check_count(what, value, at_least=1)
    return value


@checked(
    metric=optional(text),
    mode=optional(choice("min", "max")),
    search_alg=optional(_search_alg),
    scheduler=optional(_scheduler),
    num_samples=or_default(_num_samples),
    max_concurrent_trials=optional(_most_trials),
    time_budget_s=optional(_budget),
    seed=optional(_seed),
    launcher=optional(choice("jobs")),
    max_jobs=optional(_most_jobs),
)
@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    """How a sweep searches, and when it ends."""

    metric: str | None = None
    """What is optimized; ``a/b`` looks inside mappings. The first report of each trial must have
    it, as None where it is not measured yet."""
    mode: str | None = None
    """Whether small (``min``) or large (``max``) values are better."""
    search_alg: Any = None
    """What proposes configurations, such as `hpctrain.tune.search.optuna.OptunaSearch`. None: the
    variants of ``param_space``."""
    scheduler: TrialScheduler | str | None = None
    """What decides which trials go on, such as `hpctrain.tune.schedulers.ASHAScheduler`; its name,
    ``"asha"``, is one with its defaults. None: each trial runs to its end."""
    num_samples: int = 1
    """How often the grids of ``param_space`` are gone through; without a grid, the number of
    trials."""
    max_concurrent_trials: int | None = None
    """Trials at the same time, if the CPUs, GPUs and memory of the machine allow so many. Of jobs,
    the smaller one of it and `max_jobs` counts."""
    time_budget_s: float | timedelta | None = None
    """Seconds after which all trials are stopped. A restored sweep has what is left of them."""
    seed: int | None = None
    """Makes the draws repeatable: the same seed and space give the same configurations. None: a new
    one, which ``tune.jsonl`` records."""
    launcher: str | None = None
    """``"jobs"``: each trial is a Slurm job, submitted from a login node. None: trials run on this
    machine, or on the nodes of the allocation."""
    max_jobs: int | None = None
    """Jobs that are pending or running at the same time, with ``launcher="jobs"``. None: 8."""

    __repr__ = show_changes

    def __post_init__(self) -> None:
        """Check the fields against each other."""
        if self.metric is not None and self.mode is None:
            raise ConfigError(
                f"TuneConfig(metric={self.metric!r}) needs mode='min' or mode='max': whether small "
                f"or large values are better."
            )
        if self.max_jobs is not None and self.launcher is None:
            raise ConfigError(
                f"TuneConfig(max_jobs={self.max_jobs}) is for trials that are jobs of Slurm: add "
                f"launcher='jobs'. Of others max_concurrent_trials= says how many run at the same "
                f"time."
            )
        if self.search_alg is not None and self.seed is not None:
            raise ConfigError(
                f"TuneConfig(search_alg=..., seed={self.seed}): the seed is of the variants of "
                f"param_space. Give the search algorithm one of its own."
            )
