"""What an executor finds out about the step of its slot."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hpctrain.execute import slot_step
from hpctrain.execute.slot_step import SlotStep, SlotStepError, find_address, make_ticket
from tests.plans import SETTINGS

ADDRESS = '{"addresses": ["a:1"], "secret": "00"}'
FOUND = {"addresses": ["a:1"], "secret": "00"}


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        (f"{ADDRESS}\n", FOUND),
        (f"a prolog\n\n0: {ADDRESS}\nlater\n", FOUND),
        ("", None),
        ("a prolog\n", None),
        (ADDRESS, None),
        ('{"addresses" and more\n', None),
        (f'{{"addresses" and more\n{ADDRESS}\n', FOUND),
    ],
)
def test_the_address_of_a_step_is_found_in_what_it_prints(
    printed: str, found: dict[str, object] | None
) -> None:
    assert find_address(printed) == found


def test_what_a_process_has_printed_that_has_the_id_of_the_srun_now_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its output may be a pipe, on which a read waits for ever."""
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        pid, start, mark = make_ticket(other.pid, "mark").split(":")
        slot = SlotStep(f"{pid}:{int(start) - 1}:{mark}", SETTINGS)

        class Unreadable:
            def __init__(self, path: str) -> None:
                raise AssertionError(f"{path} is read")

        monkeypatch.setattr(slot_step, "Path", Unreadable)
        with pytest.raises(SlotStepError, match="it has ended"):
            slot.connect()
        assert other.stdin is not None
        other.stdin.write(os.linesep.encode())
