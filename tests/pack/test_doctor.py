"""``hpctrain doctor`` with the script of a run in a packed environment, on two nodes."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain.testing.slurm import VirtualCluster
from tests.pack.conftest import SmallEnvironment
from tests.pack.test_packs_on_nodes import SCRIPT

pytestmark = [pytest.mark.slurm, pytest.mark.mpi]


@pytest.fixture
def shared() -> Iterator[Path]:
    """Return a directory that nodes see."""
    with tempfile.TemporaryDirectory(prefix="hpctrain-", dir="/var/tmp") as folder:
        yield Path(folder)


def test_the_file_and_the_nodes_are_looked_at_before_anything_is_submitted(
    virtual_slurm: VirtualCluster,
    shared: Path,
    small_environment: SmallEnvironment,
    packed: tuple[Path, dict[str, Any]],
) -> None:
    (shared / "train.py").write_text(SCRIPT)
    pack = shared / "environment.tar"
    shutil.copyfile(packed[0], pack)
    words = ("train.py", "run", json.dumps({"environment_pack": str(pack)}), "{}")

    def examine(*options: str, code: int = 0) -> list[dict[str, Any]]:
        argv = ("hpctrain.cli", "doctor", "--json", *options, *words)
        done = small_environment.run(*argv, code=code, cwd=shared, **virtual_slurm.environ)
        found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
        return [finding for finding in found if finding["check"] in ("pack", "request")]

    file, nodes = examine()
    assert (file["level"], nodes["level"]) == ("ok", "ok"), (file, nodes)
    assert f"{pack} is of this environment, and whole" in file["what"]
    assert nodes["what"].startswith("/dev/shm (tmpfs) of nodes has ")

    with open(pack, "r+b") as opened:
        opened.seek(100_000)
        opened.write(b"xxxxxxxx")
    (damaged,) = examine("--no-probe", code=3)
    assert f"{pack} is damaged: its digest is " in damaged["what"]
    pack.unlink()
    (absent,) = examine("--no-probe", code=3)
    assert f"the packed environment {pack} cannot be read: No such file" in absent["what"]
