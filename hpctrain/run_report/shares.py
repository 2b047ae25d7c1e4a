"""How much of a run's time, and of its CPUs and GPUs, went into what. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpctrain.run_report.time_use import Interval, Use
from hpctrain.run_report.training_parts import AttemptWaits, TrainingPart, split_training

_USEFUL = (Use.TRAINING,)
_WASTED = (Use.REPEATED, Use.LOST, Use.RESTART)


@dataclass(frozen=True, kw_only=True)
class Width:
    """What the ranks of an attempt hold."""

    cores: int
    gpus: int


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one use took. Hours are None where the files do not show how many there were."""

    use: Use
    seconds: float
    core_hours: float | None
    gpu_hours: float | None


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """Where the time of a run went."""

    shares: tuple[Share, ...] = ()
    """By use, in the order of `Use`; those that took no time are left out."""
    has_unknown_attempts: bool = False
    """Whether an attempt made no report that was found: whether it trained is not known."""
    parts: tuple[TrainingPart, ...] = ()
    """What the training consists of; empty if nothing is known of it."""
    median_report_s: float | None = None
    """Median of the seconds between two reports; None with fewer than two."""

    @property
    def seconds(self) -> float:
        """Wall time, from the first event to the last news."""
        return sum(share.seconds for share in self.shares)

    @property
    def core_hours(self) -> float | None:
        """Of the ranks, while an executor held them."""
        return _sum(share.core_hours for share in self.shares)

    @property
    def gpu_hours(self) -> float | None:
        """As `core_hours`."""
        return _sum(share.gpu_hours for share in self.shares)

    @property
    def useful(self) -> tuple[float | None, float | None]:
        """Core-hours and GPU-hours of the training that was done for the first time.

        None where `has_unknown_attempts`.
        """
        return self._of(_USEFUL)

    @property
    def lost(self) -> tuple[float | None, float | None]:
        """Core-hours and GPU-hours that restarts cost: lost, repeated, and waited for.

        None where `has_unknown_attempts`.
        """
        return self._of(_WASTED)

    def _of(self, uses: Sequence[Use]) -> tuple[float | None, float | None]:
        if self.has_unknown_attempts:
            return None, None
        found = [share for share in self.shares if share.use in uses]
        return _sum(s.core_hours for s in found), _sum(s.gpu_hours for s in found)


def measure(
    intervals: Sequence[Interval],
    widths: Mapping[int | None, Width],
    report_intervals: Sequence[float] = (),
    waits: Mapping[int, AttemptWaits] | None = None,
) -> Efficiency:
    """Return what each use of the time took. Not collective.

    Parameters
    ----------
    intervals
        As `split_time` returns them.
    widths
        As `find_widths` returns them.
    report_intervals
        Seconds between two reports that follow each other.
    waits
        As `read_waits` returns them.
    """
    holders = _holders(intervals)

    def width(interval: Interval) -> Width | None:
        if interval.attempt is None and interval.job is None:
            # Without an executor the run holds nothing.
            return Width(cores=0, gpus=0)
        attempt = holders.get(interval.job) if interval.attempt is None else interval.attempt
        return widths.get(attempt, widths.get(None))

    shares = []
    for use in Use:
        found = [
            (interval.seconds, width(interval)) for interval in intervals if interval.use is use
        ]
        if found:
            shares.append(
                Share(
                    use=use,
                    seconds=sum(seconds for seconds, _ in found),
                    core_hours=_sum(w and seconds * w.cores / 3600 for seconds, w in found),
                    gpu_hours=_sum(w and seconds * w.gpus / 3600 for seconds, w in found),
                )
            )
    median = statistics.median(report_intervals) if report_intervals else None
    return Efficiency(
        shares=tuple(shares),
        has_unknown_attempts=any(
            interval.use is Use.OTHER and interval.attempt is not None for interval in intervals
        ),
        parts=split_training(intervals, waits or {}),
        median_report_s=median,
    )


def find_widths(
    attempts: Sequence[int],
    plan: Mapping[str, Any],
    world_sizes: Mapping[int, int],
) -> dict[int | None, Width]:
    """Return what the ranks of each attempt held, for those of which it is known.

    Not collective. None stands for an attempt, or an executor without one, that only the plan
    shows; an elastic run has none.

    Parameters
    ----------
    attempts
        Their numbers.
    plan
        ``plan.json``; empty if it cannot be read.
    world_sizes
        Number of ranks of the attempts for which a file has it.
    """
    placement = plan.get("launch_plan", {}).get("placement")
    if not isinstance(placement, dict):
        return {}
    cores, gpus = _count(placement.get("cpus_per_task")), _count(placement.get("gpus_per_task"))
    if cores is None or gpus is None:
        return {}
    tasks, planned = placement.get("tasks_per_node"), None
    is_elastic = _count(plan.get("scaling_config", {}).get("num_workers")) is None
    if isinstance(tasks, list) and not is_elastic:
        counts = [_count(number) for number in tasks]
        planned = None if None in counts else sum(filter(None, counts))
    found: dict[int | None, int | None] = {None: planned}
    found |= {attempt: world_sizes.get(attempt, planned) for attempt in attempts}
    return {
        attempt: Width(cores=number * cores, gpus=number * gpus)
        for attempt, number in found.items()
        if number
    }


def has_gpus(plan: Mapping[str, Any]) -> bool:
    """Return whether ranks use GPUs, as far as ``plan.json`` shows. Not collective."""
    placement = plan.get("launch_plan", {}).get("placement")
    return isinstance(placement, dict) and bool(_count(placement.get("gpus_per_task")))


def _count(value: object) -> int | None:
    """Return a value of a file if it is a count."""
    return value if type(value) is int and value >= 0 else None


def _holders(intervals: Sequence[Interval]) -> dict[int | None, int]:
    """Return one attempt of each executor: before and after it, the executor holds the same."""
    return {
        interval.job: interval.attempt
        for interval in reversed(intervals)
        if interval.job is not None and interval.attempt is not None
    }


def _sum(values: Any) -> float | None:
    """Return the sum, or None if one of the values is not known."""
    found = list(values)
    return None if any(value is None for value in found) else float(sum(found))
