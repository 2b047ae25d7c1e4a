"""A rank that fails while others wait for it, and the run that goes on afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain import TrainingFailedError, WorkerError
from hpctrain.torch import TorchTrainer
from tests.runs import fit

# Starts of two ranks that import torch, and their ends, on a machine that is busy. Gloo itself
# gives up after half an hour.
pytestmark = [pytest.mark.mpi, pytest.mark.timeout(240)]


def _fails_once_at_epoch_2() -> Callable[[], Any]:
    """Return a training function; the second attempt trains once more without an interruption."""

    def train() -> dict[str, list[float]] | None:
        import torch
        from torch import distributed, nn
        from torch.utils.data import DataLoader, TensorDataset

        import hpctrain
        import hpctrain.torch

        context = hpctrain.get_context()
        attempt, rank = context.world.attempt, context.get_world_rank()
        hpctrain.torch.enable_reproducibility(3)
        inputs = torch.randn(22, 4)
        dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())

        def losses(checkpoint: hpctrain.Checkpoint | None, *, fails: bool) -> list[float]:
            torch.manual_seed(5)
            model: Any = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
            optimizer_state, first = None, 0
            if checkpoint is not None:
                state = torch.load(checkpoint.path / "state.pt", weights_only=True)
                model.load_state_dict(state["model"])
                optimizer_state, first = state["optimizer"], state["epoch"] + 1
            model = hpctrain.torch.prepare_model(model)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
            if optimizer_state is not None:
                optimizer.load_state_dict(optimizer_state)
            loader = hpctrain.torch.prepare_data_loader(
                DataLoader(dataset, batch_size=4, shuffle=True)
            )
            loader.set_epoch(first)
            found = []
            for epoch in range(first, 5):
                if fails and epoch == 2:
                    if rank == 1:
                        raise ValueError("the loss is NaN")
                    distributed.all_reduce(torch.zeros(1))
                total = 0.0
                for batch, target in loader:
                    optimizer.zero_grad()
                    loss: Any = nn.functional.mse_loss(model(batch), target)
                    loss.backward()
                    optimizer.step()
                    total += loss.item()
                found.append(total)
                if attempt == 2 and not fails and checkpoint is None:
                    continue
                saved = None
                if rank == 0:
                    with hpctrain.checkpoint_dir() as directory:
                        state = {
                            "model": model.module.state_dict(),
                            "optimizer": optimizer.state_dict(),
                            "epoch": epoch,
                        }
                        torch.save(state, f"{directory}/state.pt")
                        saved = hpctrain.Checkpoint.from_directory(directory)
                hpctrain.report({"epoch": epoch, "loss": total}, saved)
            return found

        resumed = losses(hpctrain.get_checkpoint(), fails=attempt == 1)
        return {"resumed": resumed, "uninterrupted": losses(None, fails=False)}

    return train


def test_an_exception_while_others_wait_names_its_rank_and_the_run_resumes_bit_by_bit(
    tmp_path: Path,
) -> None:
    train = _fails_once_at_epoch_2()
    with pytest.raises(WorkerError) as caught:
        fit(train, tmp_path, trainer=TorchTrainer)
    assert caught.value.rank == 1
    assert "rank 1 of 2 on" in str(caught.value)
    assert "ValueError: the loss is NaN" in str(caught.value)
    assert "checkpoints/000002" in str(caught.value)

    result = fit(
        train, tmp_path, trainer=TorchTrainer
    )  # again in this process, and under the same name
    losses = result.return_value
    assert len(losses["uninterrupted"]) == 5
    assert losses["resumed"] == losses["uninterrupted"][2:]
    history = [metrics["loss"] for metrics in result.metrics_history]
    assert history == losses["uninterrupted"]
    assert len(result.attempts) == 2


def test_a_rank_that_is_killed_is_named_not_the_one_that_misses_it(tmp_path: Path) -> None:
    def train() -> None:
        import os
        import signal

        import torch
        from torch import distributed

        import hpctrain

        distributed.all_reduce(torch.zeros(1))
        if hpctrain.get_context().get_world_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        distributed.all_reduce(torch.zeros(1))

    with pytest.raises(WorkerError, match=r"rank 1 of 2 .* without an exception") as caught:
        fit(train, tmp_path, trainer=TorchTrainer)
    assert caught.value.rank == 1


def test_a_checkpoint_that_one_rank_reports_while_the_other_returns_is_an_error_soon(
    tmp_path: Path,
) -> None:
    def train() -> None:
        import hpctrain

        if hpctrain.get_context().get_world_rank() == 0:
            hpctrain.report({"of": "one"}, hpctrain.Checkpoint.from_dict({"a": 1}))

    with pytest.raises(TrainingFailedError, match="rank 1 returned after 0 reports, but rank 0"):
        fit(train, tmp_path, trainer=TorchTrainer)
