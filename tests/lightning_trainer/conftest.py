"""What the tests of Lightning share: a training function in which everything draws."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

from hpctrain import Result
from hpctrain.torch import TorchTrainer
from tests import runs
from tests.imports import forks_of_one_import

_forks = forks_of_one_import("lightning.pytorch")

Fit = Callable[..., Result]
CONFIG = {"epochs": 3, "num_workers": 2, "batch_size": 4, "kill": {}, "callback": {}}


def make_training() -> Callable[[dict[str, Any]], Any]:
    """Return a Lightning script as a training function; it travels by value."""

    def train(config: dict[str, Any]) -> dict[str, Any]:
        import os
        import random
        import signal

        import lightning.pytorch as pl
        import torch
        from torch import distributed, nn
        from torch.utils.data import DataLoader, Dataset, get_worker_info

        import hpctrain
        from hpctrain.lightning import (
            HpctrainEnvironment,
            ReportCallback,
            get_checkpoint_path,
            prepare_trainer,
        )

        world = hpctrain.get_context().world
        kill = {int(attempt): step for attempt, step in config["kill"].items()}

        class Points(Dataset[Any]):
            scale = 0.0

            def __len__(self) -> int:
                return 40

            def __getitem__(self, index: int) -> Any:
                noise = random.random() + torch.rand(3)
                return index, self.scale * index + 0.1 * noise

        def open_dataset(worker: int) -> None:
            found = get_worker_info()
            assert found is not None
            found.dataset.scale = 1 / 40

        class Net(pl.LightningModule):
            def __init__(self, width: int = 16) -> None:
                super().__init__()
                self.save_hyperparameters()
                self.layers = nn.Sequential(
                    nn.Linear(3, width), nn.Tanh(), nn.Dropout(0.3), nn.Linear(width, 1)
                )
                self.sigterm = ""
                self.seen: list[tuple[int, list[int]]] = []

            def forward(self, x: Any) -> Any:
                return self.layers(x)

            def training_step(self, batch: Any, index: int) -> Any:
                if self.global_step == kill.get(world.attempt) and world.world_rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                if self.global_step == 0:
                    self.sigterm = repr(signal.getsignal(signal.SIGTERM))
                self.seen.append((self.current_epoch, batch[0].tolist()))
                loss = (self(batch[1]) - batch[1].sum(1, keepdim=True).sin()).square().mean()
                self.log("loss", loss, sync_dist=True)
                return loss

            def validation_step(self, batch: Any, index: int) -> None:
                self.log("size", self(batch[1]).square().mean(), sync_dist=True)

            def configure_optimizers(self) -> Any:
                optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
                return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)]

        pl.seed_everything(3)
        module = Net()
        workers: dict[str, Any] = {}
        if config["num_workers"]:
            workers = {
                "num_workers": config["num_workers"],
                "multiprocessing_context": "fork",
                "worker_init_fn": open_dataset,
            }
        trainer = pl.Trainer(
            max_epochs=config["epochs"],
            accelerator="cpu",
            strategy="ddp",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            plugins=[HpctrainEnvironment()],
            callbacks=[ReportCallback(**config["callback"])],
        )
        prepare_trainer(trainer).fit(
            module,
            DataLoader(Points(), batch_size=config["batch_size"], shuffle=True, **workers),
            DataLoader(Points(), batch_size=8),
            ckpt_path=get_checkpoint_path(),
        )
        own = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
        of_all = [torch.empty_like(own) for _ in range(world.world_size)]
        distributed.all_gather(of_all, own)
        seen: list[Any] = [None] * world.world_size
        distributed.all_gather_object(seen, module.seen)
        return {
            "parameters": [found.tolist() for found in of_all],
            "seen": seen,
            "ranks": [trainer.world_size, trainer.num_devices, trainer.num_nodes],
            "device": str(trainer.strategy.root_device),
            "step": trainer.global_step,
            "sigterm": [repr(signal.getsignal(signal.SIGTERM)), module.sigterm],
            "limit_val_batches": trainer.limit_val_batches,
        }

    return train


@pytest.fixture(scope="module")
def fit(tmp_path_factory: pytest.TempPathFactory) -> Fit:
    train = make_training()

    def fit(*, storage: Path | None = None, num_workers: int = 2, **changes: Any) -> Result:
        of_run = ("stop", "failure_config", "resume_from_checkpoint")
        options = {name: changes.pop(name) for name in of_run if name in changes}
        return runs.fit(
            train,
            storage or tmp_path_factory.mktemp("runs"),
            num_workers=num_workers,
            trainer=TorchTrainer,
            train_loop_config={**CONFIG, **changes},
            **options,
        )

    return fit


@pytest.fixture(scope="module")
def whole(fit: Fit) -> Result:
    """Three epochs of five steps on two ranks that nothing disturbs."""
    return fit(callback={"report_every_n_steps": 1})
