"""Checkpoints on filesystems that are full, without O_DIRECT, or beside little memory."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Result, SyncConfig
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.store import CheckpointStore
from tests import runs

SIZE_MIB = 24


def mount(kind: str, directory: Path) -> None:
    directory.mkdir()
    options = {"tmpfs": ["-t", "tmpfs", "-o", f"size={SIZE_MIB}m"], "ramfs": ["-t", "ramfs"]}
    what = "none"
    if kind == "ext4":
        what = f"{directory}.img"
        Path(what).touch()
        subprocess.run(["truncate", f"--size={SIZE_MIB}M", what], check=True)
        subprocess.run(["mkfs.ext4", "-q", what], check=True)
        options["ext4"] = ["-o", "loop"]
    mounted = subprocess.run(["mount", *options[kind], what, directory], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"this user may not mount {kind}: {mounted.stderr.decode()}")


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A filesystem of a kind, `SIZE_MIB` large if it is not ramfs, which has no limit."""
    directory = tmp_path / "disk"
    mount(request.param, directory)
    try:
        yield directory
    finally:
        subprocess.run(["umount", directory], check=True)


def fit(
    train: Callable[..., Any],
    config: dict[str, Any],
    storage: Path,
    *,
    num_workers: int = 2,
    **sync: Any,
) -> Result:
    return runs.fit(
        train,
        storage,
        num_workers=num_workers,
        train_loop_config=config,
        sync_config=SyncConfig(**sync),
    )


def used(directory: Path) -> int:
    found = subprocess.run(
        ["du", "--summarize", "--bytes", directory], capture_output=True, check=True
    )
    return int(found.stdout.split()[0])


def _save_too_much() -> Callable[[dict[str, Any]], list[str]]:
    """Save in four reports; what rank 1 saves with the second does not fit on the disk."""

    def train(config: dict[str, Any]) -> list[str]:
        from pathlib import Path

        import hpctrain
        from hpctrain import Checkpoint, CheckpointUploadMode
        from hpctrain.errors import CheckpointError

        rank = hpctrain.get_context().get_world_rank()
        told = []
        for step in range(1, 5):
            size = 40_000_000 if (rank, step) == (1, 2) else 2_000_000
            try:
                with hpctrain.checkpoint_dir() as d:
                    try:
                        Path(d, f"rank-{rank}").write_bytes(bytes([step]) * size)
                    except OSError as error:
                        raise CheckpointError(f"the library: {error.strerror}") from error
                    hpctrain.report(
                        {"step": step},
                        Checkpoint(d),
                        checkpoint_upload_mode=CheckpointUploadMode[config["mode"]],
                    )
            except CheckpointError as error:
                told.append(str(error))
                if str(error).startswith("the library"):
                    # Nothing has been reported, so the others wait.
                    hpctrain.report({"step": step})
            try:
                hpctrain.get_all_reported_checkpoints()
            except CheckpointError as error:
                told.append(str(error))
        hpctrain.report({"told": told, "rank": rank})
        storage = hpctrain.get_context().get_storage()
        (storage / f"told-{rank}").write_text("\n".join(told))
        return told

    return train


@pytest.mark.mpi
@pytest.mark.parametrize("disk", ["tmpfs", "ext4"], indirect=True)
@pytest.mark.parametrize("mode", ["SYNC", "ASYNC"])
def test_a_copy_that_does_not_fit_is_told_to_all_ranks_who_go_on(
    tmp_path: Path, disk: Path, mode: str
):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    result = fit(_save_too_much(), {"mode": mode}, disk, scratch_dir=scratch)
    for rank in range(2):
        told = (result.path / f"told-{rank}").read_text()
        assert "rank 1 could not write its part of the checkpoint of report 2" in told
        assert "No space left on device" in told
        assert told.count("\n") == 0
    check_all_but_the_second(result)
    assert list(scratch.glob("*/*")) == []


@pytest.mark.mpi
@pytest.mark.parametrize("disk", ["tmpfs"], indirect=True)
def test_what_a_library_could_not_write_makes_room_again(disk: Path):
    result = fit(_save_too_much(), {"mode": "SYNC"}, disk)
    assert (result.path / "told-1").read_text() == "the library: No space left on device"
    check_all_but_the_second(result, with_rank_0=True)


@pytest.mark.mpi
@pytest.mark.parametrize("disk", ["tmpfs"], indirect=True)
def test_a_scratch_directory_that_is_full_makes_room_again(tmp_path: Path, disk: Path):
    result = fit(_save_too_much(), {"mode": "SYNC"}, tmp_path / "storage", scratch_dir=disk)
    assert (result.path / "told-1").read_text() == "the library: No space left on device"
    check_all_but_the_second(result, with_rank_0=True)
    assert list(disk.glob("*/*")) == []


def check_all_but_the_second(result: Result, *, with_rank_0: bool = False) -> None:
    paths = RunPaths(result.path)
    names = sorted(path.name for path in paths.checkpoints.iterdir())
    expected = ["000001", "000003", "000004"]
    assert names == sorted([*expected, *(["000002"] if with_rank_0 else [])])
    store = CheckpointStore(paths.checkpoints)
    for manifest in store.manifests():
        store.verify(manifest)
    assert used(paths.checkpoints) < 2 * len(names) * 2_100_000
    assert len(result.attempts) == 1
    assert result.checkpoint is not None
    assert result.checkpoint.path.name == "000004"


def _save_and_resume() -> Callable[[dict[str, Any]], Any]:
    """Save 10 MiB in each mode and fail; at the second attempt, find the last."""

    def train(config: dict[str, Any]) -> Any:
        from pathlib import Path

        import hpctrain
        from hpctrain import Checkpoint, CheckpointUploadMode

        rank = hpctrain.get_context().get_world_rank()
        content = b"".join(bytes([rank + 1, n % 251]) * 4096 for n in range(2560))
        if found := hpctrain.get_checkpoint():
            with found.as_directory() as d:
                assert Path(d, f"rank-{rank}").read_bytes() == content
            return "resumed"
        own = Path(config["own"]) / str(rank)
        own.mkdir(parents=True)
        for mode in CheckpointUploadMode:
            with hpctrain.checkpoint_dir() as d:
                Path(d, f"rank-{rank}").write_bytes(content)
                hpctrain.report({}, Checkpoint(d), checkpoint_upload_mode=mode)
            if mode is not CheckpointUploadMode.NO_UPLOAD:
                directory = own / mode.name
                directory.mkdir()
                (directory / f"rank-{rank}").write_bytes(content)
                hpctrain.report({}, Checkpoint(directory), checkpoint_upload_mode=mode)
        hpctrain.get_all_reported_checkpoints()
        raise RuntimeError("now")

    return train


@pytest.mark.mpi
@pytest.mark.parametrize("disk", ["ramfs"], indirect=True)
@pytest.mark.parametrize("which", ["storage", "scratch"])
def test_a_filesystem_without_o_direct_will_do(tmp_path: Path, disk: Path, which: str):
    (tmp_path / "other").mkdir()
    storage, scratch = disk, tmp_path / "other"
    if which == "scratch":
        storage, scratch = scratch, storage
    config = {"own": str(tmp_path / "own")}
    with pytest.raises(Exception, match="RuntimeError: now"):
        fit(_save_and_resume(), config, storage, scratch_dir=scratch)
    assert verified_reports(storage) == [1, 2, 3, 4, 5]
    result = fit(_save_and_resume(), config, storage, scratch_dir=scratch)
    assert result.return_value == "resumed"


def _save_more_than_there_is_memory() -> Callable[[dict[str, Any]], int]:
    """Save 160 MiB in each mode that copies, with 130 MiB of address space to do it in."""

    def train(config: dict[str, Any]) -> int:
        import resource
        from pathlib import Path

        import hpctrain
        from hpctrain import Checkpoint, CheckpointUploadMode

        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 130 * 2**20, resource.RLIM_INFINITY))
        rank = hpctrain.get_context().get_world_rank()
        own = Path(config["own"]) / str(rank)
        own.mkdir(parents=True)
        size = 0
        for mode in (CheckpointUploadMode.SYNC, CheckpointUploadMode.ASYNC):
            with hpctrain.checkpoint_dir() as d:
                for directory in (Path(d), own):
                    with open(directory / f"rank-{rank}", "wb") as out:
                        size = sum(out.write(bytes([n]) * 2**20) for n in range(160))
                hpctrain.report({}, Checkpoint(d), checkpoint_upload_mode=mode)
                hpctrain.report({}, Checkpoint(own))
        return size

    return train


@pytest.mark.mpi
@pytest.mark.parametrize("with_scratch", [False, True])
def test_checkpoints_may_be_larger_than_memory(tmp_path: Path, with_scratch: bool):
    storage, scratch = tmp_path / "storage", tmp_path / "scratch"
    scratch.mkdir()
    sync = {"scratch_dir": scratch} if with_scratch else {}
    result = fit(
        _save_more_than_there_is_memory(),
        {"own": str(tmp_path / "own")},
        storage,
        num_workers=1,
        **sync,
    )
    assert result.return_value == 160 * 2**20
    assert verified_reports(storage) == [1, 2, 3, 4]


def verified_reports(storage: Path) -> list[int]:
    store = CheckpointStore(RunPaths(storage / "run").checkpoints)
    manifests = store.manifests()
    for manifest in manifests:
        store.verify(manifest)
    return [manifest.report for manifest in manifests]
