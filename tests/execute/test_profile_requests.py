"""The executor takes what it finds in place of a request, and the run goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hpctrain.execute.profile_requests import ProfileRequests
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.profile_request import ProfileRequest

REQUEST = ProfileRequest(name="T1", ranks=(0, 3), steps=2, seconds=1.0, until=9.0)


class Sent:
    """What ranks and the ledger get."""

    def __init__(self, root: Path) -> None:
        self.paths = RunPaths(root)
        self.commands: list[Any] = []
        self.notes: list[str] = []
        self.requests = ProfileRequests(
            self.paths,
            lambda op, **details: self.commands.append((op, details["request"])),
            lambda event, **_: self.notes.append(event),
        )


def test_a_request_is_passed_on_once(tmp_path: Path) -> None:
    sent = Sent(tmp_path)
    sent.paths.profile_request.write_bytes(REQUEST.to_bytes())
    sent.requests.step()
    assert sent.commands == [("profile", REQUEST.to_json())]
    assert sent.notes == ["profile-asked"]
    assert sent.paths.profile("T1").is_dir()
    assert not sent.paths.profile_request.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"damaged",
        b"[]",
        b"7",
        json.dumps({"name": "a/b"}).encode(),
        b"\xff" * 10,
        b"[" * 10**5,
    ],
)
def test_what_is_no_request_is_taken_away(tmp_path: Path, content: bytes) -> None:
    sent = Sent(tmp_path)
    sent.paths.profile_request.write_bytes(content)
    sent.requests.step()
    assert (sent.commands, sent.notes) == ([], [])
    assert not sent.paths.profile_request.exists()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_does_not_hold_the_executor_up(tmp_path: Path, make: Any) -> None:
    sent = Sent(tmp_path)
    make(sent.paths.profile_request)
    sent.requests.step()
    assert (sent.commands, sent.notes) == ([], [])
    assert not os.path.lexists(sent.paths.profile_request)
