"""What a probe measures on nodes, with programs of this machine in the place of srun."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from hpctrain.doctor.probe import _probe_clocks


@pytest.mark.parametrize("ahead_s", [0, 90, -90])
def test_the_clock_of_a_node_is_measured_against_this_one(ahead_s: int, tmp_path: Path) -> None:
    date = tmp_path / "date"
    date.write_text(
        f'#!/bin/sh\nPATH={os.environ["PATH"]}\necho "$(( $(date +%s) + {ahead_s} )).$(date +%N)"\n'
    )
    date.chmod(0o755)
    step = ["env", f"PATH={tmp_path}:{os.environ['PATH']}"]
    (skew_s,) = _probe_clocks(step).values()
    # What may be the time of the question is none of the difference.
    assert abs(skew_s) <= abs(ahead_s)
    assert skew_s == pytest.approx(ahead_s, abs=30)
    assert list(_probe_clocks(step)) == [socket.gethostname()]


def test_a_node_that_does_not_answer_has_no_clock() -> None:
    assert _probe_clocks(["false"]) == {}
