"""The module beside the weights: without the weights, and opened only where it may be."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hpctrain
from hpctrain import (
    Checkpoint,
    CheckpointError,
    ConfigError,
    RunConfig,
    ScalingConfig,
    pickle_trust,
)
from hpctrain.constants import ARCHITECTURE_NAME
from hpctrain.data import from_numpy
from hpctrain.predict import BatchPredictor
from hpctrain.torch import TorchCheckpoint, TorchPredictor, TorchTrainer
from tests import runs

ANOTHER_USER = 65534


class Net(torch.nn.Module):
    """Has each kind of tensor that a module may have."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(5, 4)
        self.out = torch.nn.Linear(4, 5, bias=False)
        self.out.weight = self.embedding.weight
        self.norm = torch.nn.BatchNorm1d(4)
        self.register_buffer("mask", torch.ones(3), persistent=False)
        self.constant = torch.arange(6.0).reshape(2, 3).T
        self.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        self.frozen.note = "kept"  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.norm(self.embedding(x)))
        return out


def stored(model: torch.nn.Module, directory: Path) -> TorchCheckpoint:
    """Return another handle on the checkpoint of a model."""
    return TorchCheckpoint(TorchCheckpoint.from_model(model, path=directory).path)


def test_a_module_comes_back_with_weights_ties_buffers_and_flags(tmp_path: Path) -> None:
    model = Net().eval()
    model.norm.running_mean += 1
    read: Any = stored(model, tmp_path).get_model()
    assert not read.training
    assert read.out.weight is read.embedding.weight
    for name, tensor in model.state_dict().items():
        assert torch.equal(read.state_dict()[name], tensor)
    assert torch.equal(read.mask, model.mask)
    assert torch.equal(read.constant, model.constant)
    assert not read.frozen.requires_grad
    assert read.out.weight.requires_grad
    assert read.frozen.note == "kept"
    inputs = torch.tensor([1, 2])
    assert torch.equal(read(inputs), model(inputs))
    # It is a whole model, which can be trained.
    read(inputs).sum().backward()
    assert read.out.weight.grad is not None


@pytest.mark.parametrize(
    "model",
    [torch.nn.LSTM(3, 4, 2), torch.nn.MultiheadAttention(4, 2), torch.nn.Identity()],
    ids=lambda model: type(model).__name__,
)
def test_modules_of_torch_do(model: torch.nn.Module, tmp_path: Path) -> None:
    read = stored(model, tmp_path).get_model()
    weights = read.state_dict()
    assert list(weights) == list(model.state_dict())
    assert all(torch.equal(weights[n], tensor) for n, tensor in model.state_dict().items())


def test_a_module_goes_with_its_weights(tmp_path: Path) -> None:
    stored(torch.nn.Linear(2, 1), tmp_path)
    other = torch.nn.Linear(3, 1)
    checkpoint = TorchCheckpoint.from_state_dict(other.state_dict(), path=tmp_path)
    refused(checkpoint, "a checkpoint holds weights and no code")


@pytest.mark.parametrize("name", ["model.pt", "_preprocessor", "model.architecture"])
def test_what_is_no_file_hangs_nobody(tmp_path: Path, name: str) -> None:
    if name == "model.architecture":
        stored(torch.nn.Linear(2, 1), tmp_path)
        (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    checkpoint = TorchCheckpoint(tmp_path)
    assert checkpoint.get_preprocessor() is None
    with pytest.raises((CheckpointError, ConfigError)):
        checkpoint.get_model()


def test_no_weight_is_stored_twice(tmp_path: Path) -> None:
    stored(torch.nn.Linear(1000, 1000), tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_size > 4_000_000
    assert (tmp_path / ARCHITECTURE_NAME).stat().st_size < 4000


def test_a_model_does_not_change_with_the_file_it_was_read_from(tmp_path: Path) -> None:
    read = stored(torch.nn.Linear(500, 500), tmp_path).get_model()
    before = read.weight.sum().item()  # type: ignore[union-attr,operator]
    path = tmp_path / "model.safetensors"
    with open(path, "r+b") as file:
        file.seek(-200_000, os.SEEK_END)
        file.write(bytes(200_000))
    assert read.weight.sum().item() == before  # type: ignore[union-attr,operator]


PROGRAM = """
import sys, torch
from hpctrain.torch import TorchCheckpoint

class Mine(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)

    def forward(self, x):
        return self.linear(x) * FACTOR

FACTOR = 2
model = Mine()
torch.nn.init.constant_(model.linear.weight, 3.0)
torch.nn.init.constant_(model.linear.bias, 1.0)
TorchCheckpoint.from_model(model, path=sys.argv[1])
"""


def test_another_process_needs_neither_the_script_nor_its_classes(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(PROGRAM)
    target = tmp_path / "checkpoint"
    subprocess.run([sys.executable, tmp_path / "script.py", target], check=True)
    assert Checkpoint.from_directory(target) == TorchCheckpoint(target)
    predictor = TorchPredictor.from_checkpoint(Checkpoint(target))
    predicted = predictor.predict(torch.tensor([[1.0]]).numpy())
    assert predicted["predictions"].tolist() == [[8.0]]


def trained(folder: Path) -> Checkpoint:
    """Return the checkpoint of a run whose function reported one of a wrapped model."""

    def train() -> None:
        model = hpctrain.torch.prepare_model(torch.nn.Linear(1, 1))
        with torch.no_grad():
            for part in model.parameters():
                part.fill_(3.0)
        hpctrain.report({"loss": 1.0}, checkpoint=TorchCheckpoint.from_model(model))

    result = runs.fit(train, folder, trainer=TorchTrainer)
    assert result.checkpoint is not None
    return result.checkpoint


def score(checkpoint: Checkpoint, folder: Path) -> list[float]:
    predictor = BatchPredictor.from_checkpoint(checkpoint, TorchPredictor)
    scores = predictor.predict(
        from_numpy({"x": np.arange(4, dtype=np.float32)[:, None]}),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=folder, verbose=0, launcher="local"),
    )
    return [float(value) for value in scores.to_numpy()["predictions"].ravel()]


@pytest.mark.mpi
def test_the_checkpoint_of_a_run_brings_its_module_to_the_script_and_to_ranks(
    tmp_path: Path,
) -> None:
    checkpoint: Any = trained(tmp_path)
    model = checkpoint.get_model()
    assert type(model) is torch.nn.Linear
    assert model.weight.item() == 3.0
    assert score(checkpoint, tmp_path) == [3.0, 6.0, 9.0, 12.0]


@pytest.mark.mpi
def test_ranks_open_what_the_script_has_made_wherever_it_lies(tmp_path: Path) -> None:
    """As where the directory for temporary files is one that a group shares."""
    model = torch.nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(2.0)
        model.bias.fill_(0.0)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2775)
    checkpoint = TorchCheckpoint.from_model(model, path=shared / "checkpoint")
    assert score(checkpoint, tmp_path) == [0.0, 2.0, 4.0, 6.0]


def refused(checkpoint: Checkpoint, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)needs model=: .*{why}.* Give the architecture"):
        TorchCheckpoint.from_checkpoint(checkpoint).get_model()
    with pytest.raises(ConfigError, match=r"needs model="):
        TorchPredictor.from_checkpoint(checkpoint)


def test_a_module_that_cannot_be_pickled_is_said_to_be_one(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    model.lock = threading.Lock()  # type: ignore[assignment]
    checkpoint = stored(model, tmp_path)
    refused(checkpoint, r"Linear cannot be pickled \(TypeError\)")
    assert checkpoint.get_model(torch.nn.Linear(2, 1)) is not None


def test_a_module_whose_weights_are_not_its_parameters_is_not_stored(tmp_path: Path) -> None:
    class Halved(torch.nn.Linear):
        def state_dict(self, *arguments: Any, **named: Any) -> Any:
            whole = super().state_dict(*arguments, **named)
            return {name: tensor.half() for name, tensor in whole.items()}

    refused(stored(Halved(2, 1), tmp_path), "weight of the module is not among its weights")


def test_a_view_of_a_weight_does_not_bring_the_weight_along(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    model.first = model.weight.detach()[:, 0]  # type: ignore[assignment]
    refused(stored(model, tmp_path), "the module keeps views of its weights")


@pytest.mark.parametrize("name", ["torch", "python"])
def test_one_of_another_version_is_not_opened(tmp_path: Path, name: str) -> None:
    checkpoint = stored(torch.nn.Linear(2, 1), tmp_path)
    path = tmp_path / ARCHITECTURE_NAME
    line, _, content = path.read_bytes().partition(b"\n")
    header = {**json.loads(line), name: "1.13"}
    path.write_bytes(json.dumps(header).encode() + b"\n" + content)
    refused(checkpoint, "was written with .*1.13.*and this is torch")
    header["missing"] = "\x1b[2J"
    path.write_bytes(json.dumps(header).encode() + b"\n" + content)
    refused(checkpoint, r"\\x1b\[2J")


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"[]\n", b"{}\n", b"\x80\x05", b'{"format": 1}\n', b"[" * 100_000]
)
def test_a_damaged_one_is_named(tmp_path: Path, content: bytes) -> None:
    checkpoint = stored(torch.nn.Linear(2, 1), tmp_path)
    (tmp_path / ARCHITECTURE_NAME).write_bytes(content)
    refused(checkpoint, r"model\.architecture is damaged")


def test_one_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    checkpoint = stored(torch.nn.Linear(2, 1), tmp_path)
    path = tmp_path / ARCHITECTURE_NAME
    line = path.read_bytes().partition(b"\n")[0] + b"\n"
    for content, why in (
        (b"cno.such.module\nThing\n.", "No module named 'no'"),
        (pickle.dumps(3), "holds a int, and no module"),
        (b"", "EOFError"),
    ):
        path.write_bytes(line + content)
        refused(checkpoint, why)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        checkpoint.get_model()


class Trap:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("who", ["the group", "another user"])
def test_one_that_somebody_else_can_have_written_is_opened_only_if_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    directory = tmp_path / "checkpoint"
    checkpoint = stored(torch.nn.Linear(2, 1), directory)
    path = directory / ARCHITECTURE_NAME
    if who == "the group":
        directory.chmod(0o2775)
        why = r"can be written by others \(mode 2775\)\. If all in it is your own: chmod -R go-w"
    elif os.getuid() != 0:
        pytest.skip("needs root, for files of another user")
    else:
        os.chown(path, ANOTHER_USER, -1)
        why = r"belongs to \w+ \(user 65534\)"
    # The same bytes as this process has written, so they may be opened.
    assert checkpoint.get_model() is not None
    monkeypatch.setattr(pickle_trust, "_made", set())
    refused(checkpoint, rf"model.architecture holds a pickle; opening it runs code\. .*{why}")
    assert checkpoint.get_model(trusted=True) is not None
    assert TorchPredictor.from_checkpoint(checkpoint, trusted=True) is not None
    line = path.read_bytes().partition(b"\n")[0] + b"\n"
    path.write_bytes(line + pickle.dumps(Trap(tmp_path / "ran")))
    refused(checkpoint, "holds a pickle")
    assert not (tmp_path / "ran").exists()
    with pytest.raises(ConfigError, match="holds a NoneType, and no module"):
        checkpoint.get_model(trusted=True)
    assert (tmp_path / "ran").exists()


@pytest.mark.mpi
def test_ranks_that_all_save_a_model_are_not_said_to_differ(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def train() -> None:
        import torch

        import hpctrain
        from hpctrain.torch import TorchCheckpoint

        class Net(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(1)
                self.layer = torch.nn.Linear(2, 1)
                for name in ("token_type_ids", "position_ids", "others"):
                    self.register_buffer(name, torch.ones(1), persistent=False)

        hpctrain.report({}, TorchCheckpoint.from_model(Net()))

    result = TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tmp_path, name="run", launcher="local"),
    ).fit()
    assert "different content" not in capfd.readouterr().err
    assert TorchCheckpoint(result.checkpoint.path).get_model().layer.out_features == 1
