"""That a tuner lives, as other hosts see it; and that another one has taken over its sweep."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator

from hpctrain import timeouts
from hpctrain.errors import LaunchError, RunStoppedError, SupersededError
from hpctrain.launch.claim import Claim, find_claim, was_taken_over
from hpctrain.launch.life import LONGEST_GAP_S, LOOK_INTERVAL_S, QUIET_S, job_is_alive
from hpctrain.log import log
from hpctrain.own_files import create_file
from hpctrain.own_time import OwnTime
from hpctrain.rundir.display import format_elapsed
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import read_content
from hpctrain.tune.ledger import SweepPaths

_BEAT_S = 2.0
_ASK_INTERVAL_S = 60.0
# Clocks of the hosts of a cluster differ by less.
_LONG_SILENCE_S = 2 * timeouts.EXECUTOR_SILENCE_S


class TunerLife:
    """The hold of a tuner on its sweep.

    Parameters
    ----------
    paths
        Of the sweep, whose claim this process holds.
    """

    def __init__(self, paths: SweepPaths) -> None:
        self._paths = paths
        self._claim = find_claim(RunPaths(paths.root))
        self._token, self._lock = secrets.token_hex(8), threading.Lock()
        # Of the last tuner, until the ledger has for how long it lived.
        self._number = _count_signs(paths)

    def show(self) -> None:
        """Write a sign of life. Not collective."""
        with self._lock:
            # A disk that is full, or a server that is away, ends no sweep.
            with contextlib.suppress(OSError):
                _write_sign(self._paths, f"{self._token} {self._number:020d}\n".encode())
            self._number += 1

    def count_anew(self) -> None:
        """Count signs from now on: the ledger has the seconds before. Not collective."""
        with self._lock:
            self._number = 0
        self.show()

    def check(self) -> None:
        """Check that no other tuner has taken over the sweep. Not collective.

        Raises
        ------
        SupersededError
            If one has: this process was suspended for so long that it was considered dead.
        """
        if self._claim is not None and was_taken_over(RunPaths(self._paths.root), self._claim):
            raise SupersededError(
                f"another tuner has taken over the sweep {self._paths.root}, since this one had "
                f"shown no sign of life for {timeouts.describe(timeouts.EXECUTOR_SILENCE_S)}. Its "
                f"trials go on there."
            )


@contextlib.contextmanager
def shown_alive(paths: SweepPaths) -> Iterator[TunerLife]:
    """Write a sign of life every two seconds, for the time of the block. Not collective.

    The caller holds the claim on the sweep.
    """
    is_over, life = threading.Event(), TunerLife(paths)

    def beat() -> None:
        while True:
            life.show()
            if is_over.wait(_BEAT_S):
                return

    thread = threading.Thread(target=beat, name="hpctrain-tuner-life", daemon=True)
    thread.start()
    try:
        yield life
    finally:
        is_over.set()
        thread.join()


def _write_sign(paths: SweepPaths, content: bytes) -> None:
    # In place, and always as long: that needs no room on the disk.
    try:
        descriptor = os.open(paths.alive, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        descriptor = create_file(paths.alive)
    try:
        os.write(descriptor, content)
    finally:
        # By this NFS sends it to the server.
        os.close(descriptor)


def has_life(
    paths: SweepPaths,
    claim: Claim,
    *,
    silence_s: float = timeouts.EXECUTOR_SILENCE_S,
    meanwhile: Callable[[], object] = lambda: None,
) -> bool:
    """Return whether the tuner that holds a claim lives. Not collective.

    One of another host is watched until it shows a sign of life, or has shown none for too long, in
    seconds of this process's own clock; if it was in a job of Slurm, that counts first.

    Parameters
    ----------
    silence_s
        Seconds without a sign that mean death.
    meanwhile
        Called at each look: what else is to be watched.
    """
    if claim.is_here:
        return True
    with contextlib.suppress(LaunchError):
        if claim.was_left_by_job(job_is_alive):
            return False
    root, seen = RunPaths(paths.root), _read_sign(paths)
    own, has_said = OwnTime(time.monotonic(), longest_gap_s=LONGEST_GAP_S), False
    while own.look(time.monotonic()) < silence_s:
        if _read_sign(paths) != seen:
            return True
        if find_claim(root) is None:
            # It has come to its end meanwhile.
            return False
        if not has_said and own.now >= QUIET_S:
            has_said = True
            owner = json.loads(claim.owner)
            log(
                f"process {owner['pid']} on {owner['host']} runs the sweep {paths.root.name}, or "
                f"has died. Waiting up to {silence_s:.0f} s for it to write {paths.alive}."
            )
        meanwhile()
        time.sleep(LOOK_INTERVAL_S)
    return False


class LeftSweeps:
    """Sweeps whose tuner was in a job that is over: Slurm is asked once a minute at most for each.

    A controller that does not answer is asked of none of them for as long.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, bytes], tuple[float, bool]] = {}
        self._silent_until = -math.inf

    def has(self, paths: SweepPaths, claim: Claim) -> bool:
        """Return whether the job of the tuner that holds a claim is over. Not collective.

        One in no job, or of which that is not known, counts as alive.
        """
        key, now = (str(paths.root), claim.owner), time.monotonic()
        asked_at, is_left = self._known.get(key, (-math.inf, False))
        if is_left or now - asked_at < _ASK_INTERVAL_S or now < self._silent_until:
            return is_left
        try:
            is_left = claim.was_left_by_job(job_is_alive)
        except LaunchError:
            self._silent_until = now + _ASK_INTERVAL_S
            return False
        self._known[key] = now, is_left
        return is_left


class TunerWatch:
    """Notices, look by look, that the tuner of a sweep has died on another host.

    Parameters
    ----------
    paths
        Of the sweep.
    longest_gap_s
        Seconds that may lie between two looks.
    """

    def __init__(self, paths: SweepPaths, *, longest_gap_s: float) -> None:
        self._paths, self._longest_gap_s = paths, longest_gap_s
        self._claim: Claim | None = None
        self._seen: object = None
        self._own = OwnTime(0.0)

    def check(self) -> None:
        """Raise if no tuner runs the sweep any more, though one holds it. Not collective.

        One of another host counts as alive until it was silent for too long, in seconds of this
        process's own clock. Slurm is asked once, if it was in a job.

        Raises
        ------
        RunStoppedError
            If the process that holds the sweep is gone, or was silent for too long.
        """
        claim, now = find_claim(RunPaths(self._paths.root)), time.monotonic()
        is_new, self._claim = claim != self._claim, claim
        if claim is None or claim.is_here:
            return
        if is_new:
            with contextlib.suppress(LaunchError):
                if claim.was_left_by_job(job_is_alive):
                    self._raise_gone(claim, "was in a job that is over")
        sign = _read_sign(self._paths)
        if is_new or sign != self._seen:
            self._seen, self._own = sign, OwnTime(now, longest_gap_s=self._longest_gap_s)
        elif self._own.look(now) >= timeouts.EXECUTOR_SILENCE_S:
            silence = timeouts.describe(timeouts.EXECUTOR_SILENCE_S)
            self._raise_gone(claim, f"has shown no sign of life for {silence}")

    def _raise_gone(self, claim: Claim, why: str) -> None:
        owner, root = json.loads(claim.owner), str(self._paths.root)
        raise RunStoppedError(
            f"process {owner['pid']} on {owner['host']}, which ran the sweep {root}, {why}. Go on "
            f"with: Tuner.restore({root!r}, trainable).fit()"
        )


def describe_silence(paths: SweepPaths) -> str:
    """Return that the tuner of a sweep has shown no sign of life for long; else an empty string.

    Not collective. One look at the age of its last sign: clocks of hosts differ, and the process
    may be suspended, so that this alone does not make it a dead one.
    """
    claim = find_claim(RunPaths(paths.root))
    if claim is None or claim.is_here:
        return ""
    try:
        age_s = time.time() - os.stat(paths.alive).st_mtime
    except OSError:
        return ""
    if age_s < _LONG_SILENCE_S:
        return ""
    owner = json.loads(claim.owner)
    return (
        f"its tuner, process {owner['pid']} on {owner['host']}, has shown no sign of life for "
        f"{format_elapsed(age_s)}"
    )


def seconds_of_last(paths: SweepPaths) -> float:
    """Return for how long the last tuner has shown signs of life; 0 if there are none.

    Not collective. A copy of the sweep has them, too.
    """
    return _count_signs(paths) * _BEAT_S


def _count_signs(paths: SweepPaths) -> int:
    number = _read_sign(paths).split()[1:]
    # Ignore a truncated or foreign file.
    return int(number[0][:20]) if number and number[0].isdigit() else 0


def _read_sign(paths: SweepPaths) -> bytes:
    try:
        return read_content(paths.alive)
    except OSError:
        return b""
