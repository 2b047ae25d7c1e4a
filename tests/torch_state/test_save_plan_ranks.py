"""Ranks ask rank 0 by MPI and by torch: what each receives, and how all of them fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain import SyncConfig
from hpctrain.errors import TrainingFailedError
from hpctrain.torch import TorchConfig, TorchTrainer
from tests.runs import fit

pytestmark = pytest.mark.mpi


def _fit(directory: Path, train: Callable[[], Any], **options: Any) -> Any:
    result = fit(
        train,
        directory / "runs",
        trainer=TorchTrainer,
        torch_config=TorchConfig(backend="gloo"),
        num_workers=3,
        **options,
    )
    return result.return_value


def _asking() -> Callable[[], list[Any]]:
    """Return what all ranks found, by MPI and then by torch's process group."""

    def train() -> list[Any]:
        from collections.abc import Sequence

        import torch

        import hpctrain
        from hpctrain.errors import CheckpointError
        from hpctrain.torch.state.layout.save_plan import PLANNING, plan_save
        from hpctrain.torch.state.ranks import GroupComm, ask_rank_0, communicator, exchange
        from hpctrain.torch.state.state_dict.flatten import flatten_state
        from hpctrain.worker import mpi

        rank = hpctrain.get_context().get_world_rank()
        # Nothing, little, and more than goes without a rendezvous.
        sent = [b"", b"b", b"c" * 3_000_000][rank]

        def swap(contents: Sequence[bytes]) -> Sequence[bytes]:
            return contents[::-1]

        def refuse(contents: Sequence[bytes]) -> Sequence[bytes]:
            raise MemoryError

        def error(call: Any) -> str:
            try:
                call()
            except CheckpointError as refused:
                return str(refused)
            return ""

        def plan(**tensors: Any) -> Any:
            return plan_save(flatten_state(others={"x": tensors}), communicator=comm)

        found = []
        comms: tuple[Any, ...] = (communicator(), GroupComm())
        for comm in comms:
            answer = ask_rank_0(comm, "here", sent, swap)
            mpi._MOST_SCATTERED_BYTES = 1_000_000
            in_rounds = ask_rank_0(comm, "here", sent, swap)
            mpi._MOST_SCATTERED_BYTES = 2**30
            assert in_rounds == answer
            refused = error(lambda: ask_rank_0(comm, "here", sent, refuse))  # noqa: B023
            unlike = error(lambda: plan(w=torch.zeros(3 + rank)))
            if rank == 1:
                # It sends a digest, and then saves something else.
                exchange(comm, PLANNING, b"")
                elsewhere = error(lambda: exchange(comm, "there", None))  # noqa: B023
            else:
                elsewhere = error(lambda: plan(**{f"{rank}": torch.zeros(3)}))
            names = [c.name for c in plan(**{f"of {rank}": torch.zeros(9)}).layout.chunks]
            mine = {
                "by": type(comm).__name__,
                "answer": (answer[:1], len(answer)),
                "errors": [refused, unlike, elsewhere],
                "names": names,
            }
            found.append(comms[0].allgather(mine))
        return found

    return train


def test_each_rank_receives_its_answer_and_all_of_them_the_same_error(tmp_path: Path) -> None:
    by_mpi, by_torch = _fit(tmp_path, _asking())
    assert {mine["by"] for mine in by_mpi} == {"Intracomm"}
    assert {mine["by"] for mine in by_torch} == {"GroupComm"}
    for found in (by_mpi, by_torch):
        answers = [mine["answer"] for mine in found]
        assert answers == [(b"c", 3_000_000), (b"b", 1), (b"", 0)]
        assert [mine["names"] for mine in found] == [[f"x.of {rank}"] for rank in range(3)]
        refused, unlike, elsewhere = zip(*(mine["errors"] for mine in found), strict=True)
        assert set(refused) == {"rank 0 of 3 failed: MemoryError"}
        assert len(set(unlike)) == 1
        assert unlike[0].startswith("x.w is float32[3] on one rank and float32[4] on another")
        assert [error.partition(":")[0] for error in elsewhere] == [
            f"rank {rank} is in {'there' if rank == 1 else 'sharing out'}, and others are not"
            for rank in range(3)
        ]


def _planning_forever() -> Callable[[], None]:
    def train() -> None:
        import threading
        from collections.abc import Sequence

        from hpctrain.torch.state.ranks import ask_rank_0, communicator

        def wait(contents: Sequence[bytes]) -> Sequence[bytes]:
            threading.Event().wait(600)
            return contents

        ask_rank_0(communicator(), "sharing out", b"", wait)

    return train


def test_an_answer_of_rank_0_that_does_not_come_is_an_error_after_the_timeout(
    tmp_path: Path,
) -> None:
    with pytest.raises(TrainingFailedError, match=r"rank \d waited 3 s in sharing out, and not al"):
        _fit(tmp_path, _planning_forever(), sync_config=SyncConfig(sync_timeout=3))
