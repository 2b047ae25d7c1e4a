"""Predictions on a GPU are those of the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hpctrain.data import from_numpy
from hpctrain.predict import BatchPredictor
from hpctrain.torch import TorchCheckpoint, TorchPredictor

pytestmark = [pytest.mark.gpu, pytest.mark.mpi]
ROWS = np.random.default_rng(0).normal(size=(5000, 6)).astype("f4")


def test_batches_are_predicted_on_the_gpu_of_a_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))
    expected = net(torch.from_numpy(ROWS)).detach().numpy()[:, 0]
    # What a GPU has saved is loaded where there is none, and the other way round.
    for device in ("cuda", "cpu"):
        checkpoint = TorchCheckpoint.from_model(net.to(device), path=tmp_path / device)
        predictor = BatchPredictor.from_checkpoint(checkpoint, TorchPredictor)
        for gpus in (0, 1):
            scored = predictor.predict(
                from_numpy({"x": ROWS}), batch_size=512, num_gpus_per_worker=gpus
            )
            found = np.concatenate(scored.to_pandas()["predictions"].to_list())
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_a_predictor_outside_of_a_run_uses_the_first_gpu() -> None:
    import torch

    class Where(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = torch.nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum(1) * self.one * (1 if x.is_cuda else -1)

    predictor = TorchPredictor(Where(), use_gpu=True)
    found = predictor.predict(ROWS)["predictions"]
    np.testing.assert_allclose(found, ROWS.sum(1), rtol=1e-4, atol=1e-5)
