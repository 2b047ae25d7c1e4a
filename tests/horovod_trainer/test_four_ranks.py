"""What a training function finds on four ranks, over both transports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain import RunConfig, ScalingConfig
from hpctrain.horovod import HorovodConfig, HorovodTrainer

pytest.importorskip("horovod", reason="hpctrain install horovod")
pytestmark = pytest.mark.mpi

NUM_RANKS = 4


def examination() -> Callable[[], list[dict[str, Any]]]:
    """Return the training function; what it needs is inside, so that it travels by value."""

    def make_model(seed: int) -> Any:
        import torch
        from torch import nn

        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()

    def train(model: Any, optimizer: Any, inputs: Any, targets: Any) -> list[float]:
        for _ in range(5):
            optimizer.zero_grad()
            ((model(inputs) - targets) ** 2).mean().backward()
            optimizer.step()
        return [x for p in model.parameters() for x in p.detach().flatten().tolist()]

    def train_loop() -> list[dict[str, Any]]:
        import os

        import horovod.torch as hvd
        import torch
        from torch.optim import SGD

        import hpctrain

        hvd.init()  # what a script of Horovod begins with: nothing more happens
        rank, size = hvd.rank(), hvd.size()
        torch.manual_seed(3)
        inputs, targets = torch.randn(16, 6).double(), torch.randn(16, 1).double()
        alone = make_model(0)
        whole = train(alone, SGD(alone.parameters(), lr=0.1, momentum=0.9), inputs, targets)

        # The other ranks' own parameters are others: rank 0's count.
        model = make_model(rank)
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        mine = train(model, optimizer, inputs[rank::size], targets[rank::size])

        context = hpctrain.get_context()
        found = {
            "place": (rank, size, hvd.local_rank(), hvd.local_size()),
            "context": (
                context.get_world_rank(),
                context.get_world_size(),
                context.get_local_rank(),
                context.get_local_world_size(),
            ),
            "mpi": hvd.mpi_enabled(),
            "gloo": hvd.gloo_enabled(),
            "threads": torch.get_num_threads(),
            "sum": hvd.allreduce(torch.tensor(rank + 1.0), op=hvd.Sum, name="sum").item(),
            "parameters": mine,
            "whole": whole,
            "controller": os.environ["HOROVOD_CONTROLLER"],
        }
        everything = hvd.allgather_object(found, name="found")
        hpctrain.report({"rank": rank})
        return everything

    return train_loop


@pytest.mark.parametrize("transport", ["mpi", "gloo"])
def test_ranks_agree_with_each_other_and_with_one_process_on_the_whole_batch(
    tmp_path: Path, transport: str
) -> None:
    result = HorovodTrainer(
        examination(),
        # Where Horovod has MPI, "auto" is what is to be shown.
        horovod_config=HorovodConfig(transport="auto" if transport == "mpi" else "gloo"),
        scaling_config=ScalingConfig(num_workers=NUM_RANKS, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(storage_path=tmp_path, name="run", launcher="local", verbose=0),
    ).fit()
    found = result.return_value
    for rank, of_rank in enumerate(found):
        assert of_rank["place"] == of_rank["context"] == (rank, NUM_RANKS, rank, NUM_RANKS)
        assert (of_rank["mpi"], of_rank["gloo"]) == (transport == "mpi", transport == "gloo")
        assert of_rank["controller"] == transport
        assert of_rank["threads"] == 1
        assert of_rank["sum"] == 10.0
        assert of_rank["parameters"] == found[0]["parameters"]
        # Float64; a mean of four means rounds in another order than one mean.
        assert of_rank["parameters"] == pytest.approx(of_rank["whole"], rel=1e-12, abs=1e-14)
