from __future__ import annotations

from typing import Any

import pytest

from hpctrain.rundir.speed import (
    Goal,
    Report,
    Speed,
    measure_goals,
    measure_speed,
    read_goals,
    recent,
)


def reports(num: int, interval_s: float = 2.0, **metrics: Any) -> list[Report]:
    """Return reports in which a metric grows by its value each time."""
    return [
        Report(
            number=number,
            time=1000 + number * interval_s,
            metrics={name: value * number for name, value in metrics.items()},
        )
        for number in range(1, num + 1)
    ]


def test_only_the_last_minute_counts_and_five_reports_at_least() -> None:
    assert [report.number for report in recent(reports(100))] == list(range(70, 101))
    assert [report.number for report in recent(reports(100, 300.0))] == list(range(96, 101))
    assert recent([]) == ()


@pytest.mark.parametrize(
    ("metrics", "samples", "unit"),
    [
        ({"loss": 1}, None, "samples"),
        ({"samples": 64}, 32.0, "samples"),
        ({"train/num_samples_seen": 64}, 32.0, "samples"),
        ({"tokens": 10, "loss": 1}, 5.0, "tokens"),
        # As it is: the fifth report.
        ({"train_samples_per_second": 7}, 35.0, "samples"),
        ({"tokens/s": 7}, 35.0, "tokens"),
        ({"val/images_per_s": 7}, 35.0, "images"),
        ({"samples": -1}, None, "samples"),
        ({"resampled": 3}, None, "samples"),
    ],
)
def test_samples_are_counted_by_the_names_of_metrics(
    metrics: dict[str, Any], samples: float | None, unit: str
) -> None:
    speed = measure_speed(reports(5, **metrics))
    assert speed == Speed(reports=0.5, samples=samples, unit=unit)


def test_no_reports_and_clocks_that_go_back_have_no_speed() -> None:
    assert measure_speed([]) == Speed()
    assert measure_speed(reports(1, samples=1)) == Speed()
    assert measure_speed(reports(5, -1.0, samples=1)) == Speed()
    texts = [Report(number=n, time=float(n), metrics={"samples": "x"}) for n in (1, 2)]
    assert measure_speed(texts) == Speed(reports=1.0)


@pytest.mark.parametrize(
    ("stop", "goals"),
    [
        ("{'training_iteration': 100, 'loss': 0.5}", {"training_iteration": 100.0, "loss": 0.5}),
        ("<function stop at 0x7f>", {}),
        ("None", {}),
        ("{'a': 'b', 1: 2, 'c': 1e999}", {}),
        (None, {}),
        (7, {}),
        ("{" * 10_000, {}),
        ("__import__('os').abort()", {}),
        (f"{{'step': {10**400}, 'loss': 1}}", {"loss": 1.0}),
    ],
)
def test_the_stop_criteria_are_read_without_running_them(
    stop: object, goals: dict[str, float]
) -> None:
    assert read_goals(stop) == goals


def test_the_goal_that_is_met_first_is_first() -> None:
    made = reports(10, epoch=1, accuracy=0.01)
    targets = {"accuracy": 0.9, "epoch": 20.0, "training_iteration": 15.0, "time_total_s": 9.0}
    assert measure_goals(targets, made) == [
        Goal(name="training_iteration", target=15.0, value=10.0, left_s=10.0),
        Goal(name="epoch", target=20.0, value=10.0, left_s=20.0),
        # It grows, and nobody knows until when.
        Goal(name="accuracy", target=0.9, value=0.1),
        Goal(name="time_total_s", target=9.0),
    ]
    assert measure_goals({"epoch": 5.0}, made)[0].left_s == 0.0
    assert measure_goals({"epoch": 5.0}, [])[0] == Goal(name="epoch", target=5.0)
    assert measure_goals({"other": 5.0}, made)[0] == Goal(name="other", target=5.0)
