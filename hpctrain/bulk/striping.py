"""Lustre: a large file is spread over several of its servers, before it is written."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from hpctrain import timeouts

LUSTRE = 0x0BD00BD0
"""What ``statfs`` calls it (lustre_user.h: LL_SUPER_MAGIC)."""
STRIPE_SHARE_BYTES = 4 * 2**30
"""Of a file, for each server that it is spread over."""
MAX_STRIPES = 8
"""Beyond which one client gains nothing, as it cannot send more."""
_COUNT = re.compile(r"stripe_count:\s*(-?\d+)")


def stripe_count(size: int) -> int:
    """Return over how many servers (OSTs) a file of so many bytes is spread. Not collective."""
    return max(1, min(MAX_STRIPES, -(-size // STRIPE_SHARE_BYTES)))


def prepare_stripes(path: Path, size: int) -> None:
    """Make an empty file that is spread as is good for its size. Not collective.

    Does nothing for files of which one server is enough, for other filesystems than Lustre, and
    where the site or the user has said already how files are spread: with a layout that grows with
    the file, or with ``lfs setstripe`` on the directory of the run. If anything fails here, the
    file is written with the stripes that it gets by default.
    """
    count = stripe_count(size)
    if count == 1 or filesystem_type(path.parent) != LUSTRE:
        return
    lfs = shutil.which("lfs")
    if lfs is None or not _is_by_default(_run(lfs, "getstripe", "-d", str(path.parent))):
        return
    # Another rank may want the name: it is taken all the time.
    spread = path.with_name(f".{path.name}.stripes")
    with suppress(OSError):
        if _run(lfs, "setstripe", "-c", str(count), str(spread)) is not None:
            os.replace(spread, path)
        spread.unlink(missing_ok=True)


def filesystem_type(directory: Path) -> int:
    """Return the number by which the kernel knows a kind of filesystem. Not collective."""
    found = ctypes.create_string_buffer(512)
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(directory), found) != 0:
        return 0
    # Its first field, which is as long as a word on all machines with 64 bits but s390.
    return ctypes.c_ulong.from_buffer(found).value & 0xFFFFFFFF


def _is_by_default(layout: str | None) -> bool:
    """Return whether files of a directory lie on one server each, by default."""
    if layout is None or "lcm_" in layout:
        return False
    count = _COUNT.search(layout)
    return count is not None and int(count[1]) in (0, 1)


def _run(*command: str) -> str | None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeouts.STRIPING_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
