"""``hpctrain doctor`` with the script of a run in a packed environment, on two nodes."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
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


Examine = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def examine(
    virtual_slurm: VirtualCluster, shared: Path, small_environment: SmallEnvironment
) -> Examine:
    """Return what looks at a run in a packed environment, and gives the findings on that."""
    (shared / "train.py").write_text(SCRIPT)

    def look(pack: Path, *options: str, code: int = 0) -> list[dict[str, Any]]:
        words = ("train.py", "run", json.dumps({"environment_pack": str(pack)}), "{}")
        argv = ("hpctrain.cli", "doctor", "--json", *options, *words)
        done = small_environment.run(*argv, code=code, cwd=shared, **virtual_slurm.environ)
        found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
        return [finding for finding in found if finding["check"] in ("pack", "request")]

    return look


def test_the_file_and_the_nodes_are_looked_at_before_anything_is_submitted(
    examine: Examine, shared: Path, packed: tuple[Path, dict[str, Any]]
) -> None:
    pack = shared / "environment.tar"
    shutil.copyfile(packed[0], pack)
    file, nodes = examine(pack)
    assert (file["level"], nodes["level"]) == ("ok", "ok"), (file, nodes)
    assert f"{pack} is of this environment, and whole" in file["what"]
    assert nodes["what"].startswith("/dev/shm (tmpfs) of nodes has ")

    with open(pack, "r+b") as opened:
        opened.seek(100_000)
        opened.write(b"xxxxxxxx")
    (damaged,) = examine(pack, "--no-probe", code=3)
    assert f"{pack} is damaged: its digest is " in damaged["what"]
    pack.unlink()
    (absent,) = examine(pack, "--no-probe", code=3)
    assert f"the packed environment {pack} cannot be read: No such file" in absent["what"]


def test_a_node_that_cannot_read_the_file_is_named_and_the_others_are_looked_at(
    examine: Examine,
    virtual_slurm: VirtualCluster,
    shared: Path,
    packed: tuple[Path, dict[str, Any]],
) -> None:
    if virtual_slurm.spec.mode != "namespaces":
        pytest.skip("nodes have one file system")
    folder, second = shared / "packs", virtual_slurm.node_names[1]
    folder.mkdir()
    pack = folder / "environment.tar"
    shutil.copyfile(packed[0], pack)
    hidden = virtual_slurm.run_on(second, ["mount", "-t", "tmpfs", "none", str(folder)])
    assert hidden.returncode == 0, hidden.stderr
    try:
        file, unseen, nodes = examine(pack)
    finally:
        virtual_slurm.run_on(second, ["umount", str(folder)])
    assert [file["level"], unseen["level"], nodes["level"]] == ["ok", "warning", "ok"], unseen
    assert f"{pack} on {second}: it cannot be read: No such file" in unseen["what"]
    assert unseen["next"].endswith(f"--exclude={second}")
    assert nodes["what"].startswith("/dev/shm (tmpfs) of nodes has ")
