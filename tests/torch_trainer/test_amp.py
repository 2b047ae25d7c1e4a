"""Mixed precision by Ray Train's names; on a CPU nothing changes but the names."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import hpctrain
from hpctrain import ConfigError
from hpctrain.torch import TorchTrainer
from hpctrain.torch import amp as amp_module
from tests.runs import fit


def loss_of(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = (model(inputs) - 1).square().mean()
    return loss


def test_a_scaled_optimizer_makes_the_steps_of_the_one_that_it_wraps() -> None:
    torch.manual_seed(0)
    inputs, plain = torch.randn(8, 3), torch.nn.Linear(3, 1)
    scaled = copy.deepcopy(plain)
    scaler = amp_module.StepScaler("cpu", init_scale=2.0**10)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    optimizer = amp_module.ScaledOptimizer(
        torch.optim.SGD(scaled.parameters(), lr=0.1, momentum=0.9), scaler
    )
    schedules = [
        torch.optim.lr_scheduler.StepLR(each, 2, gamma=0.5) for each in (reference, optimizer)
    ]
    for _ in range(5):
        reference.zero_grad()
        loss_of(plain, inputs).backward()
        reference.step()
        optimizer.zero_grad()
        scaler.scale(loss_of(scaled, inputs)).backward()
        optimizer.step()
        for schedule in schedules:
            schedule.step()
    torch.testing.assert_close(scaled.state_dict(), plain.state_dict())
    state = optimizer.state_dict()
    assert state["param_groups"] == reference.state_dict()["param_groups"]
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == reference.param_groups[0]["lr"] == 0.025
    overflow = scaled.weight.detach().clone()
    optimizer.zero_grad()
    (loss_of(scaled, inputs) * float("inf")).backward()
    optimizer.step()
    assert torch.equal(scaled.weight, overflow), "a step with an overflow is left out"


def test_optimizers_of_one_loss_undo_one_scale() -> None:
    scaler = amp_module.StepScaler("cpu", init_scale=1024.0, growth_interval=1)
    both = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizers = [
        amp_module.ScaledOptimizer(torch.optim.SGD([each], lr=1.0), scaler) for each in both
    ]
    for number in range(1, 3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        scaler.scale(both[0].sum() + both[1].sum()).backward()
        for optimizer in optimizers:
            optimizer.step()
        assert [each.item() for each in both] == [-number, -number]
        # Once for both.
        assert scaler.state_dict()["scale"] == 1024.0 * 2**number


def test_on_a_cpu_the_loop_computes_what_it_would_without(tmp_path: Path) -> None:
    def train() -> dict[str, Any]:
        from hpctrain import torch as train_torch

        train_torch.accelerate(amp=True)
        with pytest.raises(ConfigError, match="was called before in this training function"):
            train_torch.accelerate()
        torch.manual_seed(0)
        model = train_torch.prepare_model(torch.nn.Linear(3, 1))
        given = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = train_torch.prepare_optimizer(given)
        assert optimizer is given
        loss = loss_of(model, torch.ones(8, 3))
        train_torch.backward(loss)
        optimizer.step()
        hpctrain.report({"dtype": str(loss.dtype)})
        return {name: value.tolist() for name, value in model.state_dict().items()}

    first, second = (
        fit(train, tmp_path, num_workers=0, name=name, trainer=TorchTrainer)
        for name in ("first", "second")
    )
    assert first.metrics == {"dtype": "torch.float32"}
    assert first.return_value == second.return_value
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    loss_of(model, torch.ones(8, 3)).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert first.return_value["bias"] == model.bias.tolist()


def test_outside_of_a_training_function_it_says_so() -> None:
    for call in (amp_module.accelerate, lambda: amp_module.backward(torch.ones(()))):
        with pytest.raises(hpctrain.WorkerContextError):
            call()
