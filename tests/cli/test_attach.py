from __future__ import annotations

import signal
from typing import Any


def test_attaching_to_a_run_that_is_over_shows_its_end_and_its_exit_code(done: Any) -> None:
    finished = done("attach", "fine")
    assert finished.returncode == 0
    lines = finished.stdout.splitlines()
    assert lines[-2:] == [
        "report 3  loss=0.333333  double=4",
        "hpctrain: fine finished",
    ]
    assert "step 0" in lines
    failed = done("attach", "bad")
    assert failed.returncode == 4
    assert "ValueError: the loss is gone" in failed.stderr


def test_all_ranks_can_be_shown(done: Any) -> None:
    lines = done("attach", "fine", "--all-ranks").stdout.splitlines()
    assert "[0] rank 0 is here" in lines
    assert "[1] rank 1 is here" in lines


def test_ctrl_c_detaches_and_the_run_goes_on(workplace: Any) -> None:
    run = workplace.start_run()
    attached = workplace.start("attach", "tiny")
    seen = ""
    assert attached.stdout is not None
    for line in attached.stdout:
        seen += line
        if line.startswith("step"):
            break
    attached.send_signal(signal.SIGINT)
    output, _ = attached.communicate(timeout=120)
    assert attached.returncode == 130
    assert "hpctrain: detached from tiny, which goes on." in output
    assert "Traceback" not in output
    assert run.poll() is None
    assert workplace.status()["live"] is True
