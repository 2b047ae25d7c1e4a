"""A disk of a node, and the processes of jobs that bring a packed environment there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plan.pack_nodes import Nodes


@pytest.fixture
def start() -> Iterator[Nodes]:
    nodes = Nodes()
    yield nodes
    nodes.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "a disk").mkdir()
    return tmp_path / "a disk"
