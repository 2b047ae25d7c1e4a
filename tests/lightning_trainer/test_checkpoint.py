from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch

from hpctrain import Checkpoint, CheckpointError, ConfigError
from hpctrain.lightning import LightningCheckpoint, LightningPredictor
from hpctrain.preprocessors import BatchMapper
from hpctrain.torch import TorchCheckpoint

pytestmark = pytest.mark.filterwarnings("ignore")
X = np.random.default_rng(0).normal(size=(6, 3)).astype("f4")


class Activation:
    """A hyper-parameter that no format but pickle can hold."""

    def __call__(self, x: Any) -> Any:
        return x.sin()


class Net(pl.LightningModule):
    def __init__(self, width: int = 1, activation: Any = None) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.linear = torch.nn.Linear(3, width)
        self.activation = activation

    def forward(self, x: Any) -> Any:
        x = self.linear(x).sum(1)
        return x if self.activation is None else self.activation(x)


def save(module: Any, path: Path) -> Path:
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
    trainer.strategy.connect(module)
    trainer.save_checkpoint(path)
    return path


def test_a_file_that_lightning_wrote_becomes_a_checkpoint(tmp_path: Path) -> None:
    net = Net(width=4)
    checkpoint = LightningCheckpoint.from_path(
        save(net, tmp_path / "last.ckpt"), preprocessor=BatchMapper(fn=lambda b: b)
    )
    assert sorted(p.name for p in checkpoint.path.iterdir())[:2] == [
        "checkpoint.ckpt",
        "features.json",
    ]
    features = json.loads((checkpoint.path / "features.json").read_text())
    assert features["framework"] == "lightning"
    assert torch.equal(checkpoint.get_state_dict()["linear.weight"], net.linear.weight)
    loaded = checkpoint.get_model(Net)
    assert loaded.hparams["width"] == 4
    assert torch.equal(loaded.linear.weight, net.linear.weight)
    assert isinstance(checkpoint.get_preprocessor(trusted=True), BatchMapper)


def test_a_directory_of_an_old_ray_is_a_checkpoint(tmp_path: Path) -> None:
    net = Net(width=4)
    save(net, tmp_path / "model")
    checkpoint = LightningCheckpoint.from_directory(tmp_path)
    assert torch.equal(checkpoint.get_model(Net).linear.weight, net.linear.weight)
    predictor = LightningPredictor.from_checkpoint(checkpoint, Net)
    with torch.inference_mode():
        assert np.array_equal(predictor.predict(X)["predictions"], net(torch.from_numpy(X)).numpy())
    # What is written here comes first.
    other = Net(width=4)
    save(other, tmp_path / "checkpoint.ckpt")
    assert torch.equal(checkpoint.get_state_dict()["linear.weight"], other.linear.weight)


def test_reading_a_checkpoint_runs_no_code_unless_it_is_trusted(tmp_path: Path) -> None:
    net = Net(activation=Activation())
    checkpoint = LightningCheckpoint.from_path(save(net, tmp_path / "last.ckpt"))
    with pytest.raises(CheckpointError, match=r"would run code.*weights_only=False"):
        checkpoint.get_model(Net)
    with pytest.raises(CheckpointError, match="would run code"):
        LightningPredictor.from_checkpoint(checkpoint, Net)
    with pytest.raises(CheckpointError, match="would run code"):
        checkpoint.get_state_dict()
    predictor = LightningPredictor.from_checkpoint(checkpoint, Net, weights_only=False)
    with torch.inference_mode():
        assert np.array_equal(predictor.predict(X)["predictions"], net(torch.from_numpy(X)).numpy())
    other = Net(activation=Activation())
    loaded = checkpoint.get_model(other, weights_only=False)
    assert loaded is other
    assert torch.equal(other.linear.weight, net.linear.weight)


def test_checkpoints_that_do_not_fit_say_so(tmp_path: Path) -> None:
    checkpoint = LightningCheckpoint.from_path(save(Net(width=4), tmp_path / "last.ckpt"))
    with pytest.raises(ConfigError, match=r"needs model=: .*the class of the LightningModule"):
        LightningPredictor.from_checkpoint(checkpoint)
    with pytest.raises(CheckpointError, match=r"(?s)not those of Net: .*Give the class"):
        checkpoint.get_model(Net, width=2)
    with pytest.raises(ConfigError, match=r"width: for load_from_checkpoint\(\) of a class"):
        checkpoint.get_model(Net(width=4), width=4)
    with pytest.raises(ConfigError, match="gave a int"):
        checkpoint.get_model(lambda: 3)  # type: ignore[arg-type, return-value]
    of_torch = TorchCheckpoint.from_model(torch.nn.Linear(3, 1))
    with pytest.raises(ConfigError, match="holds a model of torch"):
        LightningPredictor.from_checkpoint(of_torch, Net)
    with pytest.raises(CheckpointError, match="ReportCallback writes it"):
        LightningCheckpoint(Checkpoint(of_torch.path).path).get_state_dict()


def test_weights_in_the_directory_of_a_sharding_strategy_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    checkpoint = LightningCheckpoint.from_path(tmp_path / "shards")
    with pytest.raises(CheckpointError, match=r"checkpoint\.ckpt is a directory.*consolidate"):
        checkpoint.get_state_dict()
    with pytest.raises(CheckpointError, match=r"checkpoint\.ckpt is a directory.*consolidate"):
        checkpoint.get_model(Net)
