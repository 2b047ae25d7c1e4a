"""The claim on a run's name: of all that want to start it at the same time, one does."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain import environ, timeouts
from hpctrain.errors import LaunchError
from hpctrain.execute.process import process_start_time
from hpctrain.own_files import DIRECTORY_MODE, create_file
from hpctrain.own_time import Deadline
from hpctrain.rundir.files import fsync_directory
from hpctrain.rundir.origin import Origin
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import is_job_id, is_time, parse_json, read_content

_FIRST_PAUSE_S = 0.02
_LAST_PAUSE_S = 1.0
_OWNER = "owner"
_PREPARED = ".claiming-"


@contextlib.contextmanager
def claimed(paths: RunPaths, *, patience_s: float = timeouts.CLAIM_S) -> Iterator[None]:
    """Hold the claim on a run, for the time between the look at it and the entry that it begins.

    Not collective. The run directory is made if needed. Waits while another process holds the
    claim; one that has died on this host does not hold it any more.

    A claim is a directory ``.claim-N`` that appears by one rename with its owner inside, which is
    atomic on NFS, Lustre and GPFS too, and needs neither locks nor hard links. The largest N
    counts. It is never removed, only followed by N + 1: so it cannot happen that a process removes
    a claim that it found dead, and with it one that was made since. It lies beside
    ``status.json``: a client of NFS that changes a directory forgets what it had remembered to be
    absent there.

    Raises
    ------
    LaunchError
        If a process of another host holds it for longer than `patience_s`.
    """
    paths.root.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    claim, owner = _take(paths, patience_s)
    try:
        yield
    finally:
        # The directory may be another one by now, with the claim of another process.
        if _read_owner(claim) == owner:
            _release(claim)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim that is held, as far as can be seen from here."""

    number: int
    owner: bytes
    is_here: bool
    """Whether by a process of this host, which lives; of another host that is not known here."""

    def was_left_by_job(self, job_is_alive: Callable[[str], bool | None]) -> bool:
        """Return whether its process was in a job of Slurm that is over. Not collective.

        Parameters
        ----------
        job_is_alive
            Whether a job waits or runs according to Slurm; None if it has forgotten the job.

        Raises
        ------
        LaunchError
            If Slurm does not answer.
        """
        owner = _parse_owner(self.owner)
        job_id, restarts = owner.get("job_id"), owner.get("restarts")
        if self.is_here or not isinstance(job_id, str) or not isinstance(restarts, int):
            return False
        cluster, here = owner.get("cluster"), environ.variable("SLURM_CLUSTER_NAME")
        if not is_job_id(job_id):
            return False
        if cluster is not None and here is None:
            # Slurm sets the variable in jobs alone.
            from hpctrain.slurm.site_facts import find_cluster

            here = find_cluster()
        if cluster != here:
            return False
        if job_id == environ.variable("SLURM_JOB_ID"):
            return restarts < environ.restart_count()
        return not job_is_alive(job_id)


def find_claim(paths: RunPaths) -> Claim | None:
    """Return the claim on a run; None if no process holds it. Not collective."""
    try:
        newest = _newest(paths)
    except OSError:
        return None
    content = _read_owner(paths.claim(newest))
    if newest == 0 or not _is_held(paths.claim(newest)):
        return None
    try:
        host = _parse_owner(content)["host"]
    except ValueError:  # released meanwhile
        return None
    return Claim(number=newest, owner=content, is_here=host == socket.gethostname())


def release_claim(paths: RunPaths, claim: Claim) -> None:
    """Release a claim whose process is gone; another one that was made since stays.

    Not collective.
    """
    path = paths.claim(claim.number)
    if _read_owner(path) == claim.owner:
        _release(path)


def was_taken_over(paths: RunPaths, claim: Claim) -> bool:
    """Return whether another process has released a claim of this one, which it considered dead.

    Not collective. What cannot be read now has not changed, as far as is known.
    """
    try:
        return read_content(paths.claim(claim.number) / _OWNER) != claim.owner
    except FileNotFoundError:
        with contextlib.suppress(OSError):
            return _newest(paths) > claim.number
    except OSError:
        pass
    return False


def is_claimed(paths: RunPaths) -> bool:
    """Return whether a process holds the claim on a run. Not collective.

    A claim from another host is assumed to be held.
    """
    return find_claim(paths) is not None


def release_claims(paths: RunPaths) -> None:
    """Release what is held of a directory that its holder has moved. Not collective."""
    for number in _numbers(paths):
        _release(paths.claim(number))


def _release(claim: Path) -> None:
    # A claim without an owner holds nothing. Truncating works on a full disk as well.
    with contextlib.suppress(OSError):
        os.truncate(claim / _OWNER, 0)


def _take(paths: RunPaths, patience_s: float) -> tuple[Path, bytes]:
    deadline = Deadline(patience_s, longest_gap_s=2 * _LAST_PAUSE_S)
    pause = _FIRST_PAUSE_S
    prepared = paths.root / f"{_PREPARED}{secrets.token_hex(8)}"
    while True:
        try:
            newest = _newest(paths)
            if newest == 0 or not _is_held(paths.claim(newest)):
                # In each attempt: the directory may be another one than in the one before.
                owner = _describe_self(paths.root)
                _prepare(prepared, owner)
                if _rename_to(paths, newest + 1, prepared, owner):
                    return paths.claim(newest + 1), owner
                continue
        except FileNotFoundError:
            # Its holder has moved the run aside.
            paths.root.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
            continue
        if deadline.is_over:
            raise LaunchError(_explain_wait(paths, newest, patience_s))
        time.sleep(pause)
        pause = min(pause * 1.5, _LAST_PAUSE_S)


def _describe_self(root: Path) -> bytes:
    pid, found = os.getpid(), os.stat(root)
    owner = {
        "host": socket.gethostname(),
        "pid": pid,
        "start": process_start_time(pid),
        "time": time.time(),
        "token": secrets.token_hex(16),
        "job_id": environ.variable("SLURM_JOB_ID"),
        "restarts": environ.restart_count(),
        "cluster": environ.variable("SLURM_CLUSTER_NAME"),
        "path": str(root.absolute()),
        "device": found.st_dev,
        "inode": found.st_ino,
    }
    return json.dumps(owner).encode()


def _prepare(directory: Path, owner: bytes) -> None:
    directory.mkdir(DIRECTORY_MODE)
    with open(create_file(directory / _OWNER), "wb") as file:
        file.write(owner)
        file.flush()
        os.fsync(file.fileno())
    fsync_directory(directory)


def _rename_to(paths: RunPaths, number: int, prepared: Path, owner: bytes) -> bool:
    """Try to make a claim; return whether it is ours."""
    claim = paths.claim(number)
    # An error need not be true: NFS can do it, lose its answer, and fail when it asks again. So the
    # file names its owner.
    with contextlib.suppress(OSError):
        os.rename(prepared, claim)
    ours = _read_owner(claim) == owner
    older = [other for other in _numbers(paths) if other < number] if ours else []
    # An older one that is held was made in this directory, and the number in one that was moved.
    is_alone = not any(_is_held(paths.claim(other)) for other in older)
    if ours and is_alone and _newest(paths) == number:
        for other in older:
            shutil.rmtree(paths.claim(other), ignore_errors=True)
        # Of processes that were killed. One that is alive finds that its own is gone, and waits.
        for left in paths.root.glob(f"{_PREPARED}*"):
            shutil.rmtree(left, ignore_errors=True)
        return True
    # Others were quicker. A number can be free because they have tidied up behind themselves; then
    # theirs is larger.
    shutil.rmtree(claim if ours else prepared, ignore_errors=True)
    return False


def _is_held(claim: Path) -> bool:
    content = _read_owner(claim)
    try:
        owner = _parse_owner(content)
    except ValueError:  # released, removed, damaged, or torn by a crash of its host
        return False
    is_here = owner["host"] == socket.gethostname()
    if not _origin_of(owner, is_here=is_here).is_at(claim.parent):
        # The directory is a copy, and its original is what is held.
        return False
    if not is_here:
        return True
    return bool(process_start_time(owner["pid"]) == owner["start"])


def _origin_of(owner: dict[str, Any], *, is_here: bool) -> Origin:
    path, device, inode = owner.get("path"), owner.get("device"), owner.get("inode")
    if not isinstance(path, str) or not isinstance(device, int) or not isinstance(inode, int):
        return Origin(path="", device=0, inode=0, is_of_this_host=is_here)
    return Origin(path=path, device=device, inode=inode, is_of_this_host=is_here)


def _parse_owner(content: bytes) -> dict[str, Any]:
    owner = parse_json(content)
    if not isinstance(owner, dict):
        raise ValueError("no owner")
    kinds = {"host": str, "pid": int, "start": int}
    if not all(isinstance(owner.get(name), kind) for name, kind in kinds.items()):
        raise ValueError("no owner")
    if not is_time(owner.get("time")):
        raise ValueError("no owner")
    return owner


def _read_owner(claim: Path) -> bytes:
    try:
        return read_content(claim / _OWNER)
    except OSError:
        return b""


def _newest(paths: RunPaths) -> int:
    return max(_numbers(paths), default=0)


def _numbers(paths: RunPaths) -> list[int]:
    names = (re.fullmatch(r"\.claim-(\d+)", name) for name in os.listdir(paths.root))
    return [int(name.group(1)) for name in names if name is not None]


def _explain_wait(paths: RunPaths, number: int, waited_s: float) -> str:
    claim = paths.claim(number)
    try:
        owner = _parse_owner(_read_owner(claim))
    except ValueError:
        owner = {"pid": "?", "host": "?", "time": 0.0}
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(owner["time"]))
    return (
        f"process {owner['pid']} on {owner['host']} has been starting run {paths.root.name!r} in "
        f"{paths.root.parent} since {since}, and did not get further while this one waited for "
        f"{timeouts.describe(waited_s)}. If that process is gone, rm -r {claim} and call fit() "
        f"again."
    )
