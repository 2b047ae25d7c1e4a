from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from hpctrain import collective
from hpctrain.errors import TrainingFailedError


@pytest.mark.parametrize(
    ("given", "waited"), [({}, r"1800 s \(timeout barrier\)"), ({"timeout_s": 2.5}, "2.5 s")]
)
def test_a_rank_that_waited_in_vain_says_for_how_long_it_may(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, float], waited: str
) -> None:
    worker = SimpleNamespace(
        comm=SimpleNamespace(rank=1, size=3),
        session=SimpleNamespace(collective=lambda call: nullcontext(lambda: None)),
    )

    def wait_barrier(comm: Any, **_: Any) -> bool:
        return False

    monkeypatch.setattr(collective, "active_worker", lambda call: worker)
    mpi = SimpleNamespace(wait_barrier=wait_barrier)
    monkeypatch.setitem(sys.modules, "hpctrain.worker.mpi", mpi)
    with pytest.raises(TrainingFailedError, match=rf"rank 1 waited {waited} in barrier\(\), and"):
        collective.barrier(**given)
