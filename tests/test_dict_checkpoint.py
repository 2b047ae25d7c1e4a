"""Ranks that save the same tensors save the same bytes."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import hpctrain
from hpctrain import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig

# As another process would have it: other addresses, and another order of hashes.
SAVE = """
import sys, torch
from hpctrain import Checkpoint
others = [torch.ones(n) for n in range(int(sys.argv[1]))]
torch.manual_seed(0)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(2, 3)).sum().backward()
optimizer.step()
checkpoint = Checkpoint.from_dict({
    "model": model.state_dict(), "optimizer": optimizer.state_dict(), "module": model,
    "rng": torch.get_rng_state(), "half": torch.ones(3, dtype=torch.bfloat16),
})
sys.stdout.buffer.write((checkpoint.path / "dict_checkpoint.pkl").read_bytes())
"""


def test_equal_tensors_give_equal_bytes_in_every_process() -> None:
    digests = {
        hashlib.sha256(
            subprocess.run(
                [sys.executable, "-c", SAVE, number], check=True, capture_output=True
            ).stdout
        ).hexdigest()
        for number in ("1", "50")
    }
    assert len(digests) == 1


def test_tensors_come_back_as_they_were() -> None:
    base = torch.arange(10.0)
    given = {
        "view": base[3:5],
        "transposed": base.reshape(2, 5).T,
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "bits": torch.tensor([True, False]),
        "none": torch.empty(0),
        "sparse": torch.eye(3).to_sparse(),
    }
    back = Checkpoint.from_dict(given).to_dict()
    assert list(back) == list(given)
    for name, tensor in given.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name].to_dense(), tensor.to_dense())
    assert type(back["parameter"]) is torch.nn.Parameter
    assert back["transposed"].stride() == given["transposed"].stride()


def train(config: dict[str, Any]) -> None:
    rank = hpctrain.get_context().get_world_rank()
    others = [torch.ones(n) for n in range(rank * 50)]
    torch.manual_seed(rank if config["differ"] else 0)
    model = torch.nn.Linear(3, 2)
    hpctrain.report({"n": len(others)}, checkpoint=Checkpoint.from_dict(model.state_dict()))


@pytest.mark.parametrize("differ", [False, True])
def test_only_ranks_that_save_other_tensors_are_logged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], differ: bool
) -> None:
    DataParallelTrainer(
        train,
        train_loop_config={"differ": differ},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tmp_path, verbose=0),
    ).fit()
    assert ("ranks saved different content" in capfd.readouterr().err) is differ
