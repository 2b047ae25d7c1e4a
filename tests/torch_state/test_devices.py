"""States on a GPU; on the CPU it is the same run, so that the test is known to hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpctrain import RunConfig, ScalingConfig
from hpctrain.torch import TorchTrainer

pytestmark = pytest.mark.mpi


def _train(config: dict[str, Any]) -> dict[str, Any]:
    import hashlib

    import torch
    from torch import nn

    import hpctrain
    import hpctrain.torch
    from hpctrain.bulk.slots import Slots
    from hpctrain.torch.state.streams import pin

    device = hpctrain.torch.get_device()
    torch.manual_seed(0)
    layers = [nn.Linear(1500, 1500), nn.BatchNorm1d(1500), nn.Linear(1500, 1500)]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def state() -> dict[str, Any]:
        # A copy on the device, which waits for nothing but what was computed before it.
        state = dict(model.state_dict())
        for number, values in optimizer.state_dict()["state"].items():
            state |= {f"{number}.{name}": value for name, value in values.items()}
        return {name: tensor.detach().clone() for name, tensor in state.items()}

    def digests(state: dict[str, Any]) -> dict[str, str]:
        return {
            name: hashlib.sha256(tensor.cpu().numpy().tobytes()).hexdigest()
            for name, tensor in state.items()
        }

    if config["load"]:
        loaded = {}
        for name, directory in config["load"].items():
            hpctrain.torch.load_state(directory, model=model, optimizer=optimizer)
            loaded[name] = digests(state())
        return loaded

    states = {}
    for step in range(4):
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(16, 1500, device=device)).square().mean().backward()
            optimizer.step()
        states[f"step-{step}"] = state()
        hpctrain.torch.report_state(
            {"step": step},
            model=model,
            optimizer=optimizer,
            checkpoint_dir_name=f"step-{step}",
            mode=hpctrain.CheckpointUploadMode[config["mode"]],
        )
    memory = Slots(4)
    if device.type == "cuda":
        pin(memory, model.parameters())
    return {
        "device": device.type,
        "pinned": torch.frombuffer(memory.memory, dtype=torch.uint8).is_pinned(),
        "digests": {name: digests(state) for name, state in states.items()},
    }


@pytest.mark.parametrize(
    "use_gpu", [False, pytest.param(True, marks=pytest.mark.gpu)], ids=["cpu", "cuda"]
)
@pytest.mark.parametrize("mode", ["SYNC", "ASYNC"])
def test_what_is_saved_of_a_device_is_of_one_step_and_is_loaded_into_it(
    tmp_path: Path, mode: str, use_gpu: bool
) -> None:
    def run(name: str, load: dict[str, str]) -> Any:
        return TorchTrainer(
            _train,
            train_loop_config={"mode": mode, "load": load},
            scaling_config=ScalingConfig(num_workers=1, use_gpu=use_gpu),
            run_config=RunConfig(storage_path=tmp_path, name=name, verbose=0, launcher="local"),
        ).fit()

    result = run("saved", {})
    saved = result.return_value
    assert saved["device"] == ("cuda" if use_gpu else "cpu")
    assert saved["pinned"] is use_gpu
    assert len({str(digests) for digests in saved["digests"].values()}) == 4
    directories = {name: str(result.path / "checkpoints" / name) for name in saved["digests"]}
    assert run("loaded", directories).return_value == saved["digests"]
