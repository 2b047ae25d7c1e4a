"""A stop criterion may name what Ray Train adds to each report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import CheckpointConfig, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig
from hpctrain.errors import ConfigError
from hpctrain.execute.stop_rule import StopRule


def test_reports_are_counted_in_the_run_and_in_the_attempt() -> None:
    in_run, in_attempt = (
        StopRule({"training_iteration": 7}),
        StopRule({"iterations_since_restore": 3}),
    )
    for rule in (in_run, in_attempt):
        rule.begin_attempt(first_report=5, seconds_before=0)
    assert in_run.explain(6, {}) is None
    assert in_run.explain(7, {}) == "training_iteration=7 reached 7"
    assert in_attempt.explain(7, {}) is None
    assert in_attempt.explain(8, {}) == "iterations_since_restore=3 reached 3"


def test_seconds_are_those_of_all_attempts_or_of_this_one() -> None:
    total, here = StopRule({"time_total_s": 100}), StopRule({"time_since_restore": 100})
    for rule in (total, here):
        rule.begin_attempt(first_report=0, seconds_before=99.9999)
        rule.begin_attempt(first_report=0, seconds_before=100.0)
    why = total.explain(1, {})
    assert why is not None
    assert why.startswith("time_total_s=100.")
    assert here.explain(1, {}) is None


def test_a_metric_of_the_name_is_the_one_that_counts() -> None:
    rule = StopRule({"training_iteration": 3})
    assert rule.explain(3, {"training_iteration": 1}) is None
    assert rule.explain(1, {"training_iteration": 3}) == "training_iteration=3 reached 3"


def test_a_function_is_given_what_a_criterion_may_name() -> None:
    rule = StopRule(lambda report, metrics: report == metrics["training_iteration"] == 3)
    rule.begin_attempt(first_report=1, seconds_before=9)
    assert rule.explain(2, {}) is None
    assert rule.explain(3, {"training_iteration": 2}) is None, "the metric of this name counts"
    assert rule.explain(3, {}) == "the stop function returned true"
    rule = StopRule(lambda report, metrics: metrics["iterations_since_restore"] == 3)
    rule.begin_attempt(first_report=1, seconds_before=9)
    assert rule.explain(3, {}) is None
    assert rule.explain(4, {}) == "the stop function returned true"


def train(config: dict[str, Any]) -> None:
    saved = hpctrain.get_checkpoint()
    begin = 0 if saved is None else saved.to_dict()["step"] + 1
    for step in range(begin, 50):
        if step == 2 and saved is None and config["fails"]:
            raise RuntimeError("once")
        hpctrain.report({"step": step}, checkpoint=hpctrain.Checkpoint.from_dict({"step": step}))
        if hpctrain.should_stop():
            return


# In this interpreter nothing starts the training function again.
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_run_stops_at_an_iteration_over_all_attempts(tmp_path: Path, num_workers: int) -> None:
    result = DataParallelTrainer(
        train,
        train_loop_config={"fails": num_workers > 0},
        scaling_config=ScalingConfig(num_workers=num_workers),
        run_config=RunConfig(
            storage_path=tmp_path,
            verbose=0,
            stop={"training_iteration": 6},
            failure_config=FailureConfig(max_failures=1),
            checkpoint_config=CheckpointConfig(
                num_to_keep=2, checkpoint_score_attribute="training_iteration"
            ),
        ),
    ).fit()
    assert (result.state, len(result.attempts)) == ("finished", 2 if num_workers else 1)
    # Ranks may have begun the next report before all agree on the last one.
    assert 6 <= len(result.metrics_history) <= 8
    assert [m["step"] for m in result.metrics_history] == [*range(len(result.metrics_history))]
    newest = result.best_checkpoints[-1][0]
    assert newest.to_dict() == {"step": result.metrics["step"]}
    assert result.get_best_checkpoint("training_iteration", "max") == newest


def test_a_name_that_nothing_has_is_still_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"report 1 has no metric 'training_iterations'"):
        DataParallelTrainer(
            lambda: hpctrain.report({"step": 1}),
            scaling_config=ScalingConfig(num_workers=0),
            run_config=RunConfig(storage_path=tmp_path, stop={"training_iterations": 3}),
        ).fit()
