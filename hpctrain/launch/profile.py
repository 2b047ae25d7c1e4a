"""Profile ranks of a run while it runs, and put their traces into one file."""

from __future__ import annotations

import gzip
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.errors import ConfigError, LaunchError
from hpctrain.launch.settle import read_settled_status
from hpctrain.own_time import ANY_GAP_S, Deadline
from hpctrain.rundir.files import write_atomic
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.profile_request import ProfileRequest
from hpctrain.rundir.status import RunStatus

_POLL_S = 0.2
# Executors write their status every two seconds, and at least every six in a wait.
_SILENCE_S = 60.0
_PIDS_OF_A_RANK = 1000
"""torch has the process, one for each GPU, and a few of its own."""


@dataclass(frozen=True)
class Profile:
    """What came of a profile."""

    path: Path
    """The trace, for Perfetto or ``chrome://tracing``."""
    ranks: tuple[int, ...]
    """Ranks in it."""
    failed: Mapping[int, str]
    """Why other ranks are not."""


def profile_run(
    paths: RunPaths,
    *,
    ranks: Sequence[int],
    steps: int | None,
    seconds: float,
    output: Path,
    timeout_s: float,
    on_asked: Callable[[], None] = lambda: None,
) -> Profile:
    """Ask ranks of a run for traces, wait for them, and write them as one. Not collective.

    Parameters
    ----------
    ranks
        World ranks.
    steps
        Steps of the optimizer to profile; None: by time.
    seconds
        How long ranks without such steps are sampled.
    output
        File to write, compressed with gzip.
    timeout_s
        Seconds to wait for all of them.
    on_asked
        Called once the run has been asked.

    Raises
    ------
    ConfigError
        If the run does not train now, has no such rank, or cannot be written to.
    LaunchError
        If no rank has answered in time, or none could.
    """
    status = _training_status(paths)
    _check_output(output)
    request = ProfileRequest(
        name=time.strftime("%Y%m%dT%H%M%S"),
        ranks=tuple(dict.fromkeys(ranks)),
        steps=steps,
        seconds=seconds,
        until=time.time() + timeout_s,
    )
    if wrong := [rank for rank in request.ranks if not 0 <= rank < status.world_size]:
        raise ConfigError(
            f"{status.name} has the ranks 0 to {status.world_size - 1}, and no rank {wrong[0]}."
        )
    ask_executor(paths, request)
    on_asked()
    traces, failed = _wait(paths, request, timeout_s)
    if not traces:
        reasons = "; ".join(f"rank {rank}: {why}" for rank, why in sorted(failed.items()))
        raise LaunchError(f"no rank of {status.name} has sent a trace. {reasons}")
    failed.update(write_traces(traces, output))
    return Profile(output, tuple(sorted(traces.keys() - failed.keys())), failed)


def _check_output(output: Path) -> None:
    if not output.parent.is_dir():
        raise ConfigError(f"{output.parent} is no directory, so {output.name} cannot be written.")
    if output.suffix != ".gz":
        raise ConfigError(f"{output}: the trace is compressed, so its name ends in .json.gz.")
    if output.exists():
        raise ConfigError(f"{output} exists, and is not replaced. Give another --output.")
    if not os.access(output.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{output.parent} cannot be written to. Give another --output.")


def _training_status(paths: RunPaths) -> RunStatus:
    status = read_settled_status(paths)
    if status is None or status.state.is_final or status.world_size == 0:
        state = "has no status yet" if status is None else f"is {status.state.value}"
        raise ConfigError(
            f"{paths.root.name} {state}: only a run whose ranks train can be profiled."
        )
    if time.time() - status.updated_at > _SILENCE_S:
        raise ConfigError(
            f"{status.name} has been silent for {time.time() - status.updated_at:.0f} s, so no "
            f"process seems to run it. See: hpctrain status {paths.root}"
        )
    if status.launcher == "inline":
        raise ConfigError(
            f"{status.name} trains in the process that called fit() (num_workers=0), which takes "
            f"no requests. Profile it there: py-spy record --pid {status.owner_pid}"
        )
    return status


def ask_executor(paths: RunPaths, request: ProfileRequest) -> None:
    """Write a request into the run directory, as a whole. Not collective.

    Raises
    ------
    ConfigError
        If there is another one, or the directory cannot be written to.
    """
    whole = paths.root / f".profile-{socket.gethostname()}-{os.getpid()}"
    try:
        write_atomic(whole, request.to_bytes())
        # Not over one that another command has left: the executor takes one at a time.
        os.link(whole, paths.profile_request)
    except FileExistsError as error:
        raise ConfigError(
            f"{paths.profile_request} exists: another profile of this run is being asked for. Try "
            f"again in some seconds; if it stays, its run does not take requests, and it can go."
        ) from error
    except OSError as error:
        raise ConfigError(
            f"the request cannot be written into {paths.root}: {error}. Only the owner of a run "
            f"can have it profiled."
        ) from error
    finally:
        with suppress(OSError):
            whole.unlink()


def _wait(
    paths: RunPaths, request: ProfileRequest, timeout_s: float
) -> tuple[dict[int, Path], dict[int, str]]:
    traces: dict[int, Path] = {}
    failed: dict[int, str] = {}
    deadline = Deadline(timeout_s, longest_gap_s=ANY_GAP_S)
    next_status_at = time.monotonic()
    while len(traces) + len(failed) < len(request.ranks):
        for rank in request.ranks:
            path = paths.trace_of_rank(request.name, rank)
            if path.exists():
                traces[rank] = path
            elif path.with_suffix(".failed").exists():
                failed[rank] = path.with_suffix(".failed").read_text(errors="replace")
        if deadline.is_over:
            _give_up(paths, request, traces, failed, f"no trace after {timeout_s:g} s")
        elif time.monotonic() > next_status_at:
            next_status_at = time.monotonic() + 10 * _POLL_S
            status = read_settled_status(paths)
            if status is None or status.state.is_final:
                _give_up(paths, request, traces, failed, "the run has ended")
        time.sleep(_POLL_S)
    return traces, failed


def _give_up(
    paths: RunPaths,
    request: ProfileRequest,
    traces: Mapping[int, Path],
    failed: dict[int, str],
    why: str,
) -> None:
    paths.profile_request.unlink(missing_ok=True)
    for rank in request.ranks:
        if rank not in traces:
            failed.setdefault(rank, why)


def write_traces(traces: Mapping[int, Path], output: Path) -> dict[int, str]:
    """Write traces of ranks as one; return which ranks are not in it, and why. Not collective.

    Parameters
    ----------
    traces
        In the Trace Event Format, by rank.
    output
        Compressed with gzip.
    """
    damaged: dict[int, str] = {}
    partial = output.with_name(f".{output.name}.part")
    with gzip.open(partial, "wt", encoding="utf-8", compresslevel=3) as file:
        file.write('{"traceEvents":[\n')
        separator = ""
        for rank, path in sorted(traces.items()):
            try:
                content = json.loads(path.read_bytes())
            except (OSError, ValueError) as error:
                damaged[rank] = f"its trace cannot be read: {error}"
                continue
            for event in _of_rank(content, rank):
                file.write(f"{separator}{json.dumps(event)}")
                separator = ",\n"
        file.write("\n]}\n")
    partial.replace(output)
    return damaged


def _of_rank(content: Mapping[str, Any], rank: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a rank, with process numbers that no other rank has."""
    # torch counts microseconds from an hour of its own; ranks have one clock as far as nodes have.
    shift_us = content.get("baseTimeNanoseconds", 0) / 1000
    numbers: dict[Any, int] = {}
    for event in content.get("traceEvents", ()):
        own = event.get("pid", 0)
        pid = numbers.setdefault(own, rank * _PIDS_OF_A_RANK + len(numbers))
        event = {**event, "pid": pid}
        if "ts" in event:
            event["ts"] = event["ts"] + shift_us
        if event.get("ph") == "M" and event.get("name") in ("process_name", "process_sort_index"):
            continue
        yield event
    for own, pid in numbers.items():
        # The first is the process; others are GPUs, by number, and rows of torch's own, by name.
        name = f"rank {rank}" if pid % _PIDS_OF_A_RANK == 0 else f"rank {rank}: {own}"
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
