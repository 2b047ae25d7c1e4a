"""`LightningTrainer` on two ranks, on this machine and in a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpctrain import Result, SlurmConfig
from hpctrain.data import from_numpy
from hpctrain.lightning import LightningConfigBuilder, LightningTrainer
from hpctrain.testing.slurm import VirtualCluster
from tests import runs

# Lightning has an opinion about data sets as small as these.
pytestmark = pytest.mark.filterwarnings("ignore")
ROWS = 44
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("f4")


def make_net() -> Any:
    """Return a LightningModule that writes down what its rank sees; it travels by value."""
    import lightning.pytorch as pl

    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
            )
            self.seen: list[int] = []

        def training_step(self, batch: Any) -> Any:
            self.seen += batch["row"].tolist()
            loss = (self.layers(batch["x"]).squeeze(1) - batch["y"]).square().mean()
            self.log("loss", loss, sync_dist=True)
            return loss

        def on_train_epoch_end(self) -> None:
            import hpctrain

            context = hpctrain.get_context()
            found = {"seen": self.seen, "weights": self.layers.state_dict()}
            name = f"rank-{context.get_world_rank()}-epoch-{self.current_epoch}.pt"
            torch.save(found, context.get_storage() / name)
            self.seen = []

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.02)

    return Net


def fit(storage: Path, *, stop: Any = None, resume: Any = None, nodes: int | None = None) -> Result:
    config = (
        LightningConfigBuilder()
        .module(cls=make_net())
        .trainer(max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False)
        .checkpointing(report_every_n_steps=1)
        .build()
    )
    columns = {"row": np.arange(ROWS), "x": X, "y": np.sin(X.sum(1))}
    return runs.fit(
        config,
        storage,
        trainer=LightningTrainer,
        datasets={"train": from_numpy(columns)},
        datasets_iter_config={"batch_size": 2, "shuffle": True},
        slurm=SlurmConfig(nodes=nodes),
        stop=stop,
        launcher="slurm" if nodes else "local",
        resume_from_checkpoint=resume,
    )


def losses(result: Result) -> list[tuple[int, float]]:
    return [(metrics["step"], metrics["loss"]) for metrics in result.metrics_history]


def written(result: Result, epoch: int) -> list[Any]:
    files = [result.path / f"rank-{rank}-epoch-{epoch}.pt" for rank in (0, 1)]
    return [torch.load(file, weights_only=True) for file in files]


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return fit(tmp_path_factory.mktemp("laptop"))


@pytest.mark.mpi
def test_two_ranks_share_each_epoch_and_end_it_with_the_same_weights(laptop: Result) -> None:
    # 22 rows a rank, in batches of 2.
    assert [step for step, _ in losses(laptop)] == list(range(1, 23))
    orders = []
    for epoch in (0, 1):
        first, second = written(laptop, epoch)
        orders.append(first["seen"] + second["seen"])
        assert sorted(orders[-1]) == list(range(ROWS))
        for name, values in first["weights"].items():
            assert torch.equal(values, second["weights"][name])
    assert orders[0] != orders[1], "each epoch is shuffled anew"


@pytest.mark.mpi
def test_two_ranks_go_on_within_an_epoch_with_the_rows_that_are_left(
    laptop: Result, tmp_path: Path
) -> None:
    # In the second epoch; ranks that are told to stop agree on a step some steps later.
    stopped = fit(tmp_path / "stopped", stop={"step": 12})
    resumed = fit(tmp_path / "resumed", resume=stopped.checkpoint)
    last = losses(stopped)[-1][0]
    assert 12 <= last < 22
    assert losses(resumed) == losses(laptop)[last:]
    for now, before in zip(written(resumed, 1), written(laptop, 1), strict=True):
        assert now["seen"] == before["seen"][-len(now["seen"]) :]
        for name, values in before["weights"].items():
            assert torch.equal(now["weights"][name], values)


@pytest.mark.long
@pytest.mark.slurm
def test_a_job_on_two_nodes_has_the_losses_of_a_laptop(
    laptop: Result, in_slurm: VirtualCluster, tmp_path: Path
) -> None:
    job = fit(tmp_path, nodes=2)
    assert losses(job) == losses(laptop)
    assert (len(job.job_ids), len(job.nodes)) == (1, 2)
