"""A rank that hangs in a callback is told from those that wait for it inside of LightGBM."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import WorkerHangError
from tests.gbdt.boosting import hangs

pytestmark = pytest.mark.mpi


def _hangs_in_round_3(env: Any) -> None:
    import time

    if env.iteration == 3 and hpctrain.get_context().get_world_rank() == 1:
        time.sleep(600)


def test_who_waits_in_lightgbm_and_who_is_elsewhere_is_named(fit: Any, tmp_path: Path) -> None:
    with pytest.raises(WorkerHangError) as caught:
        fit(train_kwargs={"callbacks": [_hangs_in_round_3]}, run=hangs(tmp_path))
    said = str(caught.value)
    assert caught.value.rank == 1, said
    waits = r"Rank 0 waits for other ranks: \w+ of lightgbm/basic\.py:\d+, in update\n"
    assert re.search(waits, said), said
    assert re.search(r"Rank 1 does not wait for others: test_hang\.py:\d+, in _hangs_in", said), (
        said
    )
