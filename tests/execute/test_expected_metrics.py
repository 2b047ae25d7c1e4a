from __future__ import annotations

import json

import pytest

from hpctrain.config import CheckpointConfig, RunConfig
from hpctrain.errors import ConfigError
from hpctrain.execute.expected_metrics import ExpectedMetrics
from hpctrain.execute.tracker import ReportRound
from hpctrain.worker.metrics import encode_line


def expecting(score: str) -> ExpectedMetrics:
    return ExpectedMetrics(
        RunConfig(checkpoint_config=CheckpointConfig(checkpoint_score_attribute=score))
    )


def check(expected: ExpectedMetrics, metrics: dict[str, float], lacks: str | None) -> None:
    # As it comes from a rank.
    line = encode_line(1, 1, b"null", json.dumps(metrics).encode(), lacks=lacks)
    round_ = ReportRound(report=1, lines={0: line}, parts={})
    expected.check(1, round_.metrics(), has_checkpoint=True, lacks=round_.lacks)


@pytest.mark.parametrize("lacks", ["", "val_"])
def test_a_name_that_may_come_later_is_not_refused(lacks: str) -> None:
    expected = expecting("val_loss")
    check(expected, {"loss": 1.0}, lacks)
    assert not expected.is_settled
    check(expected, {"loss": 1.0, "val_loss": 2.0}, None)
    assert expected.is_settled


@pytest.mark.parametrize(("score", "lacks"), [("lss", "val_"), ("val_loss", None)])
def test_a_name_that_cannot_come_later_is_refused(score: str, lacks: str | None) -> None:
    with pytest.raises(ConfigError, match=f"no metric '{score}'"):
        check(expecting(score), {"loss": 1.0}, lacks)


def test_whether_a_trial_is_done_need_not_be_reported() -> None:
    expected = ExpectedMetrics(RunConfig(stop={"done": True}))
    assert expected.is_settled
