"""What trackers left in a run directory, read without their servers."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path
from typing import Any


def wandb_parts(run: Path) -> list[list[Any]]:
    """Return W&B's own messages in its files, whose frame is that of LevelDB's log."""
    from wandb.proto.wandb_internal_pb2 import Record

    parts = []
    for path in sorted(run.glob("wandb/offline-run-*/run-*.wandb")):
        content, at, data, records = path.read_bytes(), 7, b"", []
        while at + 7 <= len(content):
            left = 2**15 - at % 2**15
            if left < 7:
                at += left
                continue
            length, kind = struct.unpack_from("<HB", content, at + 4)
            data += content[at + 7 : at + 7 + length]
            at += 7 + length
            # 1: whole; 2, 3 and 4: first, middle and last part.
            if kind in (1, 4):
                record = Record()
                record.ParseFromString(data)
                records.append(record)
                data = b""
        parts.append(records)
    return parts


def wandb_history(records: list[Any]) -> list[dict[str, Any]]:
    """Return what was logged, a dict for each step."""
    rows = []
    for record in records:
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items})
    return rows


def comet_messages(run: Path) -> list[list[dict[str, Any]]]:
    """Return the messages of each archive."""
    parts = []
    for path in sorted(run.glob("comet/*.zip"), key=lambda path: path.stat().st_mtime_ns):
        with zipfile.ZipFile(path) as archive:
            lines = archive.read("messages.json").decode().splitlines()
            about = json.loads(archive.read("experiment.json"))
        parts.append([about, *(json.loads(line)["payload"] for line in lines)])
    return parts
