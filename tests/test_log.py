from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.log import flush_output, log, log_traceback


def test_a_line_says_whose_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    log("node1 is used.")
    log("interrupted", new_line=True)
    log("submitted", to=sys.stdout)
    try:
        raise ValueError("no such server")
    except ValueError as error:
        log_traceback(error)
    out, err = capsys.readouterr()
    assert out == "hpctrain: submitted\n"
    assert err.startswith("hpctrain: node1 is used.\n\nhpctrain: interrupted\nTraceback (")
    assert err.endswith("ValueError: no such server\n")


def test_nothing_that_is_printed_on_a_full_disk_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernel's own full disk: every write fails with ENOSPC.
    full = io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True)
    monkeypatch.setattr(sys, "stdout", full)
    monkeypatch.setattr(sys, "stderr", full)
    with pytest.raises(OSError, match="No space left"):
        print("a word that is not ours", flush=True)
    log("cannot write")
    log("cannot write", to=full)
    log_traceback(RuntimeError("x"))
    flush_output()
    monkeypatch.undo()
    full.detach().close()


def test_an_error_is_printed_where_nothing_can_be_imported_any_more(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "traceback", None)
    log_traceback(OSError("Too many open files"))
    assert capsys.readouterr().err == "OSError: Too many open files\n"


def test_nothing_that_is_printed_into_a_closed_file_raises(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w") as file:
        pass
    log("too late", to=file)


def test_output_is_drained_before_a_launcher_may_drop_it() -> None:
    code = "from hpctrain import log; print('last words', flush=True); log.drain_output()"
    read, write = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", code], stdout=write, stderr=write)
    os.close(write)
    with pytest.raises(subprocess.TimeoutExpired):
        # It stays as long as nobody has read, up to a second.
        process.wait(timeout=0.7)
    assert os.read(read, 100) == b"last words\n"
    os.close(read)
    assert process.wait(timeout=30) == 0
