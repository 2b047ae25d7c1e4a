"""What TorchTrainer and its data do on a GPU, against the same on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain import ConfigError, FailureConfig, Result
from hpctrain.data import from_numpy
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.torch import TorchTrainer
from tests import runs

pytestmark = [pytest.mark.gpu, pytest.mark.mpi]


def fit(
    train: Callable[..., Any],
    storage: Path,
    *,
    name: str = "run",
    num_workers: int = 1,
    **more: Any,
) -> Result:
    failures = FailureConfig(max_failures=more.pop("max_failures", 0))
    return runs.fit(
        train,
        storage,
        name=name,
        num_workers=num_workers,
        trainer=TorchTrainer,
        failure_config=failures,
        **{"use_gpu": True, **more},
    )


def _learn() -> list[float]:
    """Return the losses of twenty steps, whose random numbers are those of the CPU."""
    import torch
    from torch import nn

    import hpctrain.torch

    device = hpctrain.torch.get_device()
    torch.manual_seed(3)
    x = torch.randn(256, 8)
    y = x.sin().sum(1, keepdim=True)
    layers = [nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 1)]
    model = hpctrain.torch.prepare_model(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    loader = hpctrain.torch.prepare_data_loader(
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=64)
    )
    losses = []
    for _ in range(5):
        for features, target in loader:
            assert features.device == target.device == device
            loss = (model(features) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def test_a_gpu_learns_what_the_cpu_learns(tmp_path: Path) -> None:
    on_gpu = fit(_learn, tmp_path, name="gpu").return_value
    on_cpu = fit(_learn, tmp_path, name="cpu", use_gpu=False).return_value
    assert on_gpu[-1] < 0.5 * on_gpu[0]
    np.testing.assert_allclose(on_gpu, on_cpu, rtol=2e-3)
    assert fit(_learn, tmp_path, name="again").return_value == on_gpu


def test_mixed_precision_scales_the_loss_and_learns(tmp_path: Path) -> None:
    def train() -> dict[str, Any]:
        import torch
        from torch import nn

        from hpctrain import torch as ht

        ht.accelerate(amp=True)
        device = ht.get_device()
        torch.manual_seed(0)
        model = ht.prepare_model(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)))
        optimizer = ht.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        x = torch.randn(64, 8, device=device)
        losses, kinds, gradients = [], set(), []
        for _ in range(30):
            output = model(x)
            kinds.add(str(output.dtype))
            loss = (output.float() - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            ht.backward(loss)
            gradients.append(next(model.parameters()).grad.abs().max().item())
            optimizer.step()
            losses.append(loss.item())
        return {
            "losses": losses,
            "kinds": sorted(kinds),
            "largest gradient": max(gradients),
            "weights": sorted({str(p.dtype) for p in model.parameters()}),
        }

    found = fit(train, tmp_path).return_value
    assert found["losses"][-1] < 0.2 * found["losses"][0]
    assert found["kinds"] == ["torch.float16"]
    assert found["weights"] == ["torch.float32"]
    assert found["largest gradient"] > 100, "it is scaled until the step"


def test_a_loop_that_failed_goes_on_with_the_random_numbers_of_the_gpu(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> list[float]:
        import torch
        from torch import nn

        import hpctrain
        import hpctrain.torch

        device = hpctrain.torch.get_device()
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 1)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        data = torch.utils.data.TensorDataset(torch.arange(48.0).reshape(12, 4) / 48)
        loader = hpctrain.torch.prepare_data_loader(
            torch.utils.data.DataLoader(data, batch_size=3, shuffle=True)
        )
        loop = hpctrain.torch.loop_state(loader=loader, optimizer=optimizer)
        checkpoint = hpctrain.get_checkpoint()
        if checkpoint is not None:
            hpctrain.torch.load_state(checkpoint.path, model=model, optimizer=optimizer)
            torch.rand(5, device=device)
            loop.restore(checkpoint)
        for _ in loop.epochs(4):
            for (batch,) in loop.batches():
                noise = torch.randn(len(batch), 1, device=device)
                loss = (model(batch) - noise).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if config["dies"] and checkpoint is None and loop.step == 9:
                    raise RuntimeError("as planned")
                hpctrain.torch.report_state(
                    {"loss": loss.item()},
                    model=model,
                    optimizer=optimizer,
                    loop=loop,
                    mode=hpctrain.CheckpointUploadMode[config["mode"]],
                )
        return [p.tolist() for p in model.parameters()]

    def run(name: str, mode: str, *, dies: bool) -> Result:
        config = {"dies": dies, "mode": mode}
        return fit(train, tmp_path, name=name, train_loop_config=config, max_failures=1)

    whole = run("whole", "SYNC", dies=False)
    assert len(whole.metrics_history) == 16
    for mode in ("SYNC", "ASYNC"):
        failed = run(mode, mode, dies=True)
        assert len(failed.attempts) == 2
        assert failed.return_value == whole.return_value
        losses = [[m["loss"] for m in result.metrics_history] for result in (failed, whole)]
        assert losses[0] == losses[1]


def test_batches_of_a_dataset_arrive_on_the_gpu(tmp_path: Path) -> None:
    def train() -> tuple[list[str], float]:
        import hpctrain

        shard = hpctrain.get_dataset_shard("train")
        devices, total = set(), 0.0
        for batch in shard.iter_torch_batches(batch_size=7, prefetch_batches=2):
            devices.add(str(batch["x"].device))
            total += batch["x"].double().sum().item()
        return sorted(devices), total

    values = np.random.default_rng(0).normal(size=(1000, 5)).astype("f4")
    result = fit(train, tmp_path, datasets={"train": from_numpy({"x": values})})
    devices, total = result.return_value
    assert devices == ["cuda:0"]
    assert total == pytest.approx(values.astype("f8").sum(), rel=1e-9)


def test_too_many_ranks_for_the_gpus_are_refused_with_the_way_out(
    tmp_path: Path, num_gpus: int
) -> None:
    def train() -> None:
        raise AssertionError("it must not start")

    with pytest.raises(ConfigError, match=rf"needs {num_gpus + 1} GPUs .* shows {num_gpus}\."):
        fit(train, tmp_path, num_workers=num_gpus + 1)


def test_memory_that_a_gpu_does_not_have_is_an_error_of_the_training_function(
    tmp_path: Path,
) -> None:
    def train() -> str:
        import torch

        import hpctrain
        import hpctrain.torch

        if hpctrain.get_checkpoint() is None:
            with hpctrain.checkpoint_dir() as directory:
                torch.save(0, f"{directory}/step.pt")
                hpctrain.report({"step": 0}, hpctrain.Checkpoint(directory))
            torch.empty(2**50, dtype=torch.uint8, device=hpctrain.torch.get_device())
        return str(torch.zeros(1, device=hpctrain.torch.get_device()).device)

    result = fit(train, tmp_path, max_failures=1)
    assert result.return_value == "cuda:0"
    assert "OutOfMemoryError" in str(result.attempts[0])


def test_a_compiled_model_is_saved_and_loaded_by_the_names_of_the_plain_one(
    tmp_path: Path,
) -> None:
    def train(config: dict[str, Any]) -> list[float]:
        import torch
        from torch import nn

        import hpctrain
        import hpctrain.torch

        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        model: Any = hpctrain.torch.prepare_model(plain)
        model = torch.compile(model) if config["compile"] else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=config["compile"])
        if config["load"]:
            hpctrain.torch.load_state(config["load"], model=model, optimizer=optimizer)
            return [p.tolist() for p in model.parameters()]
        inputs = torch.randn(16, 4, device=hpctrain.torch.get_device())
        for _ in range(3):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
        hpctrain.torch.report_state({}, model=model, optimizer=optimizer)
        return [p.tolist() for p in model.parameters()]

    saved = fit(train, tmp_path, name="saved", train_loop_config={"compile": True, "load": None})
    assert saved.checkpoint is not None
    config = {"compile": False, "load": str(saved.checkpoint.path)}
    for name, use_gpu in (("gpu", True), ("cpu", False)):
        loaded = fit(train, tmp_path, name=name, train_loop_config=config, use_gpu=use_gpu)
        assert loaded.return_value == saved.return_value


def test_ranks_with_gpus_are_forked_from_a_process_that_has_opened_none(tmp_path: Path) -> None:
    import torch

    def train() -> tuple[str, float]:
        import os
        import pathlib

        import torch

        import hpctrain.torch

        parent = pathlib.Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0")
        ones = torch.ones(8, device=hpctrain.torch.get_device())
        torch.distributed.all_reduce(ones)
        return parent[2], ones.sum().item()

    num_gpus = torch.cuda.device_count()
    for num_workers in {1, num_gpus}:
        result = fit(train, tmp_path, name=f"{num_workers}", num_workers=num_workers)
        events = read_events(RunPaths(result.path))
        assert [event["reason"] for event in events if event["event"] == "not-forked"] == []
        assert result.return_value == ("hpctrain.worker.fork_server", 8 * num_workers)
