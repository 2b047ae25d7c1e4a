"""What images of squashfs need on the machine of the tests, and what is mounted there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from hpctrain.testing.pytest_plugin import is_all_required


def require_squashfs() -> None:
    """Skip or fail the calling test where this machine makes or mounts no image."""
    wanted = ("mksquashfs", "unsquashfs", "squashfuse_ll")
    missing = [name for name in wanted if shutil.which(name) is None]
    if missing:
        packages = "apt-get install squashfs-tools squashfuse fuse3"
        reason = f"no {', '.join(missing)} on PATH: {packages}"
    elif not os.access("/dev/fuse", os.R_OK | os.W_OK):
        reason = "/dev/fuse cannot be opened"
    else:
        return
    pytest.fail(reason, pytrace=False) if is_all_required() else pytest.skip(reason)


def mounted_below(folder: Path, *, of: str = "self") -> list[str]:
    """Return where something is mounted below a directory."""
    # A space is written as octal.
    lines = Path(f"/proc/{of}/mounts").read_text().replace("\\040", " ").splitlines()
    places = [line.partition(" ")[2].partition(" fuse.")[0] for line in lines if " fuse." in line]
    return [place for place in places if place.startswith(str(folder))]


def programs_without(folder: Path, *names: str) -> Path:
    """Return a directory with the programs of this machine, without some of them."""
    folder.mkdir()
    for place in os.environ["PATH"].split(":"):
        if not os.path.isdir(place):
            continue
        for entry in os.scandir(place):
            target = folder / entry.name
            if entry.name not in names and not os.path.lexists(target):
                target.symlink_to(entry.path)
    return folder


def add_program(folder: Path, name: str, text: str) -> Path:
    """Write a program of the shell; return the directory."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return folder
