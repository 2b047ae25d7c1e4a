"""A loop that is interrupted and resumed ends as one that was not, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain import (
    CheckpointError,
    ConfigError,
    FailureConfig,
    Result,
)
from hpctrain.torch import TorchTrainer
from tests import runs

torch = pytest.importorskip("torch")


def _training() -> Callable[[dict[str, Any]], Any]:
    """Return a training function in which everything draws; it travels by value."""

    def make_loader(kind: str, num_workers: int) -> Any:
        import random

        import numpy
        import torch
        from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler

        import hpctrain.torch

        def augmented(index: int) -> Any:
            noise = random.random() + numpy.random.rand() + torch.rand(3)
            return torch.full((3,), float(index)) + 0.1 * noise

        class Points(Dataset[Any]):
            def __len__(self) -> int:
                return 50

            def __getitem__(self, index: int) -> Any:
                return augmented(index)

        class Stream(IterableDataset[Any]):
            def __iter__(self) -> Any:
                for index in torch.randperm(50).tolist():
                    yield augmented(index)

        def collate(samples: list[Any]) -> Any:
            return torch.stack(samples) + 0.1 * torch.rand(1)

        options: dict[str, Any] = {
            "num_workers": num_workers,
            "collate_fn": collate,
            "batch_size": 4,
        }
        if num_workers:
            options["multiprocessing_context"] = "fork"
        if kind == "stream":
            return hpctrain.torch.prepare_data_loader(DataLoader(Stream(), **options))
        if kind == "weighted":
            sampler = WeightedRandomSampler([1.0, 2.0] * 25, 50)
            return hpctrain.torch.prepare_data_loader(
                DataLoader(Points(), sampler=sampler, **options)
            )
        if kind == "generator":
            generator = torch.Generator().manual_seed(5)
            return DataLoader(Points(), shuffle=True, generator=generator, **options)
        if kind == "plain":
            return DataLoader(Points(), shuffle=True, **options)
        if kind == "persistent":
            options["persistent_workers"] = True
        return hpctrain.torch.prepare_data_loader(DataLoader(Points(), shuffle=True, **options))

    def train(config: dict[str, Any]) -> Any:
        import os
        import random
        import signal
        from pathlib import Path

        import numpy
        import torch
        from torch import nn

        import hpctrain
        import hpctrain.torch
        from hpctrain import Checkpoint, CheckpointUploadMode

        rank = hpctrain.get_context().get_world_rank()
        torch.manual_seed(7 + rank)
        numpy.random.seed(8 + rank)
        random.seed(9 + rank)
        model: Any = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 1))
        checkpoint = hpctrain.get_checkpoint()
        if checkpoint is not None:
            model.load_state_dict(torch.load(checkpoint.path / "model.pt"))
            # A resumed process has drawn differently until here.
            torch.rand(3), random.random(), numpy.random.rand()
        model = hpctrain.torch.prepare_model(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.7)
        loader = make_loader(config["kind"], config["num_workers"])
        state = hpctrain.torch.loop_state(
            loader=loader,
            optimizer=optimizer,
            scheduler=scheduler,
            scaler=torch.amp.GradScaler("cpu"),
        )
        assert state.restore(checkpoint) is (checkpoint is not None)
        marker = Path(config["marker"])
        for epoch in state.epochs(config["epochs"]):
            for batch in state.batches():
                noise = random.random() + numpy.random.rand() + torch.rand(1).item()
                loss = ((model(batch) - batch.sum(1, keepdim=True) - noise) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                metrics = {
                    "loss": loss.item(),
                    "epoch": epoch,
                    "seen": batch.flatten().tolist(),
                    "lr": scheduler.get_last_lr()[0],
                }
                dies = rank == config["die_rank"] and state.step == config["die_at"]
                if dies and not marker.exists():
                    marker.touch()
                    if config["kill"]:
                        os.kill(os.getpid(), signal.SIGKILL)
                    raise RuntimeError("interrupted")
                if state.step % 3:
                    hpctrain.report(metrics)
                    continue
                with hpctrain.checkpoint_dir() as d:
                    state.save(d)
                    if rank == 0:
                        torch.save(getattr(model, "module", model).state_dict(), f"{d}/model.pt")
                    hpctrain.report(
                        metrics, Checkpoint(d), checkpoint_upload_mode=CheckpointUploadMode.ASYNC
                    )
        plain = getattr(model, "module", model)
        return {name: tensor.tolist() for name, tensor in plain.state_dict().items()}

    return train


def fit(
    directory: Path, name: str, *, kind: str, workers: int, num_workers: int = 2, die_at: int = 0
) -> Result:
    config = {
        "kind": kind,
        "num_workers": num_workers,
        "epochs": 3,
        "die_at": die_at,
        "die_rank": max(workers, 1) - 1,
        "marker": str(directory / name),
        "kill": workers > 0,
    }
    return runs.fit(
        _training(),
        directory,
        trainer=TorchTrainer,
        train_loop_config=config,
        num_workers=workers,
        name=f"run-{name}",
        failure_config=FailureConfig(max_failures=1),
    )


def assert_same(killed: Result, whole: Result) -> None:
    assert len(killed.attempts) == 2
    for ours, theirs in zip(killed.metrics_history, whole.metrics_history, strict=True):
        assert ours == theirs
    assert killed.return_value == whole.return_value


# 7 batches an epoch and rank; saved at every third step.
@pytest.mark.mpi
def test_a_rank_killed_within_an_epoch_changes_neither_losses_nor_weights_nor_batches(
    tmp_path: Path,
):
    whole = fit(tmp_path, "whole", kind="shuffled", workers=2)
    assert len(whole.metrics_history) == 21
    assert_same(fit(tmp_path, "killed", kind="shuffled", workers=2, die_at=12), whole)


# 13 batches an epoch, in this process.
@pytest.mark.parametrize(
    ("kind", "num_workers", "die_at"),
    [
        ("shuffled", 0, 8),
        ("persistent", 2, 15),
        ("weighted", 2, 11),
        ("stream", 0, 11),
        ("stream", 2, 17),
        ("plain", 2, 16),
        ("generator", 0, 35),
    ],
)
def test_every_kind_of_loader_goes_on_where_it_was(
    tmp_path: Path, kind: str, num_workers: int, die_at: int
):
    options: dict[str, Any] = {"kind": kind, "workers": 0, "num_workers": num_workers}
    whole = fit(tmp_path, "whole", **options)
    with pytest.raises(RuntimeError, match="interrupted"):
        fit(tmp_path, "killed", **options, die_at=die_at)
    assert_same(fit(tmp_path, "killed", **options, die_at=die_at), whole)


def test_batches_depend_neither_on_worker_processes_nor_on_how_often_loaders_ask(tmp_path: Path):
    histories = [
        fit(tmp_path, str(workers), kind="shuffled", workers=0, num_workers=workers).metrics_history
        for workers in (0, 2)
    ]
    assert histories[0] == histories[1]
    # The order of epoch 0 is that of the sampler's epoch 0; noise is less than 1.
    first = [int(value) for value in histories[0][0]["seen"][::3]]
    assert first == shares(1, 0, epoch=0)[0][:4]


def shares(
    world_size: int, start: int, *, drop_last: bool = False, epoch: int = 3
) -> list[list[int]]:
    from hpctrain.torch.loader import EpochSampler

    found = []
    for rank in range(world_size):
        sampler = EpochSampler(
            range(50), num_replicas=world_size, rank=rank, shuffle=True, drop_last=drop_last
        )
        sampler.set_epoch(epoch)
        sampler.start = start
        found.append(list(sampler))
    return found


def test_an_epoch_goes_on_with_another_number_of_ranks_and_every_sample_is_seen_once():
    # 4 ranks were given 2 batches of 3 samples each; 3 ranks go on.
    seen = [index for share in shares(4, 0) for index in share[:6]]
    left = shares(3, 24)
    assert {len(share) for share in left} == {9}
    missed = {index for share in left for index in share} - set(seen)
    assert sorted([*seen, *missed]) == list(range(50))
    # One of them twice, so that all have equally many.
    assert sum(map(len, left)) == 50 - 24 + 1


@pytest.mark.parametrize("drop_last", [False, True])
def test_shares_are_those_of_torch_and_a_later_start_is_their_rest(drop_last: bool):
    from torch.utils.data import DistributedSampler

    for rank, share in enumerate(shares(4, 0, drop_last=drop_last)):
        theirs: DistributedSampler[int] = DistributedSampler(
            range(50), num_replicas=4, rank=rank, shuffle=True, drop_last=drop_last
        )
        theirs.set_epoch(3)
        assert share == list(theirs)
        assert shares(4, 20, drop_last=drop_last)[rank] == share[5:]


def in_process(directory: Path, train: Callable[[], Any]) -> Any:
    trained = runs.fit(train, directory, num_workers=0, name=None, trainer=TorchTrainer)
    return trained.return_value


def test_without_a_loader_an_epoch_that_was_saved_is_done(tmp_path: Path):
    def train() -> list[int]:
        from hpctrain.torch import loop_state

        state = loop_state()
        assert not state.restore(None)
        for epoch in state.epochs(5):
            if epoch == 2:
                state.save(tmp_path)
                break
        again = loop_state()
        assert again.restore(tmp_path)
        return list(again.epochs(5))

    assert in_process(tmp_path / "runs", train) == [3, 4]


@pytest.mark.parametrize("stop", [(1, 1), (1, 2), (1, 3)])
def test_an_epoch_with_a_limit_is_over_after_it(tmp_path: Path, stop: tuple[int, int]):
    def train() -> tuple[list[Any], list[Any]]:
        from torch.utils.data import DataLoader

        from hpctrain.torch import loop_state, prepare_data_loader

        def seen(*, saves_at: tuple[int, int] | None = None) -> list[Any]:
            loader = prepare_data_loader(DataLoader(range(10), batch_size=2))
            state, found = loop_state(loader=loader), []
            state.restore(None if saves_at is not None else tmp_path)
            for epoch in state.epochs(3):
                for number, batch in enumerate(state.batches(limit=2), start=1):
                    found.append((epoch, batch.tolist()))
                    if (epoch, number) == saves_at:
                        state.save(tmp_path)
                if (epoch, 3) == saves_at:
                    # Behind its last batch.
                    state.save(tmp_path)
            return found

        whole = seen(saves_at=stop)
        with pytest.raises(ConfigError, match=r"batches\(limit=0\): 1 or more"):
            next(loop_state().batches(limit=0))
        return whole, seen()

    whole, rest = in_process(tmp_path / "runs", train)
    assert [epoch for epoch, _ in whole] == [0, 0, 1, 1, 2, 2]
    assert rest == whole[2 + min(stop[1], 2) :]


def test_a_loader_of_another_batch_size_gives_what_is_left_of_the_epoch(tmp_path: Path):
    def train() -> list[int]:
        from torch.utils.data import DataLoader

        from hpctrain.torch import loop_state

        state = loop_state(loader=DataLoader(range(24), batch_size=2))
        list(state.batches(limit=4))
        for _ in zip(range(4), state.batches(), strict=False):
            pass
        state.save(tmp_path)
        again = loop_state(loader=DataLoader(range(24), batch_size=8))
        again.restore(tmp_path)
        assert (again.epoch, again.batch) == (1, 1)
        return [sample for batch in again.batches() for sample in batch.tolist()]

    assert in_process(tmp_path / "runs", train) == list(range(8, 24))


@pytest.mark.parametrize("name", ["loop.pt", "loop-rank-00000.pt"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str):
    def train() -> None:
        from hpctrain.torch import loop_state

        loop_state().save(tmp_path)
        whole = (tmp_path / name).read_bytes()
        for content in (b"", whole[: len(whole) // 2], b"x" + whole[1:]):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(CheckpointError, match=f"{name} cannot be read: .* another ch"):
                loop_state().restore(tmp_path)

    in_process(tmp_path / "runs", train)


def test_what_was_not_saved_cannot_be_restored(tmp_path: Path):
    def train() -> None:
        from hpctrain.torch import loop_state

        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        with pytest.raises(CheckpointError, match=r"has no loop\.pt\. Every rank has to call save"):
            loop_state().restore(tmp_path)
        (tmp_path / "state.json").touch()
        with pytest.raises(CheckpointError, match=r"without a loop: give report_state\(loop=\.\."):
            loop_state().restore(tmp_path)
        loop_state().save(tmp_path)
        with pytest.raises(ConfigError, match=r"holds no state of optimizer\. It has none"):
            loop_state(optimizer=optimizer).restore(tmp_path)
        with pytest.raises(ConfigError, match=r"batches\(\) needs loop_state\(loader"):
            next(loop_state().batches())

    in_process(tmp_path / "runs", train)
