"""The model of a reported state, as predictors load it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from hpctrain.checkpoint import Checkpoint
from hpctrain.cli.main import app
from hpctrain.errors import CheckpointError
from hpctrain.predict.registry import find_predictor
from hpctrain.torch import TorchCheckpoint, TorchPredictor, TorchTrainer, save_state
from tests import runs


class Tied(nn.Module):
    """Has weights under two names, statistics, and a state that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.second = nn.Linear(4, 4, dtype=torch.float32)
        self.second.weight = self.first.weight
        self.scale = 1.0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.second(self.norm(self.first(batch))) * self.scale
        return scores

    def get_extra_state(self) -> Any:
        return {"scale": self.scale}

    def set_extra_state(self, state: Any) -> None:
        self.scale = state["scale"]


def _trained() -> Tied:
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()
    model.scale = 2.5
    return model


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Return the checkpoint of a run on two ranks, each of which wrote a part of the model."""

    def train() -> None:
        import torch

        import hpctrain.torch

        hpctrain.torch.enable_reproducibility(1)
        model = hpctrain.torch.prepare_model(torch.nn.Linear(3, 2), parallel_strategy="fsdp")
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        hpctrain.torch.report_state({}, model=model, optimizer=optimizer)

    result = runs.fit(train, tmp_path_factory.mktemp("run"), trainer=TorchTrainer)
    assert result.checkpoint is not None
    return result.checkpoint


@pytest.mark.mpi
def test_a_predictor_loads_the_model_that_ranks_reported_together(reported: Checkpoint) -> None:
    weights = TorchCheckpoint(reported.path).get_state_dict()
    assert {name: tuple(value.shape) for name, value in weights.items()} == {
        "weight": (2, 3),
        "bias": (2,),
    }
    assert find_predictor(reported) is TorchPredictor
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    predictor = TorchPredictor.from_checkpoint(reported, model=lambda: nn.Linear(3, 2))
    expected = rows @ weights["weight"].numpy().T + weights["bias"].numpy()
    assert np.allclose(predictor.predict(rows)["predictions"], expected)


@pytest.mark.mpi
def test_the_command_line_scores_with_a_reported_state(
    reported: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n\ndef make_net():\n    return nn.Linear(3, 2)\n"
    )
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", np.ones((5, 3), dtype=np.float32))
    answer = CliRunner().invoke(
        app,
        [
            *("predict", "--checkpoint", str(reported.path), "--input", "rows.npy"),
            *("--output", "scores.npy", "--model", "nets:make_net", "--workers", "0"),
        ],
    )
    assert answer.exit_code == 0, answer.output
    weights = TorchCheckpoint(reported.path).get_state_dict()
    scores = np.load("scores.npy", mmap_mode="r")
    assert np.allclose(scores, (weights["weight"].sum(1) + weights["bias"]).numpy())


def test_shared_weights_statistics_and_what_is_no_tensor_come_along(tmp_path: Path) -> None:
    model = _trained()
    save_state(tmp_path / "s", model=model, optimizer=torch.optim.SGD(model.parameters()))
    loaded = TorchCheckpoint(tmp_path / "s").get_model(Tied)
    assert isinstance(loaded, Tied)
    assert loaded.scale == 2.5
    assert loaded.second.weight is loaded.first.weight
    for (name, value), other in zip(
        model.state_dict().items(), loaded.state_dict().values(), strict=True
    ):
        assert value == other if isinstance(value, dict) else torch.equal(value, other), name


def test_types_that_safetensors_lacks_come_along(tmp_path: Path) -> None:
    def made(*numbers: float) -> nn.Module:
        model = nn.Module()
        values = torch.tensor(numbers)
        model.register_buffer("wide", values.to(torch.complex128))
        model.register_buffer("scale", values.to(torch.float8_e8m0fnu))
        model.register_buffer("same", model.get_buffer("scale"))
        return model

    save_state(tmp_path / "s", model=made(1, 2, 4))
    loaded = TorchCheckpoint(tmp_path / "s").get_model(made(1, 1, 1))
    for name, buffer in made(1, 2, 4).named_buffers():
        assert loaded.get_buffer(name).dtype == buffer.dtype
        assert loaded.get_buffer(name).tolist() == buffer.tolist(), name


def test_a_type_that_this_torch_lacks_is_told(tmp_path: Path) -> None:
    model = nn.Module()
    model.register_buffer("b", torch.zeros(3).to(torch.float8_e8m0fnu))
    save_state(tmp_path / "s", model=model)
    index = tmp_path / "s" / "state.json"
    index.write_text(index.read_text().replace("float8_e8m0fnu", "float8_of_later"))
    with pytest.raises(CheckpointError, match=r"model\.b .* float8_of_later.* Use a newer torch"):
        TorchCheckpoint(tmp_path / "s").get_state_dict()


def test_a_state_without_a_model_is_refused_by_what_it_has(tmp_path: Path) -> None:
    save_state(tmp_path / "s", averages={"w": torch.ones(3)})
    with pytest.raises(CheckpointError, match=r"holds the state of averages, and of no model"):
        TorchCheckpoint(tmp_path / "s").get_state_dict()


def test_weights_that_are_damaged_are_not_used(tmp_path: Path) -> None:
    save_state(tmp_path / "s", model=nn.Linear(3, 2))
    (file,) = (tmp_path / "s").glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="is damaged: block 0 of 1"):
        TorchCheckpoint(tmp_path / "s").get_model(nn.Linear(3, 2))
