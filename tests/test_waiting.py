from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until, wait_until_final


def test_the_value_comes_back_once_there_is_one() -> None:
    values = iter([None, 0, "found"])
    assert wait_until(lambda: next(values), interval_s=0) == "found"


def test_what_does_not_come_in_time_is_named() -> None:
    with pytest.raises(AssertionError, match=r"^a letter: not within 0 s$"):
        wait_until(lambda: None, "a letter", timeout_s=0)
    with pytest.raises(AssertionError, match=r"^told late: not within 0 s$"):
        wait_until(lambda: None, lambda: "told late", timeout_s=0)


def test_nothing_is_waited_for_whose_process_has_ended() -> None:
    argv = [sys.executable, "-c", "raise SystemExit('no letters today')"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with pytest.raises(AssertionError, match=r"a letter: not before .*status 1: no letters today"):
        wait_until(lambda: None, "a letter", process=process)
    # What it did before it ended counts.
    assert wait_until(lambda: True, process=process)


def test_a_run_that_does_not_begin_has_no_end(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="the end of the run"):
        wait_until_final(tmp_path, timeout_s=0)
