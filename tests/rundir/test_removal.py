from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctrain.rundir.removal import remove_tree

NOBODY = 65534
# As a user whom modes of files bind.
REMOVE = f"""
import os, sys
from pathlib import Path
from hpctrain.rundir.removal import remove_tree
if os.geteuid() == 0:
    os.setgid({NOBODY})
    os.setuid({NOBODY})
root = Path(sys.argv[1])
folder = root / "model" / "deep"
folder.mkdir(parents=True)
(folder / "weights").write_bytes(b"w")
(root / "model" / "link").symlink_to(sys.argv[2])
for path in (folder, root / "model", root):
    path.chmod(0o500)
(root / "model").chmod(0)
remove_tree(root)
"""


def run(root: Path, other: Path) -> str:
    command = [sys.executable, "-c", REMOVE, str(root), str(other)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stderr


@pytest.fixture
def open_tmp() -> Iterator[Path]:
    """Return a directory that each user can write to, as pytest's are its user's own."""
    with tempfile.TemporaryDirectory() as found:
        os.chmod(found, 0o777)
        yield Path(found)


def test_read_only_folders_are_deleted_and_what_links_lead_to_stays(open_tmp: Path) -> None:
    other = open_tmp / "other"
    other.mkdir(0o555)
    assert run(open_tmp / "root", other) == ""
    assert [path.name for path in open_tmp.iterdir()] == ["other"]
    assert other.stat().st_mode & 0o777 == 0o555


def test_what_cannot_be_deleted_is_logged_and_what_is_gone_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remove_tree(tmp_path / "gone")
    assert capsys.readouterr().err == ""
    (tmp_path / "file").touch()
    remove_tree(tmp_path / "file")
    assert f"{tmp_path / 'file'} cannot be deleted" in capsys.readouterr().err
