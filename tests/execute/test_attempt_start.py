from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.checkpoint import Checkpoint
from hpctrain.checkpoint_files import MANIFEST_NAME
from hpctrain.errors import ConfigError
from hpctrain.execute.attempt_start import choose_checkpoint
from hpctrain.rundir.staging import StagedPart, seal, staging_directory
from hpctrain.rundir.store import CheckpointStore


def test_a_run_resumes_from_its_own_checkpoint_before_that_of_another_run(tmp_path: Path):
    latest = Checkpoint(tmp_path)
    assert choose_checkpoint(latest, tmp_path / "gone") is latest


def test_a_run_without_a_checkpoint_begins_with_that_of_another_run(tmp_path: Path):
    assert choose_checkpoint(None, None) is None
    assert choose_checkpoint(None, tmp_path) == Checkpoint(tmp_path)


def test_a_checkpoint_of_another_run_that_is_deleted_is_an_error(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"begins with .*gone, which is deleted.*Give another"):
        choose_checkpoint(None, tmp_path / "gone")


@pytest.mark.parametrize("damage", ["none", "lost", "altered", "torn manifest"])
def test_a_committed_checkpoint_of_another_run_is_verified(tmp_path: Path, damage: str):
    own = staging_directory(tmp_path, attempt=1, report=7, rank=0)
    own.mkdir(parents=True)
    (own / "model.bin").write_bytes(b"weights")
    part = StagedPart(files=tuple(seal(own)))
    made, _ = CheckpointStore(tmp_path).commit(
        attempt=1, report=7, world_size=1, metrics={}, parts={0: part}
    )
    if damage == "none":
        assert choose_checkpoint(None, made.path) == made
        return
    if damage == "lost":
        (made.path / "model.bin").unlink()
    elif damage == "altered":
        (made.path / "model.bin").write_bytes(b"wEights")
    else:
        (made.path / MANIFEST_NAME).write_bytes(b"{")
    reason = {"lost": "has lost", "altered": "but 7 bytes and digest", "torn manifest": "is torn"}
    with pytest.raises(ConfigError, match=rf"begins with .*7.*{reason[damage]}.*Give another"):
        choose_checkpoint(None, made.path)
