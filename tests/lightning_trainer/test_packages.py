"""The twin of the package lightning, and none of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hpctrain import RunConfig, ScalingConfig
from hpctrain.torch import TorchTrainer

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def _forks() -> None:
    """Import neither of the twins before a test does."""


def _training() -> Any:
    def make(pl: Any) -> Any:
        class Net(pl.LightningModule):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                torch.manual_seed(1)
                self.layers = torch.nn.Sequential(
                    torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
                )

            def training_step(self, batch: Any, index: int) -> Any:
                return (self.layers(batch[0]) - batch[1]).square().mean()

            def test_step(self, batch: Any, index: int) -> None:
                self.log("test", self.training_step(batch, index))

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)

        return Net()

    def train() -> Any:
        import pytorch_lightning as pl
        from torch import distributed
        from torch.utils.data import DataLoader, TensorDataset

        import hpctrain
        from hpctrain.lightning import HpctrainEnvironment, ReportCallback, prepare_trainer

        torch.manual_seed(0)
        inputs = torch.randn(24, 3)
        dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
        size = hpctrain.get_context().get_world_size()

        refused = []
        for arguments in ({"strategy": "auto"}, {"strategy": "ddp"}, {"strategy": "ddp_spawn"}):
            environment = [] if arguments["strategy"] == "ddp" else [HpctrainEnvironment()]
            try:
                prepare_trainer(
                    pl.Trainer(accelerator="cpu", logger=False, plugins=environment, **arguments)
                )
            except hpctrain.ConfigError as error:
                refused.append(str(error))

        module = make(pl)
        trainer = pl.Trainer(
            accelerator="cpu",
            max_epochs=8,
            strategy="ddp",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            plugins=[HpctrainEnvironment()],
            callbacks=[
                ReportCallback(
                    checkpoint_every_n_epochs=3,
                    checkpoint_upload_mode=hpctrain.CheckpointUploadMode.ASYNC,
                )
            ],
        )
        loader = DataLoader(dataset, batch_size=24 // size, shuffle=True)
        prepare_trainer(trainer).fit(module, loader)
        trainer.test(dataloaders=loader, verbose=False)  # of the "best" checkpoint
        together = torch.cat([p.detach().flatten() for p in module.parameters()])
        others = [torch.empty_like(together) for _ in range(size)]
        distributed.all_gather(others, together)
        alone = make(pl)
        optimizer = alone.configure_optimizers()
        for _ in range(8):
            optimizer.zero_grad()
            alone.training_step(dataset.tensors, 0).backward()
            optimizer.step()
        whole = torch.cat([p.detach().flatten() for p in alone.parameters()])
        has_imported_lightning = "lightning" in sys.modules
        import lightning.pytorch

        try:
            prepare_trainer(lightning.pytorch.Trainer(accelerator="cpu", logger=False))
        except hpctrain.ConfigError as error:
            refused.append(str(error))
        return [p.tolist() for p in (*others, whole)], has_imported_lightning, refused

    return train


@pytest.mark.mpi
def test_pytorch_lightning_trains_on_ranks_as_one_process_does_on_the_whole_batch(
    tmp_path: Path,
) -> None:
    pytest.importorskip("pytorch_lightning")
    result = TorchTrainer(
        _training(),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tmp_path, name="run", verbose=0, launcher="local"),
    ).fit()
    (first, second, alone), has_imported_lightning, refused = result.return_value
    assert not has_imported_lightning
    assert first == second
    # Ranks add up halves of the batch in another order than one process does.
    assert torch.allclose(torch.tensor(first), torch.tensor(alone), rtol=0, atol=1e-6)
    saved = [m["epoch"] for _, m in result.best_checkpoints]
    assert sorted(saved) == [2, 5, 7], "every third epoch, and the last"
    auto, ddp, spawn, twin = refused
    assert "lets each of the 2 ranks train by itself. Use strategy='ddp'" in auto
    assert "Trainer(plugins=[HpctrainEnvironment()])" in ddp
    assert "starts processes of its own" in spawn
    assert "hpctrain.lightning uses pytorch_lightning here" in twin


def test_without_lightning_the_error_names_the_extra() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from hpctrain import ConfigError\n"
        "from hpctrain.lightning.package import import_pytorch\n"
        "try:\n"
        "    import_pytorch()\n"
        "except ConfigError as error:\n"
        "    print(error)\n"
    )
    # Without the site-packages of this Python: hpctrain is all that there is.
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert "pip install 'hpctrain[lightning]'" in done.stdout, done.stderr


def test_importing_the_trainer_imports_neither_lightning_nor_torch() -> None:
    code = (
        "import sys; from hpctrain.lightning import LightningConfigBuilder, LightningTrainer\n"
        "print([name for name in ('lightning', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr
