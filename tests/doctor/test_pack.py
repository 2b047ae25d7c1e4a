"""A packed environment, as the doctor sees it: its file, and what nodes have for a copy."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpctrain import timeouts
from hpctrain.doctor import pack as doctor_pack
from hpctrain.doctor.finding import Finding, Level
from hpctrain.doctor.pack import check_pack, check_places, describe_place
from hpctrain.pack.header import EnvironmentPack
from hpctrain.plan.environment_pack import root_of_packs
from hpctrain.timeouts import Timeout
from tests.pack.mounts import require_squashfs
from tests.pack.tiny import write_tiny_pack


@pytest.fixture
def pack(tmp_path: Path) -> EnvironmentPack:
    return write_tiny_pack(tmp_path / "environment.tar")


def node(pack: EnvironmentPack, name: str, **fields: Any) -> dict[str, Any]:
    return {
        "host": name,
        "platform": sysconfig.get_platform(),
        "kind": "tmpfs",
        "error": None,
        "file_error": None,
        "file_bytes": pack.total_bytes,
        "free_bytes": 2**30,
        "all_bytes": 2**31,
        **fields,
    }


def check(pack: EnvironmentPack, *answers: dict[str, Any], wanted: int = 2) -> list[Finding]:
    return check_places(pack, "/dev/shm", answers, wanted=wanted)


def test_a_file_whose_bytes_have_changed_is_an_error(pack: EnvironmentPack) -> None:
    assert check_pack(pack).level is Level.OK
    with open(pack.path, "r+b") as file:
        file.seek(700)
        file.write(b"x")
    found = check_pack(pack)
    assert found.level is Level.ERROR
    assert f"{pack.path} is damaged: its digest is " in found.what
    assert pack.sha256 in found.what
    assert found.step == f"hpctrain pack -o {pack.path} --force"
    os.unlink(pack.path)
    assert "cannot be read: No such file" in check_pack(pack).what


def test_what_this_machine_has_for_a_copy_is_described(
    pack: EnvironmentPack, tmp_path: Path
) -> None:
    found = describe_place(Path(pack.path), tmp_path)
    wanted = ("error", "file_error", "file_bytes", "host")
    assert [found[name] for name in wanted] == [None, None, pack.total_bytes, socket.gethostname()]
    assert 0 < found["free_bytes"] <= found["all_bytes"]
    (finding,) = check(pack, {**found, "kind": "tmpfs"}, wanted=1)
    assert finding.level is Level.OK

    absent = describe_place(tmp_path / "none.tar", tmp_path / "none")
    assert absent["error"] == "there is no such directory"
    assert absent["file_error"] == "No such file or directory"
    Path(root_of_packs(str(tmp_path), user=os.geteuid())).mkdir(mode=0o755)
    open_to_all = describe_place(Path(pack.path), tmp_path)
    assert "is not a directory that only this user can enter (mode 700)" in open_to_all["error"]


def test_as_a_program_it_prints_the_same(pack: EnvironmentPack, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hpctrain.doctor.pack", pack.path, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert f'"file_bytes": {pack.total_bytes}' in done.stdout, done.stderr


BAD: dict[str, tuple[dict[str, Any], Level, str]] = {
    "no directory": ({"error": "there is no such directory"}, Level.ERROR, "/dev/shm on n2: there"),
    "shared": ({"kind": "nfs4"}, Level.ERROR, "n2: it is on a filesystem that nodes share (nfs4)"),
    "too small": ({"all_bytes": 2**9, "free_bytes": 2**9}, Level.ERROR, "n2: it has 0 MiB in all"),
    "full now": ({"free_bytes": 2**9}, Level.WARNING, "/dev/shm (tmpfs) has 0 MiB free on a node"),
    "another kind": ({"platform": "linux-mips"}, Level.ERROR, "and the node is linux-mips"),
}


@pytest.mark.parametrize(("fields", "level", "what"), BAD.values(), ids=list(BAD))
def test_what_keeps_a_node_from_unpacking_is_found(
    pack: EnvironmentPack, fields: dict[str, Any], level: Level, what: str
) -> None:
    found = check(pack, node(pack, "n1"), node(pack, "n2", **fields))
    assert [finding.level for finding in found] == [level]
    assert what in found[0].what
    assert found[0].step


UNREAD: dict[str, tuple[dict[str, Any], str]] = {
    "unseen": ({"file_error": "No such file"}, "it cannot be read: No such file"),
    "another file": ({"file_bytes": 7}, "it has 7 bytes, and "),
}


@pytest.mark.parametrize(("fields", "what"), UNREAD.values(), ids=list(UNREAD))
def test_nodes_that_cannot_read_the_file_are_named_and_the_others_are_looked_at(
    pack: EnvironmentPack, fields: dict[str, Any], what: str
) -> None:
    answers = [node(pack, "n1"), *(node(pack, name, **fields) for name in ("n2", "n3"))]
    some, room = check(pack, *answers, wanted=3)
    # sbcast brings it to them.
    assert (some.level, room.level) == (Level.WARNING, Level.OK)
    assert some.what.startswith(f"{pack.path} on n[2-3]: {what}")
    assert some.step.endswith("--exclude=n[2-3]")
    (no_node,) = check(pack, *answers[1:])
    assert no_node.level is Level.ERROR
    assert f"on n[2-3]: {what}" in no_node.what


def test_a_node_that_said_nothing_is_noted_and_the_others_are_looked_at(
    pack: EnvironmentPack,
) -> None:
    (found, other) = check(pack, node(pack, "n1"))
    assert (found.level, found.what) == (Level.NOTE, "1 of 2 nodes said what /dev/shm is there")
    assert other.level is Level.OK
    (found, other) = check(pack, node(pack, "n1", all_bytes=2**9, free_bytes=2**9))
    assert (found.level, other.level) == (Level.NOTE, Level.ERROR)
    (found,) = check(pack)
    assert found.level is Level.NOTE


def test_the_file_and_what_is_unpacked_are_there_at_once(pack: EnvironmentPack) -> None:
    large = replace(pack, unpacked_bytes=2**30)
    (found,) = check(large, node(large, "n1"), node(large, "n2"))
    assert found.level is Level.WARNING


def test_an_image_is_tried_and_needs_the_room_of_the_file_alone(tmp_path: Path) -> None:
    require_squashfs()
    image = write_tiny_pack(tmp_path / "e.squashfs", form="squashfs", bytes=2**40)
    found = describe_place(Path(image.path), tmp_path)
    assert (found["no_mount"], found["unpacks"]) == (None, True)
    assert sorted(os.listdir(tmp_path)) == ["e.sh", "e.squashfs"]
    (finding,) = check(image, {**found, "kind": "tmpfs"}, wanted=1)
    assert finding.level is Level.OK


UNMOUNTED: dict[str, tuple[bool, Level, str]] = {
    "unpacks": (True, Level.WARNING, "on n2: it cannot be mounted (no fuse)"),
    "neither": (False, Level.ERROR, "it cannot be mounted (no fuse), or unpacked: no unsquashfs"),
}


@pytest.mark.parametrize(("unpacks", "level", "what"), UNMOUNTED.values(), ids=list(UNMOUNTED))
def test_nodes_that_cannot_mount_an_image_are_named(
    pack: EnvironmentPack, unpacks: bool, level: Level, what: str
) -> None:
    image = replace(pack, form="squashfs", unpacked_bytes=2**20)
    answers = [node(pack, "n1"), node(pack, "n2", no_mount="no fuse", unpacks=unpacks)]
    first, *room = check(image, *answers)
    assert first.level is level
    assert what in first.what
    assert first.step
    assert [finding.level for finding in room] == ([Level.OK] if unpacks else [])
    # The node that unpacks it needs the room for that.
    large = replace(image, unpacked_bytes=2**40)
    assert check(large, node(pack, "n1"))[-1].level is Level.OK
    if unpacks:
        assert check(large, *answers)[-1].level is not Level.OK


def test_a_mount_that_does_not_end_names_its_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_pack, "mount_test_argv", lambda *_: ["sleep", "60"])
    soon = Timeout(0.05, "doctor_mount", "a mount", "an error")
    monkeypatch.setattr(timeouts, "DOCTOR_MOUNT_S", soon)
    why = "it was not done after 0.05 s (timeout doctor_mount)"
    assert doctor_pack._try_mount(tmp_path / "e.squashfs", tmp_path) == (why, False)
