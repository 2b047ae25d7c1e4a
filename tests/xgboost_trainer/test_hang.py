"""A rank that hangs in a callback is told from those that wait for it inside of XGBoost."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import WorkerHangError
from tests.gbdt.boosting import hangs

pytestmark = pytest.mark.mpi


def _hangs_in_round(round_number: int) -> Any:
    from xgboost.callback import TrainingCallback

    class Hang(TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            import time

            if epoch == round_number and hpctrain.get_context().get_world_rank() == 1:
                time.sleep(600)
            return False

    return Hang()


def test_who_waits_in_xgboost_and_who_is_elsewhere_is_named(fit: Any, tmp_path: Path) -> None:
    with pytest.raises(WorkerHangError) as caught:
        fit(train_kwargs={"callbacks": [_hangs_in_round(3)]}, run=hangs(tmp_path))
    said = str(caught.value)
    assert caught.value.rank == 1, said
    assert re.search(r"Rank 0 waits for other ranks: xgboost/core\.py:\d+, in update\n", said), said
    assert re.search(r"Rank 1 does not wait for others: test_hang\.py:\d+, in after_iter", said), (
        said
    )
