"""An image to run ranks in, and what opens it: Apptainer where it is installed, else bubblewrap."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpctrain.testing.pytest_plugin import is_all_required

_STAND_IN = Path(__file__).with_name("apptainer_by_bubblewrap.py")
# What the root of an image has, and no more: what is in these directories is mounted, or is not
# there.
_DIRECTORIES = ["dev", "etc", "home", "opt", "proc", "root", "run", "sys", "tmp", "usr", "var"]
_LINKS = ["bin", "lib", "lib64", "sbin"]


@dataclass(frozen=True, kw_only=True)
class Image:
    """A root filesystem in a directory."""

    path: Path
    environ: Mapping[str, str]
    """Of processes that are to find the runtime on their PATH."""

    @property
    def values(self) -> dict[str, Any]:
        """Fields of a Container that runs this interpreter in it."""
        # Of the system it has what is mounted: the libraries in /usr.
        return {"image": str(self.path), "python": sys.executable, "mounts": ["/usr:/usr:ro"]}


@pytest.fixture
def image(tmp_path: Path) -> Image:
    """Return an image in a directory whose name has a space."""
    root = tmp_path / "an image"
    for name in _DIRECTORIES:
        (root / name).mkdir(parents=True)
    for name in _LINKS:
        (root / name).symlink_to(f"usr/{name}")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    return Image(path=root, environ={"PATH": f"{_runtime(tmp_path)}:{os.environ['PATH']}"})


def _runtime(tmp_path: Path) -> Path:
    """Return a directory with a program ``apptainer``."""
    if (installed := shutil.which("apptainer")) is not None:
        return Path(installed).parent
    if shutil.which("bwrap") is None:
        reason = "no bwrap on PATH: apt-get install bubblewrap"
        pytest.fail(reason, pytrace=False) if is_all_required() else pytest.skip(reason)
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "apptainer"
    program.write_text(f"#!{sys.executable}\n{_STAND_IN.read_text()}")
    program.chmod(0o755)
    return folder
