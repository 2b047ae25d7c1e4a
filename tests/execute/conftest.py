from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain.rundir.manifest import Manifest


@pytest.fixture
def manifest() -> Manifest:
    """Return that of the checkpoint of report 3 in attempt 2, which is to be validated."""
    return Manifest(
        name="000003",
        report=3,
        attempt=2,
        world_size=1,
        metrics={},
        files=(),
        created_at=5.0,
        versions={},
        validation={"fn_kwargs": {}, "timeout_s": None},
    )


class SlowDisk:
    """Deletes nothing before it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lets = threading.Event()
        self.asked: list[Path] = []
        rmtree = shutil.rmtree

        def delete(path: Path, **options: Any) -> None:
            self.asked.append(path)
            assert self.lets.wait(60)
            rmtree(path, **options)

        monkeypatch.setattr(shutil, "rmtree", delete)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk(monkeypatch)
    yield disk
    disk.lets.set()
