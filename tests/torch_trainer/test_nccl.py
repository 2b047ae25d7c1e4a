"""On GPUs: the group is NCCL, and every rank computes on its own device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpctrain.torch import TorchTrainer
from tests.runs import fit

pytestmark = [pytest.mark.gpu, pytest.mark.mpi]
ON_GPUS: dict[str, Any] = {"trainer": TorchTrainer, "use_gpu": True}


@pytest.fixture(autouse=True)
def _all_gpus_are_visible(monkeypatch: pytest.MonkeyPatch, num_gpus: int) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(num_gpus))))


def test_ranks_have_their_own_gpu_and_train_together_with_nccl(
    tmp_path: Path, num_gpus: int
) -> None:
    def train() -> list[dict[str, Any]]:
        import os

        import torch
        from torch import distributed, nn

        import hpctrain
        import hpctrain.torch

        context = hpctrain.get_context()
        rank, size = context.get_world_rank(), context.get_world_size()
        device = hpctrain.torch.get_device()
        total = torch.tensor([rank + 1.0], device=device)
        distributed.all_reduce(total)

        torch.manual_seed(0)
        model = hpctrain.torch.prepare_model(nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs = torch.randn(4 * size, 4)[4 * rank : 4 * rank + 4]
        model(inputs.to(device)).square().mean().backward()
        optimizer.step()
        found: list[dict[str, Any]] = [{} for _ in range(size)]
        mine = {
            "backend": distributed.get_backend(),
            "device": str(device),
            "current": torch.cuda.current_device(),
            "for accelerate": os.environ["ACCELERATE_TORCH_DEVICE"],
            "total": total.item(),
            "type": type(model).__name__,
            "on": sorted({str(p.device) for p in model.parameters()}),
            "weights": [p.tolist() for p in model.parameters()],
        }
        distributed.all_gather_object(found, mine)
        return found

    size = min(num_gpus, 2)
    found = fit(train, tmp_path, num_workers=size, **ON_GPUS).return_value
    assert len(found) == size
    for rank, mine in enumerate(found):
        assert mine["backend"] == "nccl"
        assert mine["device"] == mine["for accelerate"] == f"cuda:{rank}"
        assert mine["current"] == rank
        assert mine["total"] == size * (size + 1) / 2
        assert mine["type"] == ("Linear" if size == 1 else "DistributedDataParallel")
        assert mine["on"] == [f"cuda:{rank}"]
        assert mine["weights"] == found[0]["weights"]


def test_fsdp_shards_on_gpus(tmp_path: Path, num_gpus: int) -> None:
    if num_gpus < 2:
        pytest.skip("one CUDA GPU on this machine; shards need two")

    def train() -> list[str]:
        import torch
        from torch import nn

        import hpctrain.torch

        model = hpctrain.torch.prepare_model(
            nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)), parallel_strategy="fsdp"
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(4, 8, device=hpctrain.torch.get_device())).sum().backward()
        optimizer.step()
        return [type(p).__name__ for p in model.parameters()]

    assert fit(train, tmp_path, num_workers=2, **ON_GPUS).return_value == ["DTensor"] * 4


def test_batches_that_are_copied_ahead_are_the_same_batches(tmp_path: Path) -> None:
    def train() -> list[bool]:
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        import hpctrain.torch

        device = hpctrain.torch.get_device()
        data = torch.arange(64 * 100_000, dtype=torch.float32).reshape(64, -1)
        busy = torch.randn(2000, 2000, device=device)

        def sums(*, ahead: bool) -> list[list[float]]:
            loader = hpctrain.torch.prepare_data_loader(
                DataLoader(TensorDataset(data), batch_size=4, pin_memory=True), auto_transfer=ahead
            )
            found = []
            for (batch,) in loader:
                assert batch.device == device
                # Read late: behind work that the next copies could overtake.
                for _ in range(10):
                    busy.copy_(torch.nn.functional.normalize(busy @ busy))
                found.append(batch.double().sum(1))
                del batch
            return [value.tolist() for value in found]

        plain = data.double().sum(1).reshape(16, 4).tolist()
        return [sums(ahead=True) == plain, sums(ahead=False) == plain]

    assert fit(train, tmp_path, num_workers=1, **ON_GPUS).return_value == [True, True]
