"""Packs that another user may not read, or can have written."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctrain.version import __version__
from tests.pack.tiny import write_tiny_pack

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
ANOTHER_USER = 12345

PLANS = """
import os, platform, sys
# The other user may not read what is imported late.
import hpctrain.pack.header
from hpctrain import HpctrainError, SlurmConfig
from hpctrain.launch.environment_pack import plan_environment_pack

path, prefix, user = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.prefix = prefix
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
try:
    plan_environment_pack(SlurmConfig(environment_pack=path), launcher="slurm")
    print("planned")
except HpctrainError as error:
    print(error)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a directory that all users may enter; pytest's own they may not."""
    with tempfile.TemporaryDirectory(prefix="hpctrain-", dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        (Path(folder) / "env").mkdir()
        (Path(folder) / "packs").mkdir(mode=0o755)
        yield Path(folder)


def write(place: Path) -> Path:
    """Write a pack of the environment there."""
    path = place / "packs/environment.tar"
    write_tiny_pack(
        path,
        prefix=str(place / "env"),
        python=platform.python_version(),
        hpctrain=__version__,
    )
    return path


def plan(path: Path, *, user: int, **variables: str) -> str:
    """Return what is said to a user whose run is to start in a pack."""
    words = [str(path), str(path.parents[1] / "env"), str(user)]
    done = subprocess.run(
        [sys.executable, "-c", PLANS, *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_file_that_this_user_may_not_read_is_named_with_its_owner_and_mode(place: Path) -> None:
    path = write(place)
    assert plan(path, user=ANOTHER_USER) == "planned\n"
    path.chmod(0o600)
    said = plan(path, user=ANOTHER_USER)
    assert f"the packed environment {path} cannot be read: user 12345 may not read {path}" in said
    assert "which belongs to root (user 0) and has mode 0600. Its owner can" in said
    assert "chmod a+r" in said
    assert "hpctrain pack -o FILE" in said


def test_a_directory_that_this_user_may_not_enter_is_named_in_place_of_the_file(
    place: Path,
) -> None:
    path = write(place)
    path.parent.chmod(0o700)
    said = plan(path, user=ANOTHER_USER)
    assert f"user 12345 may not enter {path.parent}, which belongs to root (user 0)" in said
    assert "mode 0700" in said
    assert "chmod a+x" in said


def test_a_pack_of_another_user_would_run_as_this_one_and_is_refused(place: Path) -> None:
    path = write(place)
    os.chown(path, ANOTHER_USER, ANOTHER_USER)
    said = plan(path, user=0)
    assert f"the packed environment {path} belongs to user 12345" in said
    assert "would run as you" in said
    assert "Choose another SlurmConfig(environment_pack=...)" in said
    assert plan(path, user=0, HPCTRAIN_TRUST_WRITERS="1") == "planned\n"
    # Their Python runs here already.
    os.chown(place / "env", ANOTHER_USER, ANOTHER_USER)
    assert plan(path, user=0) == "planned\n"
    assert plan(path, user=ANOTHER_USER) == "planned\n"


def test_a_pack_that_others_can_write_is_refused(place: Path) -> None:
    path = write(place)
    path.chmod(0o664)
    said = plan(path, user=0)
    assert "can be written by others (mode 0664)" in said
    assert f"chmod -R go-w {path}" in said
    os.chown(path, ANOTHER_USER, ANOTHER_USER)
    os.chown(place / "env", ANOTHER_USER, ANOTHER_USER)
    assert "belongs to user 12345" in plan(path, user=0)


FINDS = """
import os, sys
from pathlib import Path
from hpctrain.pack.editable import find_elsewhere

place, user = Path(sys.argv[1]), int(sys.argv[2])
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
print(find_elsewhere(place / "site", prefix=place / "env").directories)
"""


def test_a_directory_that_may_not_be_searched_is_no_package_and_does_no_harm(place: Path) -> None:
    project = place / "project"
    for folder in (place / "site", project, project / "mine", project / "closed"):
        folder.mkdir(mode=0o755)
    (project / "mine/__init__.py").touch()
    (project / "closed").chmod(0)
    (place / "site/mine.pth").write_text(f"{project}\n{project}/closed/src\n")
    done = subprocess.run(
        [sys.executable, "-c", FINDS, str(place), str(ANOTHER_USER)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{ {project: ('mine',)} }\n"
