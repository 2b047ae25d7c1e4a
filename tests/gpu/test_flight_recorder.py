"""What NCCL has recorded is read while a GPU computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpctrain import RunConfig, ScalingConfig
from hpctrain.torch import TorchTrainer

pytestmark = [pytest.mark.gpu, pytest.mark.mpi]


def test_calls_behind_a_long_kernel_are_pending_and_ended_ones_are_not(tmp_path: Path) -> None:
    def train() -> list[Any]:
        import torch
        from torch import distributed

        import hpctrain.torch
        from hpctrain.torch.flight_recorder import read_groups

        device = hpctrain.torch.get_device()
        group = distributed.new_group([0], group_desc="dp")
        for _ in range(3):
            distributed.all_reduce(torch.ones(4, device=device), group=group)
        torch.cuda.synchronize()
        ended = read_groups()
        # Some seconds of the GPU's clock: the two calls wait for it.
        sleep: Any = torch.cuda._sleep
        sleep(8_000_000_000)
        distributed.all_reduce(torch.ones(2, 3, device=device), group=group)
        distributed.all_gather(
            [torch.ones(5, device=device)], torch.ones(5, device=device), group=group
        )
        waiting = read_groups()
        torch.cuda.synchronize()
        return [[g.to_json() for g in groups] for groups in (ended, waiting, read_groups())]

    snapshots = (
        TorchTrainer(
            train,
            scaling_config=ScalingConfig(num_workers=1, use_gpu=True),
            run_config=RunConfig(storage_path=tmp_path, name="run", verbose=0, launcher="local"),
        )
        .fit()
        .return_value
    )
    found = [[g for g in groups if g["description"] == "dp"] for groups in snapshots]
    assert [len(groups) for groups in found] == [1, 1, 1], snapshots
    ended, waiting, after = (group for (group,) in found)
    assert (ended["calls"], ended["pending"], ended["ranks"]) == (3, None, (0,))
    assert waiting["calls"] == 5
    assert waiting["pending"]["op"] == "all_reduce"
    assert waiting["pending"]["number"] == 4
    assert waiting["pending"]["shapes"] == ((2, 3),)
    assert (after["calls"], after["pending"]) == (5, None)
