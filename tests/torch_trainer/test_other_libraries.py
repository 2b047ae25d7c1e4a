"""Directories that other libraries write, with their own calls, are checkpoints like ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain import CheckpointConfig, FailureConfig, Result, RunConfig, ScalingConfig, SyncConfig
from hpctrain.checkpoint_files import MANIFEST_NAME
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.store import CheckpointStore
from hpctrain.torch import TorchTrainer

pytestmark = pytest.mark.mpi

LIBRARIES = {
    "torch": {"model.pt"},
    "safetensors": {"rank-0.safetensors", "rank-1.safetensors"},
    "dcp": {".metadata", "__0_0.distcp", "__1_0.distcp"},
    "orbax": {"manifest.ocdbt", "_METADATA"},
    "h5py": {"rank-0.h5", "rank-1.h5"},
}


def _training() -> Callable[[dict[str, Any]], list[int]]:
    """Save with all libraries; fail after the third report, and load what they saved."""

    def train(config: dict[str, Any]) -> list[int]:
        from pathlib import Path

        import h5py
        import numpy
        import safetensors.torch
        import torch
        import torch.distributed.checkpoint as dcp
        from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh

        import hpctrain
        from hpctrain import Checkpoint, CheckpointUploadMode

        rank = hpctrain.get_context().get_world_rank()
        mesh = init_device_mesh("cpu", (2,))

        def whole(step: int) -> torch.Tensor:
            # Of more than 1 MiB, so that it goes past the page cache where it is copied.
            return torch.arange(600_000, dtype=torch.float32) + step

        def sharded(step: int) -> DTensor:
            return distribute_tensor(whole(step), mesh, [Shard(0)])

        def save(directory: Path, step: int) -> None:
            for name in ("torch", "safetensors", "h5py"):
                (directory / name).mkdir()
            mine = whole(step) * (rank + 1)
            safetensors.torch.save_file(
                {"w": mine}, directory / f"safetensors/rank-{rank}.safetensors"
            )
            with h5py.File(directory / f"h5py/rank-{rank}.h5", "w") as file:
                file["w"] = mine.numpy()
            dcp.save({"w": sharded(step)}, checkpoint_id=directory / "dcp")
            if rank == 0:
                import jax
                import orbax.checkpoint

                torch.save({"w": mine, "step": step}, directory / "torch/model.pt")
                with orbax.checkpoint.PyTreeCheckpointer() as checkpointer:
                    tree = {"w": jax.numpy.asarray(mine.numpy())}
                    checkpointer.save(directory / "orbax", tree)

        def check(directory: Path) -> int:
            found = torch.load(directory / "torch/model.pt")
            step = int(found["step"])
            assert torch.equal(found["w"], whole(step))
            mine = whole(step) * (rank + 1)
            loaded = safetensors.torch.load_file(directory / f"safetensors/rank-{rank}.safetensors")
            assert torch.equal(loaded["w"], mine)
            with h5py.File(directory / f"h5py/rank-{rank}.h5") as file:
                assert numpy.array_equal(file["w"][:], mine.numpy())
            state = {"w": sharded(-1)}
            dcp.load(state, checkpoint_id=directory / "dcp")
            assert torch.equal(state["w"].full_tensor(), whole(step))
            if rank == 0:
                import orbax.checkpoint

                as_numpy = {"w": orbax.checkpoint.RestoreArgs(restore_type=numpy.ndarray)}
                with orbax.checkpoint.PyTreeCheckpointer() as checkpointer:
                    tree = checkpointer.restore(directory / "orbax", restore_args=as_numpy)
                assert numpy.array_equal(tree["w"], whole(step).numpy())
            return step

        steps = []
        step = 0
        if checkpoint := hpctrain.get_checkpoint():
            with checkpoint.as_directory() as d:
                step = check(Path(d))
            steps.append(step)
        for mode in (CheckpointUploadMode.SYNC, CheckpointUploadMode.ASYNC):
            step += 1
            with hpctrain.checkpoint_dir() as d:
                save(Path(d), step)
                hpctrain.report({"step": step}, Checkpoint(d), checkpoint_upload_mode=mode)
        step += 1
        own = Path(config["own"]) / f"{step}-{rank}"
        own.mkdir(parents=True)
        save(own, step)
        hpctrain.report({"step": step}, Checkpoint(own))
        if step == 3:
            raise RuntimeError("so that the run resumes")
        return steps

    return train


@pytest.fixture(scope="module", params=["", pytest.param("scratch", marks=pytest.mark.long)])
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Result, Path]:
    directory = tmp_path_factory.mktemp("run")
    sync = SyncConfig()
    if request.param:
        (directory / "scratch").mkdir()
        sync = SyncConfig(scratch_dir=directory / "scratch")
    result = TorchTrainer(
        _training(),
        train_loop_config={"own": str(directory / "own")},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="run",
            storage_path=directory,
            checkpoint_config=CheckpointConfig(
                num_to_keep=2,
                checkpoint_score_attribute="step",
                checkpoint_score_order="max",
            ),
            failure_config=FailureConfig(max_failures=1),
            sync_config=sync,
            launcher="local",
            verbose=0,
        ),
    ).fit()
    return result, directory


def test_a_run_resumes_from_what_other_libraries_wrote(run: tuple[Result, Path]):
    result, _ = run
    assert len(result.attempts) == 2
    # What each of them loads is compared there.
    assert result.return_value == [3]
    assert [m["step"] for m in result.metrics_history] == [1, 2, 3, 4, 5, 6]


def test_every_file_is_digested_and_verified(run: tuple[Result, Path]):
    result, _ = run
    store = CheckpointStore(RunPaths(result.path).checkpoints)
    manifests = store.manifests()
    assert [manifest.report for manifest in manifests] == [5, 6]
    for manifest in manifests:
        store.verify(manifest)
        assert {file.kind for file in manifest.files} == {"content"}
        directory = store.open(manifest).path
        listed = {file.path for file in manifest.files}
        there = {str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file()}
        assert listed == there - {MANIFEST_NAME}
        for library, names in LIBRARIES.items():
            found = {path.split("/", 1)[1] for path in listed if path.startswith(f"{library}/")}
            assert names <= found, library


def test_a_damaged_file_of_any_of_them_is_found(run: tuple[Result, Path]):
    result, _ = run
    store = CheckpointStore(RunPaths(result.path).checkpoints)
    (manifest, *_) = store.manifests()
    directory = store.open(manifest).path
    for library, names in LIBRARIES.items():
        path = directory / library / max(names)
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(Exception, match=f"{library}/.* bytes and digest"):
            store.verify(manifest)
        path.write_bytes(content)
    store.verify(manifest)


def test_the_callers_own_directories_are_as_they_were(run: tuple[Result, Path]):
    result, directory = run
    assert sorted(p.name for p in (directory / "own").iterdir()) == ["3-0", "3-1", "6-0", "6-1"]
    assert result.checkpoint is not None
    files = json.loads((result.checkpoint.path / MANIFEST_NAME).read_bytes())["files"]
    assert len(files) > len(LIBRARIES)
    for rank in range(2):
        own = directory / "own" / f"6-{rank}" / "h5py" / f"rank-{rank}.h5"
        assert own.read_bytes() == (result.checkpoint.path / "h5py" / own.name).read_bytes()
