from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from hpctrain.worker.process_state import is_exiting, resident_bytes


@pytest.mark.parametrize("ends_by", ["itself", "a signal"])
def test_a_process_is_exiting_from_its_end_until_it_is_collected(ends_by: str):
    # Its name is odd, as a rank's may be.
    name = "import ctypes; ctypes.CDLL(None).prctl(15, b'a) R 1 (b')"
    rank = subprocess.Popen(
        [sys.executable, "-c", f"{name}; print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with rank:
        assert rank.stdout is not None
        assert rank.stdin is not None
        rank.stdout.readline()
        assert not is_exiting(rank.pid)
        assert resident_bytes(rank.pid) > 0
        if ends_by == "itself":
            rank.stdin.write(b"\n")
            rank.stdin.flush()
        else:
            rank.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)
        assert is_exiting(rank.pid)
    assert not is_exiting(rank.pid)
    assert resident_bytes(rank.pid) == 0
