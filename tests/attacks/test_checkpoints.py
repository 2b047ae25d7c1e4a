"""Pickles in checkpoints: which are opened without being trusted, in every home, and which not."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpctrain
from hpctrain import (
    Checkpoint,
    CheckpointError,
    CheckpointUploadMode,
    pickle_trust,
)
from hpctrain.preprocessors import BatchMapper
from hpctrain.rundir.shared_staging import SharedStaging
from hpctrain.testing.slurm import VirtualCluster
from hpctrain.writers import COPIED_NAME, read_judged
from tests import runs

ANOTHER_USER = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root, for files of another user")
BATCH = {"x": np.array([1.0, 2.0])}


class Marking:
    """A function of a preprocessor that makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return _mark, (self.marker,)

    def __call__(self, batch: Any) -> Any:
        return batch


def _mark(marker: Path) -> Marking:
    marker.touch()
    return Marking(marker)


@pytest.fixture
def project() -> Iterator[Path]:
    """A directory that anybody can enter, as those of projects are."""
    directory = Path(tempfile.mkdtemp(prefix="hpctrain-project-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "ran"


@pytest.fixture
def checkpoint(project: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    """A checkpoint with a pickle, which another process than this one has made."""
    directory = project / "run" / "checkpoint"
    directory.mkdir(parents=True, mode=0o755)
    made = Checkpoint(directory)
    made.set_preprocessor(BatchMapper(Marking(marker), batch_format="numpy"))
    assert sorted(os.listdir(directory)) == ["preprocessor.json", "preprocessor.npz"]
    monkeypatch.setattr(pickle_trust, "_made", set())
    return made


def is_refused(checkpoint: Checkpoint, marker: Path, why: str) -> None:
    """Check that nothing has run, and that the error says why and what to do."""
    with pytest.raises(CheckpointError, match=f"(?s)opening it runs code.*{why}.*trusted=True"):
        checkpoint.get_preprocessor()
    assert not marker.exists()
    assert checkpoint.get_preprocessor(trusted=True) is not None
    assert marker.exists()
    marker.unlink()


def is_opened(checkpoint: Checkpoint, marker: Path) -> None:
    assert checkpoint.get_preprocessor() is not None
    assert marker.exists()
    marker.unlink()


def test_what_only_this_user_can_have_written_is_opened(
    checkpoint: Checkpoint, marker: Path
) -> None:
    is_opened(checkpoint, marker)


def test_what_the_group_can_write_is_not_until_that_is_mended(
    checkpoint: Checkpoint, marker: Path
) -> None:
    directory = Path(checkpoint.path)
    for path in (directory, *directory.iterdir()):
        path.chmod(path.stat().st_mode | 0o020)
    why = rf"{directory} can be written by others \(mode 0775\)\. If all in it is your own: "
    is_refused(checkpoint, marker, why)
    subprocess.run(["chmod", "-R", "go-w", directory], check=True)
    is_opened(checkpoint, marker)


@pytest.mark.parametrize("mode", [0o2775, 0o775, 0o777])
def test_scratch_of_a_group_needs_trust(
    checkpoint: Checkpoint, project: Path, marker: Path, mode: int
) -> None:
    """Whoever can write above can put another directory in its place."""
    project.chmod(mode)
    why = (
        rf"{project} can be written by others \(mode {mode:04o}\)\. Keep it in a directory in "
        rf"which only you can write, or prevent others from replacing your files there: "
        rf"chmod \+t {project}\."
    )
    is_refused(checkpoint, marker, why)
    subprocess.run(["chmod", "+t", project], check=True)
    is_opened(checkpoint, marker)


@needs_root
def test_no_chmod_is_advised_for_what_belongs_to_the_project(
    checkpoint: Checkpoint, project: Path, marker: Path
) -> None:
    for path in (project / "run", project / "run" / "checkpoint", marker.parent):
        os.chown(path, ANOTHER_USER, -1)
    project.chmod(0o2775)
    os.seteuid(ANOTHER_USER)
    try:
        with pytest.raises(CheckpointError, match=r"only you can write\. If you trust") as refusal:
            checkpoint.get_preprocessor()
    finally:
        os.seteuid(0)
    assert "chmod" not in str(refusal.value)


def test_the_advice_is_for_the_whole_checkpoint_however_it_is_named(
    checkpoint: Checkpoint, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(checkpoint.path) / "preprocessor.npz"
    path.chmod(0o664)
    (project / "link").symlink_to(checkpoint.path)
    monkeypatch.chdir(project)
    for where in (Path(checkpoint.path), Path("run/checkpoint"), Path("link"), path):
        _, foreign = read_judged(path)
        assert f" your own: chmod -R go-w {where}." in pickle_trust.advice(where, foreign)


@needs_root
@pytest.mark.parametrize("name", ["preprocessor.json", "preprocessor.npz", ".", "..", "../.."])
def test_what_belongs_to_somebody_else_needs_trust(
    checkpoint: Checkpoint, marker: Path, name: str
) -> None:
    path = Path(os.path.normpath(checkpoint.path / name))
    os.chown(path, ANOTHER_USER, -1)
    is_refused(checkpoint, marker, rf"{path} belongs to \w+ \(user {ANOTHER_USER}\)")


@needs_root
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_to_the_file_of_somebody_else_needs_trust(
    checkpoint: Checkpoint, project: Path, marker: Path, link: Callable[[Path, Path], None]
) -> None:
    own, theirs = Path(checkpoint.path, "preprocessor.npz"), project / "theirs"
    own.rename(theirs)
    os.chown(theirs, ANOTHER_USER, -1)
    link(theirs, own)
    is_refused(checkpoint, marker, "belongs to")


@needs_root
def test_what_somebody_else_puts_beside_it_is_not_opened(
    checkpoint: Checkpoint, project: Path, marker: Path
) -> None:
    """In a directory with the sticky bit others can add files, and replace none."""
    directory = project / "shared"
    directory.mkdir()
    directory.chmod(0o1777)
    theirs = directory / "_preprocessor"
    theirs.write_bytes(pickle.dumps(BatchMapper(Marking(marker), batch_format="numpy")))
    os.chown(theirs, ANOTHER_USER, -1)
    is_refused(Checkpoint(directory), marker, r"shared can be written by others \(mode 1777\)")


def test_a_setting_for_runs_does_not_open_checkpoints(
    checkpoint: Checkpoint, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCTRAIN_TRUST_WRITERS", "1")
    Path(checkpoint.path).chmod(0o775)
    is_refused(checkpoint, marker, "can be written by others")


# A copy belongs to this user, and what is in it may not.


def by_directory(checkpoint: Checkpoint, target: Path) -> Checkpoint:
    return Checkpoint(checkpoint.to_directory(target))


def by_bytes(checkpoint: Checkpoint, target: Path) -> Checkpoint:
    return Checkpoint.from_bytes(checkpoint.to_bytes())


def by_dict(checkpoint: Checkpoint, target: Path) -> Checkpoint:
    return Checkpoint.from_dict(checkpoint.to_dict())


def twice(checkpoint: Checkpoint, target: Path) -> Checkpoint:
    return by_bytes(by_directory(checkpoint, target / "first"), target)


def by_report(checkpoint: Checkpoint, target: Path, **how: Any) -> Checkpoint:
    def train() -> None:
        hpctrain.report({"loss": 1.0}, checkpoint=checkpoint, **how)

    result = runs.fit(train, target, num_workers=0)
    assert result.checkpoint is not None
    return result.checkpoint


def by_report_behind(checkpoint: Checkpoint, target: Path) -> Checkpoint:
    return by_report(checkpoint, target, checkpoint_upload_mode=CheckpointUploadMode.ASYNC)


def by_links(checkpoint: Checkpoint, target: Path) -> Checkpoint:
    return by_report(checkpoint, target, checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD)


WAYS = [by_directory, by_bytes, by_dict, twice, by_report, by_report_behind, by_links]


@pytest.mark.parametrize("copy", WAYS)
def test_a_copy_of_what_others_can_write_needs_trust_too(
    checkpoint: Checkpoint, project: Path, marker: Path, copy: Callable[..., Checkpoint]
) -> None:
    Path(checkpoint.path).chmod(0o777)
    target = project / "copies"
    target.mkdir(mode=0o755)
    copied = copy(checkpoint, target)
    # copytree() takes the mode along.
    Path(copied.path).chmod(0o755)
    assert (copied.path / COPIED_NAME).exists()
    is_refused(copied, marker, r"\.hpctrain-copied marks this as a copy")


@pytest.mark.parametrize("copy", WAYS)
def test_a_part_of_such_a_copy_needs_trust_too(
    checkpoint: Checkpoint, project: Path, marker: Path, copy: Callable[..., Checkpoint]
) -> None:
    """A checkpoint in a directory of the checkpoint that was copied: itself, and a copy of it."""
    theirs, target = project / "theirs", project / "copies"
    theirs.mkdir(mode=0o755)
    Path(checkpoint.path).rename(theirs / "generator")
    theirs.chmod(0o777)
    target.mkdir(mode=0o755)
    mine = Path(Checkpoint(theirs).to_directory(project / "mine"))
    mine.chmod(0o755)
    part = Checkpoint(mine / "generator")
    is_refused(part, marker, r"mine/\.hpctrain-copied marks this as a copy")
    is_refused(copy(part, target), marker, r"\.hpctrain-copied marks this as a copy")


# Each returns what was copied, and whether it is taken for this user's own.


def copied_by_directory(checkpoint: Checkpoint, target: Path) -> tuple[bytes, bool]:
    copied = Path(checkpoint.to_directory(target))
    return (copied / "who").read_bytes(), not (copied / COPIED_NAME).exists()


def copied_by_bytes(checkpoint: Checkpoint, target: Path) -> tuple[bytes, bool]:
    copied = Checkpoint.from_bytes(checkpoint.to_bytes())
    return (copied.path / "who").read_bytes(), not (copied.path / COPIED_NAME).exists()


def copied_by_report(
    checkpoint: Checkpoint, target: Path, *, with_links: bool = False
) -> tuple[bytes, bool]:
    staging = SharedStaging(target / "commit" / "all", target / "commit" / "rank-00000")
    target.mkdir()
    (staging.link if with_links else staging.copy)(Path(checkpoint.path))
    return staging.paths["who"].read_bytes(), COPIED_NAME not in staging.paths


def copied_by_links(checkpoint: Checkpoint, target: Path) -> tuple[bytes, bool]:
    return copied_by_report(checkpoint, target, with_links=True)


@pytest.mark.parametrize(
    "copy", [copied_by_directory, copied_by_bytes, copied_by_report, copied_by_links]
)
@pytest.mark.parametrize("num_calls", [1, 2, 4, 8, 16, 1000])
def test_what_is_put_in_place_while_it_is_copied_does_not_pass_for_ones_own(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    copy: Callable[[Checkpoint, Path], tuple[bytes, bool]],
    num_calls: int,
) -> None:
    """Before each step another directory is put there, for some steps; then the first one again."""
    shared = project / "shared"
    for name in ("checkpoint", "theirs"):
        (shared / name).mkdir(parents=True, mode=0o755)
        (shared / name / "who").write_text(name)
    (shared / "theirs").chmod(0o777)
    shared.chmod(0o777)
    steps: Iterator[int] = iter(())

    def exchange() -> None:
        (shared / "checkpoint").rename(shared / "third")
        (shared / "theirs").rename(shared / "checkpoint")
        (shared / "third").rename(shared / "theirs")

    def stepping(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if next(steps, None) in (at, at + num_calls):
                exchange()
            return original(*arguments, **named)

        return call

    checkpoint = Checkpoint(shared / "checkpoint")
    seen = set()
    for at in range(100):
        steps = iter(range(10**6))
        with monkeypatch.context() as patch:
            for name in ("open", "stat", "scandir", "listdir"):
                patch.setattr(os, name, stepping(getattr(os, name)))
            try:
                content, is_own = copy(checkpoint, project / f"copy-{at}")
            except (OSError, CheckpointError):
                content, is_own = b"", False
        done = next(steps)
        assert content != b"theirs" or not is_own
        seen.add((content, is_own))
        if (shared / "checkpoint" / "who").read_text() == "theirs":
            exchange()
        if at > done:
            break
    assert (b"checkpoint", True) in seen
    assert at > 5


@pytest.mark.parametrize(
    "copy", [copied_by_directory, copied_by_bytes, copied_by_report, copied_by_links]
)
@needs_root
def test_a_copy_by_way_of_the_link_of_somebody_else_needs_trust(
    project: Path, copy: Callable[[Checkpoint, Path], tuple[bytes, bool]]
) -> None:
    (project / "own").mkdir(mode=0o755)
    (project / "own" / "who").write_text("me")
    (project / "link").symlink_to("own")
    checkpoint = Checkpoint(project / "link")
    assert copy(checkpoint, project / "first") == (b"me", True)
    os.chown(project / "link", ANOTHER_USER, -1, follow_symlinks=False)
    # Others: the same bytes are known by now.
    (project / "own" / "who").write_text("me, again")
    assert copy(checkpoint, project / "second") == (b"me, again", False)


def test_what_others_can_write_before_its_copy_is_complete_needs_trust(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "own").mkdir(mode=0o755)
    (project / "own" / "who").write_text("me")
    original = shutil.copyfile

    def copyfile(*arguments: Any, **named: Any) -> Any:
        (project / "own").chmod(0o777)
        return original(*arguments, **named)

    monkeypatch.setattr(shutil, "copyfile", copyfile)
    assert copied_by_directory(Checkpoint(project / "own"), project / "copy") == (b"me", False)


@pytest.mark.parametrize("copy", WAYS)
def test_a_copy_of_what_is_ones_own_does_not(
    checkpoint: Checkpoint, project: Path, marker: Path, copy: Callable[..., Checkpoint]
) -> None:
    target = project / "copies"
    target.mkdir(mode=0o755)
    copied = copy(checkpoint, target)
    assert not (copied.path / COPIED_NAME).exists()
    is_opened(copied, marker)


def test_bytes_of_another_process_need_trust(
    checkpoint: Checkpoint, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, whole = checkpoint.to_bytes(), dict(checkpoint.to_dict())
    monkeypatch.setattr(pickle_trust, "_made", set())
    is_refused(Checkpoint.from_bytes(content), marker, "as a copy")
    is_refused(Checkpoint.from_dict(whole), marker, "as a copy")


def test_what_a_training_function_writes_with_any_umask_can_be_reported(
    project: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a temporary directory that nobody else enters, the mode of a file says nothing."""
    umask = os.umask(0o002)
    try:
        with tempfile.TemporaryDirectory() as folder:
            content = pickle.dumps(BatchMapper(Marking(marker), batch_format="numpy"))
            Path(folder, "_preprocessor").write_bytes(content)
            marker.unlink(missing_ok=True)
            copied = by_report(Checkpoint(folder), project)
    finally:
        os.umask(umask)
    is_opened(copied, marker)


# All homes have one rule.

HOMES = """
import json, sys
from pathlib import Path

import hpctrain


def train(config):
    told = {}
    for name in ("own", "shared"):
        try:
            made = hpctrain.Checkpoint(config[name]).get_preprocessor()
            told[name] = type(made).__name__
        except hpctrain.CheckpointError as error:
            told[name] = "refused" if "can be written by others" in str(error) else str(error)
    rank = hpctrain.get_context().get_world_rank()
    Path(config["answers"], f"{config['home']}-{rank}").write_text(json.dumps(told))
    hpctrain.report({"rank": rank})


if __name__ == "__main__":
    config = json.loads(sys.argv[1])
    scaling = hpctrain.ScalingConfig(
        num_workers=config["workers"], slurm=hpctrain.SlurmConfig(nodes=1, time=5)
    )
    run = hpctrain.RunConfig(name=config["home"], storage_path="runs", verbose=0)
    hpctrain.DataParallelTrainer(
        train, train_loop_config=config, scaling_config=scaling, run_config=run
    ).fit()
"""

EXPECTED = {"own": "BatchMapper", "shared": "refused"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "homes.py").write_text(HOMES)
    (tmp_path / "answers").mkdir()
    for name in ("own", "shared"):
        (tmp_path / name).mkdir()
        Checkpoint(tmp_path / name).set_preprocessor(BatchMapper(abs, batch_format="numpy"))
    (tmp_path / "shared").chmod(0o2775)
    return tmp_path


def config(folder: Path, home: str, num_workers: int) -> str:
    paths = {name: str(folder / name) for name in ("own", "shared", "answers")}
    return json.dumps({**paths, "home": home, "workers": num_workers})


def check_answers(folder: Path, home: str, num_workers: int) -> None:
    for rank in range(max(num_workers, 1)):
        assert json.loads((folder / "answers" / f"{home}-{rank}").read_text()) == EXPECTED


@pytest.mark.parametrize(("home", "num_workers"), [("inline", 0), ("ranks", 2)])
def test_this_process_and_its_ranks_open_the_same(
    folder: Path, home: str, num_workers: int
) -> None:
    subprocess.run(
        [sys.executable, "homes.py", config(folder, home, num_workers)],
        cwd=folder,
        env={**os.environ, "HPCTRAIN_LAUNCHER": "local"} if num_workers else None,
        check=True,
        timeout=120,
    )
    check_answers(folder, home, num_workers)


@pytest.mark.mpi
def test_ranks_that_are_there_already_open_the_same(folder: Path) -> None:
    mpiexec = Path(sys.executable).with_name("mpiexec")
    subprocess.run(
        [mpiexec, "-n", "2", sys.executable, "homes.py", config(folder, "spmd", 2)],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if k != "HPCTRAIN_LAUNCHER"},
        check=True,
        timeout=120,
    )
    check_answers(folder, "spmd", 2)


@pytest.mark.slurm
def test_a_job_opens_the_same(folder: Path, virtual_slurm: VirtualCluster) -> None:
    script = [sys.executable, "homes.py", config(folder, "job", 2)]
    done = virtual_slurm.run_on("head", script, cwd=folder, timeout_s=120)
    assert done.returncode == 0, done.stdout + done.stderr
    check_answers(folder, "job", 2)
