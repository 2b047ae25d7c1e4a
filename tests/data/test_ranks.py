"""What real ranks get of a dataset."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import hpctrain
from hpctrain import (
    Checkpoint,
    ConfigError,
    DataConfig,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
)
from hpctrain.data import Dataset, from_items, from_numpy, read_hdf5, read_parquet
from hpctrain.torch import TorchTrainer
from tests import runs

pytestmark = pytest.mark.mpi

ROWS = 1003


@pytest.fixture(autouse=True)
def _on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")


@pytest.fixture
def hdf5(tmp_path: Path) -> Dataset:
    for part, rows in enumerate(np.array_split(np.arange(ROWS), 3)):
        with h5py.File(tmp_path / f"{part}.h5", "w") as file:
            file["x"] = (rows[:, None] * np.ones(4)).astype("f4")
            file["y"] = rows
    return read_hdf5(tmp_path)


@pytest.fixture
def parquet(hdf5: Dataset, tmp_path: Path) -> Dataset:
    return read_parquet(hdf5.write_parquet(tmp_path / "all.parquet"))


def fit(train: Any, storage: Path, workers: int, **arguments: Any) -> Result:
    return runs.fit(train, storage, num_workers=workers, name=f"on-{workers}", **arguments)


def see(config: dict[str, Any]) -> list[int]:
    """Save which rows this rank saw in two epochs, and how many batches each had."""
    rank = hpctrain.get_context().get_world_rank()
    shard = hpctrain.get_dataset_shard("train")
    epochs = [
        [b["y"].tolist() for b in shard.iter_batches(batch_size=32, **config)] for _ in range(2)
    ]
    whole = hpctrain.get_dataset_shard("valid")
    with hpctrain.checkpoint_dir() as directory:
        Path(directory, f"rank{rank}.json").write_text(json.dumps(epochs))
        hpctrain.report({"rows": shard.num_rows}, Checkpoint.from_directory(directory))
    return [whole.num_rows, len(whole.materialize().to_numpy()["y"])]


def seen_by(result: Result, workers: int) -> list[Any]:
    assert result.checkpoint is not None
    return [
        json.loads((result.checkpoint.path / f"rank{rank}.json").read_text())
        for rank in range(workers)
    ]


@pytest.mark.parametrize(
    ("workers", "source", "config"),
    [(2, "hdf5", {"shuffle": True}), (4, "parquet", {}), (3, "hdf5", {"tail": "uneven"})],
)
def test_ranks_together_see_every_row_once_in_as_many_batches(
    workers: int, source: str, config: dict[str, Any], tmp_path: Path, request: Any
):
    dataset = request.getfixturevalue(source)
    result = fit(
        see,
        tmp_path / "runs",
        workers,
        train_loop_config=config,
        datasets={"train": dataset, "valid": dataset.limit(7)},
        dataset_config=DataConfig(datasets_to_split=["train"]),
    )
    assert result.return_value == [7, 7]
    ranks = seen_by(result, workers)
    for epoch in range(2):
        batches = [rank[epoch] for rank in ranks]
        assert sorted(row for b in batches for rows in b for row in rows) == list(range(ROWS))
        assert len({len(b) for b in batches}) == 1
    assert (ranks[0][0] == ranks[0][1]) == ("shuffle" not in config)


def test_a_rank_without_rows_has_an_empty_batch(hdf5: Dataset, tmp_path: Path):
    result = fit(see_sizes, tmp_path / "runs", 3, datasets={"train": hdf5.limit(2)})
    assert result.return_value == [[1], [1], [0]]


def see_sizes() -> list[list[int]]:
    shard = hpctrain.get_dataset_shard("train")
    sizes = [len(batch["y"]) for batch in shard.iter_torch_batches()]
    rank = hpctrain.get_context().get_world_rank()
    with hpctrain.checkpoint_dir() as directory:
        Path(directory, f"{rank}").write_text(json.dumps(sizes))
        hpctrain.report({}, Checkpoint.from_directory(directory))
    checkpoint = hpctrain.get_checkpoint()
    assert checkpoint is not None
    return [json.loads((checkpoint.path / str(r)).read_text()) for r in range(3)]


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_epoch_goes_on_after_a_restart_with_other_ranks(
    hdf5: Dataset, tmp_path: Path, shuffle: bool
):
    def train(config: dict[str, Any]) -> None:
        rank = hpctrain.get_context().get_world_rank()
        shard = hpctrain.get_dataset_shard("train")
        if checkpoint := hpctrain.get_checkpoint():
            shard.load_state_dict(json.loads((checkpoint.path / "position.json").read_text()))
        seen = []
        for step, batch in enumerate(shard.iter_batches(batch_size=20, shuffle=config["shuffle"])):
            seen += batch["y"].tolist()
            if step == config["steps"]:
                break
        with hpctrain.checkpoint_dir() as directory:
            Path(directory, "position.json").write_text(json.dumps(shard.state_dict()))
            Path(directory, f"rank{rank}.json").write_text(json.dumps(seen))
            hpctrain.report({}, Checkpoint.from_directory(directory))

    seen: list[int] = []
    checkpoint = None
    for workers, steps in ((4, 5), (2, 3), (3, 10_000)):
        result = fit(
            train,
            tmp_path / "runs",
            workers,
            train_loop_config={"steps": steps, "shuffle": shuffle},
            datasets={"train": hdf5},
            resume_from_checkpoint=checkpoint,
        )
        seen += [row for rank in seen_by(result, workers) for row in rank]
        checkpoint = result.checkpoint
    assert sorted(seen) == list(range(ROWS))
    assert seen != sorted(seen) or not shuffle


def test_a_run_that_fails_in_the_middle_of_an_epoch_has_the_losses_of_one_that_does_not(
    hdf5: Dataset, tmp_path: Path
):
    def train(config: dict[str, Any]) -> None:
        import torch

        import hpctrain.torch

        torch.manual_seed(7)
        shard = hpctrain.get_dataset_shard("train")
        plain = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(plain.parameters(), lr=1e-8, momentum=0.9)
        state = hpctrain.torch.loop_state(shard=shard, optimizer=optimizer)
        checkpoint = hpctrain.get_checkpoint()
        if state.restore(checkpoint):
            assert checkpoint is not None
            weights = torch.load(checkpoint.path / "model.pt", weights_only=True)
            plain.load_state_dict(weights)
        model = hpctrain.torch.prepare_model(plain)
        while shard.epoch < 2:
            batches = shard.iter_torch_batches(batch_size=200, shuffle=True)
            for step, batch in enumerate(batches):
                loss = ((model(batch["x"])[:, 0] - batch["y"]) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                with hpctrain.checkpoint_dir() as directory:
                    state.save(directory)
                    torch.save(plain.state_dict(), f"{directory}/model.pt")
                    metrics = {"loss": loss.item(), "first": int(batch["y"][0])}
                    hpctrain.report(metrics, Checkpoint.from_directory(directory))
                first = hpctrain.get_context().world.attempt == 1
                if config["fails"] and first and (shard.epoch, step) == (1, 3):
                    raise RuntimeError("in the middle of an epoch")

    histories = []
    for fails in (False, True):
        result = TorchTrainer(
            train,
            train_loop_config={"fails": fails},
            datasets={"train": hdf5},
            scaling_config=ScalingConfig(num_workers=1),
            run_config=RunConfig(
                storage_path=tmp_path / "runs",
                name=f"fails-{fails}",
                verbose=0,
                failure_config=FailureConfig(max_failures=1),
            ),
        ).fit()
        histories.append([(m["loss"], m["first"]) for m in result.metrics_history])
    assert len(histories[0]) == 12
    assert histories[0] == histories[1]


def test_files_are_sent_as_paths_and_what_is_large_and_in_memory_is_refused(
    hdf5: Dataset, tmp_path: Path
):
    result = fit(see_sizes_of_one, tmp_path / "runs", 1, datasets={"train": hdf5})
    assert len((result.path / "spec.pkl").read_bytes()) < 20_000
    assert len(pickle.dumps(hdf5)) < 2000
    large = from_numpy({"y": np.zeros(2_000_000)})
    message = r"dataset 'train' has 15 MiB in memory, .*write_hdf5\(\) or write_parquet\(\)"
    with pytest.raises(ConfigError, match=message):
        fit(see_sizes_of_one, tmp_path / "runs", 2, datasets={"train": large})


def see_sizes_of_one() -> None:
    hpctrain.report({"rows": hpctrain.get_dataset_shard("train").num_rows})


def test_ranks_get_parts_of_what_each_sorts_and_groups_for_itself(tmp_path: Path):
    def train() -> None:
        sorted_rows = hpctrain.get_dataset_shard("train")
        groups = hpctrain.get_dataset_shard("groups")
        found = {
            "keys": [row["key"] for row in sorted_rows.iter_rows()],
            "sums": [row["sum(x)"] for row in groups.iter_rows()],
        }
        rank = hpctrain.get_context().get_world_rank()
        (tmp_path / f"rank-{rank}.json").write_text(json.dumps(found))

    rows = from_items([{"key": 7 * i % 20, "part": i % 5, "x": i} for i in range(20)])
    result = fit(
        train,
        tmp_path / "runs",
        2,
        datasets={
            "train": rows.filter(lambda row: row["key"] > 3).sort("key", descending=True),
            "groups": rows.groupby("part").sum("x"),
        },
        dataset_config=DataConfig(datasets_to_split=["train"]),
    )
    assert result.error is None
    found = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert [part["keys"] for part in found] == [list(range(19, 11, -1)), list(range(11, 3, -1))]
    assert [part["sums"] for part in found] == [[30, 34, 38, 42, 46]] * 2
