from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpctrain.checkpoint_files import MANIFEST_NAME
from hpctrain.errors import CheckpointError
from hpctrain.rundir import manifest as module
from hpctrain.rundir.manifest import Manifest, encode_manifest, read_manifest
from hpctrain.rundir.staging import StagedFile


def make_manifest(name: str) -> Manifest:
    files = tuple(StagedFile(f"part-{n}", 1, f"{n:032x}") for n in range(20))
    return Manifest(
        name=name,
        report=7,
        attempt=1,
        world_size=1,
        metrics={"loss": 0.5},
        files=files,
        created_at=1.0,
        versions={},
    )


def test_a_manifest_that_could_not_be_read_again_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    manifest = make_manifest(tmp_path.name)
    content = encode_manifest(manifest)
    monkeypatch.setattr(module, "MOST_BYTES", len(content))
    (tmp_path / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    assert read_manifest(tmp_path) == manifest
    monkeypatch.setattr(module, "MOST_BYTES", len(content) - 1)
    message = re.escape(f"has 20 files, whose manifest of {len(content)} bytes is longer than the")
    with pytest.raises(CheckpointError, match=message):
        encode_manifest(manifest)
