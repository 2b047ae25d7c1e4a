"""Loaders of a Lightning script that seeds nothing."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from hpctrain import FailureConfig
from hpctrain.torch import TorchTrainer
from tests import runs
from tests.imports import forks_of_one_import

# Lightning has an opinion about data sets as small as these.
pytestmark = [pytest.mark.mpi, pytest.mark.filterwarnings("ignore")]
_forks = forks_of_one_import("lightning.pytorch")
ROWS = 16


def make_training() -> Any:
    """Return a training function that writes down each batch; it travels by value."""

    def train(config: dict[str, Any]) -> None:
        import json
        import os
        import signal
        from pathlib import Path

        import lightning.pytorch as pl
        import torch
        from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler

        import hpctrain
        from hpctrain.lightning import (
            HpctrainEnvironment,
            ReportCallback,
            get_checkpoint_path,
            prepare_trainer,
        )

        world = hpctrain.get_context().world
        log = Path(config["log"], f"rank-{world.world_rank}")

        class Noisy(Dataset[Any]):
            def __len__(self) -> int:
                return config["rows"]

            def __getitem__(self, index: int) -> Any:
                return index, torch.rand(1)

        class Net(pl.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(1, 1)

            def training_step(self, batch: Any, index: int) -> Any:
                rows, noise = batch
                step = self.global_step
                if world.attempt == 1 and world.world_rank == 1 and step == 7:
                    os.kill(os.getpid(), signal.SIGKILL)
                with log.open("a") as file:
                    print(json.dumps([step, rows.tolist(), noise.tolist()]), file=file)
                return self.layer(noise).square().mean()

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=0.1)

        sampler = None
        if config["sampler"] != "lightning's":
            generator = torch.Generator() if config["sampler"] == "with a generator" else None
            sampler = SubsetRandomSampler(range(config["rows"]), generator=generator)
        trainer = pl.Trainer(
            max_epochs=2,
            accelerator="cpu",
            strategy="ddp",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            plugins=[HpctrainEnvironment()],
            callbacks=[ReportCallback(checkpoint_every_n_steps=1)],
        )
        prepare_trainer(trainer).fit(
            Net(),
            DataLoader(Noisy(), batch_size=2, sampler=sampler, shuffle=sampler is None),
            ckpt_path=get_checkpoint_path(),
        )

    return train


@pytest.mark.parametrize("sampler", ["lightning's", "the user's", "with a generator"])
def test_a_resumed_epoch_has_the_batches_that_it_would_have_had_though_nothing_is_seeded(
    tmp_path: Path, sampler: str
) -> None:
    result = runs.fit(
        make_training(),
        tmp_path / "runs",
        trainer=TorchTrainer,
        train_loop_config={"log": str(tmp_path), "rows": ROWS, "sampler": sampler},
        failure_config=FailureConfig(max_failures=1),
    )
    assert len(result.attempts) == 2
    drawn: dict[int, list[int]] = {0: [], 1: []}
    for rank in (0, 1):
        batches = defaultdict(list)
        for line in (tmp_path / f"rank-{rank}").read_text().splitlines():
            step, *batch = json.loads(line)
            batches[step].append(batch)
        assert sorted(batches) == list(range(8))
        again = [found for found in batches.values() if len(found) > 1]
        assert all(second == first for first, second in again)
        for step, found in batches.items():
            drawn[step // 4] += found[0][0]
    assert [sorted(rows) for rows in drawn.values()] == [list(range(ROWS))] * 2
    assert drawn[0] != drawn[1], "each epoch is shuffled anew"
