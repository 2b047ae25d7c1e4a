"""A packed environment: its file, here and on nodes, and the room that nodes have for a copy.

On a node it prints what is there, as JSON::

    python -m hpctrain.doctor.pack FILE PLACE
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hpctrain import timeouts
from hpctrain.doctor.compare import grouped
from hpctrain.doctor.finding import Finding, error, has_error, ok, remark, warning
from hpctrain.doctor.machine import filesystem_of
from hpctrain.pack.header import SQUASHFS, EnvironmentPack, digest_of, image_bytes
from hpctrain.plan.environment_mount import mount_test_argv
from hpctrain.plan.environment_pack import SHARED_FILESYSTEMS, root_of_packs
from hpctrain.regular_file import open_regular

_CHECK = "pack"
_NONE_WOULD_START = "each node gets the environment there, before its agent and ranks start"
_SEEN_BY_ALL = "Pack it on a filesystem that all nodes see"
_OTHER_PLACE = "SlurmConfig(environment_pack_dir=...): '/dev/shm', or a disk of each node"


def check_pack(pack: EnvironmentPack) -> Finding:
    """Return whether the file is what was written. Not collective. It is read as a whole."""
    again = shlex.join(["hpctrain", "pack", "-o", pack.path, *pack.options, "--force"])
    why = "each node compares the digest, and refuses it"
    try:
        digest = digest_of(Path(pack.path), pack.size)
    except OSError as problem:
        what = f"{pack.path} cannot be read: {problem.strerror or problem}"
        return error(_CHECK, what, why=why, step=again)
    if digest != pack.sha256:
        what = f"{pack.path} is damaged: its digest is {digest}, and was {pack.sha256}"
        return error(_CHECK, what, why=why, step=again)
    return ok(_CHECK, f"{pack.path} is of this environment, and whole ({_mib(pack.total_bytes)})")


def describe_place(file: Path, place: Path) -> dict[str, Any]:
    """Return what this machine has for a packed environment, as JSON values. Not collective.

    Parameters
    ----------
    file
        The pack.
    place
        Where it would be unpacked.
    """
    answer: dict[str, Any] = {
        "host": socket.gethostname(),
        "platform": sysconfig.get_platform(),
        "kind": filesystem_of(place),
        "error": _explain_place(place),
        "file_error": None,
        "file_bytes": 0,
        "no_mount": None,
        "unpacks": True,
    }
    is_image = False
    try:
        with open_regular(file, follow_links=True) as opened:
            answer["file_bytes"] = os.fstat(opened.fileno()).st_size
            is_image = image_bytes(opened) > 0
    except OSError as problem:
        answer["file_error"] = problem.strerror or str(problem)
    if answer["error"] is None:
        room = os.statvfs(place)
        answer["free_bytes"] = room.f_bavail * room.f_frsize
        answer["all_bytes"] = room.f_blocks * room.f_frsize
        if is_image:
            answer["no_mount"], answer["unpacks"] = _try_mount(file, place)
    return answer


def _try_mount(image: Path, place: Path) -> tuple[str | None, bool]:
    """Return why this machine cannot mount an image, and whether it can unpack one."""
    try:
        with TemporaryDirectory(prefix="hpctrain-doctor-", dir=place) as folder:
            Path(folder, "mount").mkdir()
            done = subprocess.run(
                mount_test_argv(str(image), folder),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
                timeout=timeouts.DOCTOR_MOUNT_S,
            )
    except subprocess.TimeoutExpired:
        return f"it was not done after {timeouts.describe(timeouts.DOCTOR_MOUNT_S)}", False
    except OSError as problem:
        return str(problem), False
    unpacks, _, why = done.stdout.strip().partition(" ")
    return why or None, unpacks == "yes"


def _explain_place(place: Path) -> str | None:
    # Path.is_dir() raises where a directory above it cannot be entered.
    if not os.path.isdir(place):
        return "there is no such directory"
    if not os.access(place, os.W_OK | os.X_OK):
        return "it cannot be written to"
    root = root_of_packs(str(place), user=os.geteuid())
    try:
        found = os.lstat(root)
    except OSError:
        return None
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if is_own and stat.S_IMODE(found.st_mode) == 0o700:
        return None
    return f"{root} is not a directory that only this user can enter (mode 700)"


def check_places(
    pack: EnvironmentPack, place: str, answers: Sequence[Mapping[str, Any]], *, wanted: int
) -> list[Finding]:
    """Return whether nodes can unpack an environment. Pure; not collective.

    Parameters
    ----------
    place
        Where they would.
    answers
        What each of them has answered: `describe_place`.
    wanted
        Number of nodes that were asked.
    """
    found = []
    if len(answers) < wanted:
        found = [remark(_CHECK, f"{len(answers)} of {wanted} nodes said what {place} is there")]
    if not answers:
        return found
    for problem, hosts in grouped(answers, lambda answer: _refusal(pack, answer)).items():
        what = f"{place} on {hosts}: {problem}"
        found.append(error(_CHECK, what, why=_NONE_WOULD_START, step=_OTHER_PLACE))
    for problem, hosts in grouped(answers, lambda answer: _defect(pack, answer)).items():
        what = f"{pack.path} on {hosts}: {problem}"
        step = "Pack it with the Python that nodes have"
        found.append(error(_CHECK, what, why="no rank could start in it", step=step))
    unread = [answer for answer in answers if _unread(pack, answer) is not None]
    for problem, hosts in grouped(unread, lambda answer: _unread(pack, answer)).items():
        what = f"{pack.path} on {hosts}: {problem}"
        if len(unread) == len(answers):
            why = "no rank could start in it"
            found.append(error(_CHECK, what, why=why, step=_SEEN_BY_ALL))
            continue
        # sbcast reads it on the first node of the job, and copies it to the others.
        why = "it starts there only where another node is the first of the job and sbcast serves"
        step = f"{_SEEN_BY_ALL}, or leave out what does not see it: --exclude={hosts}"
        found.append(warning(_CHECK, what, why=why, step=step))
    found += _check_mounts(pack, answers)
    if has_error(found):
        return found
    # A node that unpacks an image needs more than others.
    fullest = min(answers, key=lambda answer: answer["free_bytes"] - _needed(pack, answer))
    needed, free = _needed(pack, fullest), fullest["free_bytes"]
    kind = answers[0]["kind"]
    if free < needed:
        what = f"{place} ({kind}) has {_mib(free)} free on a node, and {_mib(needed)} are needed"
        return [*found, warning(_CHECK, what, why=_NONE_WOULD_START, step=_OTHER_PLACE)]
    return [
        *found,
        ok(_CHECK, f"{place} ({kind}) of nodes has {_mib(free)} free for {_mib(needed)}"),
    ]


def _refusal(pack: EnvironmentPack, answer: Mapping[str, Any]) -> str | None:
    """Return why it is never unpacked there."""
    if answer["error"] is not None:
        return str(answer["error"])
    if answer["kind"].startswith(SHARED_FILESYSTEMS):
        return f"it is on a filesystem that nodes share ({answer['kind']})"
    needed, size = _needed(pack, answer), answer["all_bytes"]
    return f"it has {_mib(size)} in all, and {_mib(needed)} are needed" if size < needed else None


def _unread(pack: EnvironmentPack, answer: Mapping[str, Any]) -> str | None:
    """Return why it cannot be read there, by itself."""
    if answer["file_error"] is not None:
        return f"it cannot be read: {answer['file_error']}"
    if answer["file_bytes"] != pack.total_bytes:
        return f"it has {answer['file_bytes']} bytes, and {pack.total_bytes} here"
    return None


def _defect(pack: EnvironmentPack, answer: Mapping[str, Any]) -> str | None:
    """Return why what is in it does not run there."""
    here = sysconfig.get_platform()
    there = answer["platform"]
    return None if there == here else f"it has programs of {here}, and the node is {there}"


def _check_mounts(pack: EnvironmentPack, answers: Sequence[Mapping[str, Any]]) -> list[Finding]:
    if pack.form != SQUASHFS:
        return []
    found = []
    unmounted = [answer for answer in answers if answer.get("no_mount") is not None]
    lost = [answer for answer in unmounted if not answer["unpacks"]]
    for problem, hosts in grouped(lost, lambda answer: answer["no_mount"]).items():
        neither = f"it cannot be mounted ({problem}), or unpacked: no unsquashfs"
        what = f"{pack.path} on {hosts}: {neither}"
        step = f"Leave them out (--exclude={hosts}), or pack it without --format squashfs"
        found.append(error(_CHECK, what, why=_NONE_WOULD_START, step=step))
    slow = [answer for answer in unmounted if answer["unpacks"]]
    for problem, hosts in grouped(slow, lambda answer: answer["no_mount"]).items():
        what = f"{pack.path} on {hosts}: it cannot be mounted ({problem})"
        why = "these nodes unpack it instead, which takes time and room"
        found.append(warning(_CHECK, what, why=why, step="Let the site install squashfuse"))
    return found


def _needed(pack: EnvironmentPack, answer: Mapping[str, Any]) -> int:
    is_mounted = pack.form == SQUASHFS and answer.get("no_mount") is None
    # The file is there until it is unpacked.
    return pack.total_bytes + (0 if is_mounted else pack.unpacked_bytes)


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(describe_place(*map(Path, sys.argv[1:3])))}\n")
