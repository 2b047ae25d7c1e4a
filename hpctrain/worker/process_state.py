"""What the kernel shows of a process of this machine, by its number."""

from __future__ import annotations

import os
from pathlib import Path

# include/linux/sched.h
_PF_EXITING = 0x4


def is_exiting(pid: int) -> bool:
    """Return whether a process has begun to exit, by itself or by a signal; False once it is gone.

    Not collective. proc_pid_stat(5), ``flags``.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        # The name, in parentheses, may have spaces.
        return bool(int(stat.rpartition(")")[2].split()[6]) & _PF_EXITING)
    except (OSError, ValueError, IndexError):
        return False


def resident_bytes(pid: int) -> int:
    """Return what a process has in memory; 0 if it is gone. Not collective."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
