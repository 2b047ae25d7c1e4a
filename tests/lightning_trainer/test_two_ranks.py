"""A Lightning script on two ranks: what they compute, and how a run goes on."""

from __future__ import annotations

from typing import Any

import pytest

from hpctrain import FailureConfig, Result

Fit = Any
# Lightning has an opinion about data sets as small as these.
pytestmark = [pytest.mark.mpi, pytest.mark.filterwarnings("ignore")]


def history(result: Result) -> list[tuple[int, int, float]]:
    return [(m["epoch"], m["step"], m["loss"]) for m in result.metrics_history]


def test_ranks_share_each_epoch_out_and_end_with_the_same_parameters(whole: Result) -> None:
    found = whole.return_value
    assert found["parameters"][0] == found["parameters"][1]
    assert found["ranks"] == [2, 2, 1]
    assert found["device"] == "cpu"
    assert found["step"] == 15
    of_epochs = []
    for epoch in range(3):
        batches = [batch for rank in found["seen"] for of, batch in rank if of == epoch]
        order = [index for batch in batches for index in batch]
        assert sorted(order) == list(range(40))
        of_epochs.append(order)
    assert of_epochs[0] != of_epochs[1] != of_epochs[2], "each epoch is shuffled anew"
    steps = [metrics["step"] for metrics in whole.metrics_history]
    assert steps == list(range(1, 16)), "the last batch of an epoch is reported with the epoch"
    assert "size" in whole.metrics


def test_signals_stay_with_hpctrain_while_lightning_trains(whole: Result) -> None:
    before, meanwhile = whole.return_value["sigterm"]
    assert "Warnings._take" in before
    assert meanwhile == before


def test_after_a_rank_was_killed_the_run_goes_on_at_the_very_step_with_the_same_numbers(
    fit: Fit, whole: Result
) -> None:
    # In the first step of an epoch, whose order worker processes draw ahead.
    result = fit(
        callback={"report_every_n_steps": 1},
        kill={"1": 10},
        failure_config=FailureConfig(max_failures=1),
    )
    assert len(result.attempts) == 2
    assert history(result) == history(whole)
    assert result.return_value["parameters"] == whole.return_value["parameters"]
    again = {epoch for epoch, _ in result.return_value["seen"][0]}
    assert again == {2}, "the second attempt trained the third epoch only"


def test_a_stop_ends_the_fit_within_an_epoch_at_a_checkpoint_from_which_it_goes_on(
    fit: Fit, whole: Result
) -> None:
    # Reports that wait for their checkpoint, or the stop would come epochs later.
    stopped = fit(callback={"checkpoint_every_n_steps": 1}, stop={"step": 6})
    assert stopped.state == "finished"
    at = stopped.return_value["step"]
    assert 6 <= at < 10
    assert stopped.return_value["limit_val_batches"] == 1.0
    resumed = fit(callback={"report_every_n_steps": 1}, resume_from_checkpoint=stopped.checkpoint)
    assert history(resumed) == history(whole)[at:]
    assert resumed.return_value["parameters"] == whole.return_value["parameters"]
    alone = fit(
        num_workers=0,
        callback={"report_every_n_steps": 1},
        resume_from_checkpoint=stopped.checkpoint,
    )
    first = [
        index for epoch, batch in alone.return_value["seen"][0] if epoch == 1 for index in batch
    ]
    before = [
        index
        for rank in whole.return_value["seen"]
        for epoch, batch in rank[:at]
        if epoch == 1
        for index in batch
    ]
    assert sorted(before + first) == list(range(40)), "one rank goes on with what two have left"
    assert "size" in alone.metrics_history[len(first) // 4 - 1], "and the epoch is validated"
