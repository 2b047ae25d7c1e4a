"""Checkpoints in every upload mode, on real ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain import (
    CheckpointConfig,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
    SyncConfig,
    UserCallback,
)
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.store import CheckpointStore
from tests import runs

CHECKOUT = Path(__file__).parents[2]


class Journal(UserCallback):
    """Writes down which checkpoint came with which report."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        name = None if checkpoint is None else checkpoint.path.name
        with open(self.path, "a") as file:
            file.write(json.dumps(name) + "\n")


def _pairs() -> Callable[[], Any]:
    """Report in every pair of modes on two ranks; what it needs is inside, to travel by value."""

    def train() -> Any:
        import itertools
        from pathlib import Path

        import hpctrain
        from hpctrain import Checkpoint, CheckpointUploadMode

        rank = hpctrain.get_context().get_world_rank()
        storage = hpctrain.get_context().get_storage()
        modes = [None, *CheckpointUploadMode]
        newest: list[Any] = []
        for step, pair in enumerate(itertools.product(modes, modes), start=1):
            mode = pair[rank]
            metrics = {"modes": [m and m.name for m in pair], "step": step}
            if mode is None:
                hpctrain.report(metrics)
            elif step % 2:
                with hpctrain.checkpoint_dir() as d:
                    (Path(d) / f"rank-{rank}").write_text(str(step))
                    hpctrain.report(metrics, Checkpoint(d), checkpoint_upload_mode=mode)
            else:
                own = storage / "own" / f"{rank}-{step}"
                own.mkdir(parents=True)
                (own / f"rank-{rank}").write_text(str(step))
                hpctrain.report(metrics, Checkpoint(own), checkpoint_upload_mode=mode)
            checkpoint = hpctrain.get_checkpoint()
            newest.append(None if checkpoint is None else int(checkpoint.path.name))
        assert newest == sorted(newest, key=lambda n: n or 0)
        found = hpctrain.get_all_reported_checkpoints()
        names = [f"{int(c.checkpoint.path.name)}:{c.metrics['step']}" for c in found]
        hpctrain.report({"found": names})
        return len(list((storage / "own").iterdir()))

    return train


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, list[Any]]:
    directory = tmp_path_factory.mktemp("pairs")
    result = runs.fit(_pairs(), directory, name="pairs", callbacks=[Journal(directory / "journal")])
    lines = (directory / "journal").read_text().splitlines()
    return result, [json.loads(line) for line in lines]


@pytest.mark.mpi
def test_every_pair_of_modes_gives_whole_checkpoints_in_the_order_of_the_reports(
    pairs: tuple[Result, list[Any]],
):
    result, journal = pairs
    store = CheckpointStore(result.path / "checkpoints")
    # All but (None, None), the first.
    assert [m.report for m in store.manifests()] == list(range(2, 17))
    for manifest in store.manifests():
        store.verify(manifest)
        expected = {f"rank-{rank}" for rank, mode in enumerate(manifest.metrics["modes"]) if mode}
        assert {file.path for file in manifest.files} == expected
    assert journal == [None, *(f"{n:06d}" for n in range(2, 17)), None]


@pytest.mark.mpi
def test_all_reported_checkpoints_are_known_to_every_rank_async_ones_too(
    pairs: tuple[Result, list[Any]],
):
    result, _ = pairs
    assert result.metrics["found"] == [f"{n}:{n}" for n in range(2, 17)]


@pytest.mark.mpi
def test_directories_of_the_callers_own_are_as_they_were(pairs: tuple[Result, list[Any]]):
    result, _ = pairs
    own = sorted((result.path / "own").iterdir())
    assert len(own) == result.return_value == 14
    for directory in own:
        (file,) = directory.iterdir()
        assert directory.name == f"{file.name.removeprefix('rank-')}-{file.read_text()}"


def _descent() -> Callable[[dict[str, Any]], None]:
    """Descend on two ranks with a checkpoint of each step; die where the config says."""

    def train(config: dict[str, Any]) -> None:
        import os
        import signal
        from pathlib import Path

        import numpy

        import hpctrain
        from hpctrain import Checkpoint, CheckpointUploadMode
        from hpctrain.rundir import bulk

        rank = hpctrain.get_context().get_world_rank()
        marker = Path(config["marker"])
        weights, step = numpy.ones(1000), 0
        if checkpoint := hpctrain.get_checkpoint():
            with checkpoint.as_directory() as d:
                weights = numpy.load(f"{d}/rank-{rank}.npy")
                step = int(Path(d, f"step-{rank}").read_text())
        calls = 0
        digest = bulk.Bulk.digest

        def dying(self: object, path: Path, *, durable: bool = False) -> tuple[int, str]:
            nonlocal calls
            calls += 1
            if rank == 1 and calls == config["die_at"] and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return digest(self, path, durable=durable)

        bulk.Bulk.digest = dying
        while step < config["steps"]:
            step += 1
            weights = weights - 0.01 * numpy.sin(weights * (rank + 1))
            with hpctrain.checkpoint_dir() as d:
                numpy.save(f"{d}/rank-{rank}.npy", weights)
                Path(d, f"step-{rank}").write_text(str(step))
                hpctrain.report(
                    {"loss": float(weights.sum()), "step": step},
                    Checkpoint(d),
                    checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
                )
            if hpctrain.should_stop():
                return

    return train


def descend(directory: Path, *, name: str, die_at: int, **config: Any) -> Result:
    return runs.fit(
        _descent(),
        directory,
        name=f"run-{name}",
        train_loop_config={"steps": 8, "die_at": die_at, "marker": str(directory / name)},
        failure_config=FailureConfig(max_failures=1),
        **config,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run that nobody disturbed."""
    return descend(tmp_path_factory.mktemp("whole"), name="whole", die_at=0)


@pytest.mark.mpi
@pytest.mark.parametrize("die_at", [1, 6, 13])
def test_a_rank_killed_in_the_middle_of_an_async_checkpoint_loses_nothing(
    tmp_path: Path, whole: Result, die_at: int
):
    killed = descend(tmp_path, name="killed", die_at=die_at)
    assert len(killed.attempts) == 2
    assert killed.metrics_history == whole.metrics_history
    assert killed.checkpoint is not None
    assert whole.checkpoint is not None
    for rank in range(2):
        ours, theirs = (r.checkpoint.path / f"rank-{rank}.npy" for r in (killed, whole))  # type: ignore[union-attr]
        assert ours.read_bytes() == theirs.read_bytes()
    names = {path.name for path in RunPaths(killed.path).checkpoints.iterdir()}
    assert names == {f"{n:06d}" for n in range(1, 9)}


@pytest.mark.mpi
def test_a_stop_drains_what_is_under_way(tmp_path: Path):
    result = descend(tmp_path, name="stopped", die_at=0, stop={"step": 3})
    last = result.metrics["step"]
    assert last < 8
    assert result.checkpoint is not None
    assert int(result.checkpoint.path.name) == last


EXECUTOR = """
import os, signal, sys
from pathlib import Path

sys.path.insert(0, {tests!r})
import test_upload

at, seen = {at}, 0

def counted(function):
    def step(*args, **kwargs):
        global seen
        paths = [str(a) for a in args if isinstance(a, (str, os.PathLike))]
        if function.__name__ == "fsync" or any("/checkpoints/" in p for p in paths):
            seen += 1
            if seen == at:
                os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return step

for name in ("rename", "replace", "fsync", "rmdir"):
    setattr(os, name, counted(getattr(os, name)))
from hpctrain import CheckpointConfig
test_upload.descend(
    Path({directory!r}), name="x", die_at=0, checkpoint_config=CheckpointConfig(num_to_keep=1)
)
"""


@pytest.mark.mpi
@pytest.mark.parametrize("at", [12, 15, 18, 21, 24, 33])
def test_an_executor_killed_in_the_middle_of_a_commit_leaves_a_good_checkpoint(
    tmp_path: Path, whole: Result, at: int
):
    script = EXECUTOR.format(tests=str(Path(__file__).parent), at=at, directory=str(tmp_path))
    environment = {k: v for k, v in os.environ.items() if "HPCTRAIN" not in k}
    answer = subprocess.run(
        [sys.executable, "-c", script],
        env={**environment, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        timeout=100,
    )
    assert answer.returncode == -9, answer.stderr.decode()[-2000:]
    resumed = descend(
        tmp_path, name="x", die_at=0, checkpoint_config=CheckpointConfig(num_to_keep=1)
    )
    assert resumed.attempts[-1].cause == "finished"
    assert [m["loss"] for m in resumed.metrics_history] == [
        m["loss"] for m in whole.metrics_history
    ]
    assert [p.name for p in RunPaths(resumed.path).checkpoints.iterdir()] == ["000008"]


def _full_disk() -> Callable[[dict[str, Any]], list[str]]:
    """Save in each of five reports; on rank 1 the second does not fit."""

    def train(config: dict[str, Any]) -> list[str]:
        import resource
        from pathlib import Path

        import hpctrain
        from hpctrain import Checkpoint, CheckpointUploadMode
        from hpctrain.errors import CheckpointError

        rank = hpctrain.get_context().get_world_rank()
        told = []
        for step in range(1, 6):
            with hpctrain.checkpoint_dir() as d:
                Path(d, f"rank-{rank}").write_bytes(bytes(100_000 if step == 2 else 10))
                if (rank, step) == (1, 2):
                    # Of the copy into the commit.
                    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
                try:
                    hpctrain.report(
                        {"step": step},
                        Checkpoint(d),
                        checkpoint_upload_mode=CheckpointUploadMode[config["mode"]],
                    )
                except CheckpointError as error:
                    told.append(str(error))
                # So that the next report tells of this one.
                try:
                    hpctrain.get_all_reported_checkpoints()
                except CheckpointError as error:
                    told.append(str(error))
        return told

    return train


@pytest.mark.mpi
@pytest.mark.parametrize("mode", ["SYNC", "ASYNC"])
def test_all_ranks_are_told_of_a_disk_that_is_too_small_and_go_on(tmp_path: Path, mode: str):
    result = DataParallelTrainer(
        _full_disk(),
        train_loop_config={"mode": mode},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="full",
            storage_path=tmp_path,
            sync_config=SyncConfig(scratch_dir=str(tmp_path)),
            launcher="local",
            verbose=0,
        ),
    ).fit()
    (told,) = result.return_value
    assert "the checkpoint of report 2 was not committed" in told
    assert "rank 1 could not write its part" in told
    assert [m["step"] for m in result.metrics_history] == [1, 2, 3, 4, 5]
    assert len(result.attempts) == 1
    names = sorted(path.name for path in RunPaths(result.path).checkpoints.iterdir())
    assert names == ["000001", "000003", "000004", "000005"]


@pytest.mark.mpi
def test_an_upload_that_never_ends_is_an_error_after_the_timeout(tmp_path: Path):
    def train() -> None:
        import threading
        from pathlib import Path

        import hpctrain
        from hpctrain import Checkpoint, CheckpointUploadMode

        def never(checkpoint: Checkpoint, directory: str) -> Checkpoint:
            threading.Event().wait()
            return checkpoint

        with hpctrain.checkpoint_dir() as d:
            Path(d, "x").write_text("x")
        own = Path(d).parents[2] / "own"
        own.mkdir()
        (own / "x").write_text("x")
        hpctrain.report(
            {},
            Checkpoint(own),
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            checkpoint_upload_fn=never,
        )

    trainer = DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(
            name="never",
            storage_path=tmp_path,
            sync_config=SyncConfig(sync_timeout=1),
            launcher="local",
            verbose=0,
        ),
    )
    with pytest.raises(
        Exception, match=r"report 1 is not committed after [\d.]+ s: it is still copied"
    ):
        trainer.fit()
