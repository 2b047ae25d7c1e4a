"""Reads from W&B's own file of a run, offline, how far a process got that was killed."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpctrain.own_time import ANY_GAP_S, Deadline

# The file has a header, then the blocks of LevelDB's log: a record may have several chunks.
_HEADER_BYTES = 7
_BLOCK_BYTES = 2**15
_CHUNK_HEADER = struct.Struct("<IHB")
_WHOLE, _FIRST, _LAST = 1, 2, 4


def last_step(directory: Path, run_id: str) -> int:
    """Return the last step that the parts of an offline run have on disk; 0 for none.

    Not collective. wandb writes a file in the background, so that a process that is killed has
    logged more than that.

    Parameters
    ----------
    directory
        ``wandb/``, where each process has left a part.
    run_id
        Which run.
    """
    # wandb appends a number to the name of one that begins in the same second as another.
    parts = sorted(directory.glob(f"offline-run-*-{run_id}*/run-{run_id}.wandb"), reverse=True)
    return next((step for part in parts if (step := _last_step_of(part))), 0)


def wait_for_step(directory: Path, run_id: str, step: int, *, timeout_s: float) -> bool:
    """Wait until a step of an offline run is on disk; return whether it is.

    Not collective. wandb's own process may write it after ``finish()`` has returned, and ends with
    its job.
    """
    deadline = Deadline(timeout_s, longest_gap_s=ANY_GAP_S)
    interval_s = 0.01
    while last_step(directory, run_id) < step:
        if deadline.is_over:
            return False
        time.sleep(interval_s)
        interval_s = min(2 * interval_s, 1.0)
    return True


def _last_step_of(part: Path) -> int:
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2
    last = 0
    for content in records_of(part.read_bytes()):
        record = messages.Record()
        record.ParseFromString(content)
        if record.HasField("history"):
            for item in record.history.item:
                if item.key == "_step" or list(item.nested_key) == ["_step"]:
                    last = max(last, int(json.loads(item.value_json)))
    return last


def records_of(content: bytes) -> Iterator[bytes]:
    """Give the records of a file, up to one that is cut off. Not collective."""
    at, record = _HEADER_BYTES, b""
    while at + _CHUNK_HEADER.size <= len(content):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _CHUNK_HEADER.size:
            at += left
            continue
        _, length, kind = _CHUNK_HEADER.unpack_from(content, at)
        begin = at + _CHUNK_HEADER.size
        at = begin + length
        # A node that fails leaves zeros where it had not written yet.
        if at > len(content) or not kind:
            return
        record = content[begin:at] if kind in (_WHOLE, _FIRST) else record + content[begin:at]
        if kind in (_WHOLE, _LAST):
            yield record
