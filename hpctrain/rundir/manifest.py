"""`Manifest`: what makes a directory a complete checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import xxhash

from hpctrain.bulk.unreadable import UnreadableError, is_passing
from hpctrain.checkpoint import MANIFEST_NAME
from hpctrain.errors import CheckpointError
from hpctrain.rundir import FORMAT
from hpctrain.rundir.staging import StagedFile


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What makes a checkpoint complete."""

    name: str
    """Name of its directory."""
    report: int
    """Number of the report that it came with. The newest checkpoint is that of the last report,
    whatever the names."""
    attempt: int
    world_size: int
    metrics: Mapping[str, Any]
    """Rank 0's metrics of the report."""
    files: tuple[StagedFile, ...]
    created_at: float
    """Seconds since the epoch."""
    versions: Mapping[str, str]
    """Of hpctrain and Python, and of torch if the rank that saved had imported it."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


class DamagedManifestError(Exception):
    """A manifest is not there, or not what was written."""


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the content of the manifest's file. Not collective."""
    content = {
        "format": FORMAT,
        "name": manifest.name,
        "report": manifest.report,
        "attempt": manifest.attempt,
        "world_size": manifest.world_size,
        "metrics": dict(manifest.metrics),
        "digest": "xxh3_128",
        "files": [astuple(file) for file in manifest.files],
        "created_at": manifest.created_at,
        "versions": dict(manifest.versions),
    }
    return json.dumps({**content, "checksum": _checksum(content)}, indent=1).encode()


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of a checkpoint's directory. Not collective.

    Raises
    ------
    DamagedManifestError
        If it is missing, torn or altered, with the reason.
    CheckpointError
        If it is of a newer format; `UnreadableError` if it cannot be read just now.
    """
    try:
        content = json.loads((directory / MANIFEST_NAME).read_bytes())
        if content["format"] > FORMAT:
            raise CheckpointError(
                f"checkpoint {directory.name} has format {content['format']}, and this hpctrain "
                f"reads up to {FORMAT}. Use a newer hpctrain."
            )
        checksum = content.pop("checksum", None)
        if checksum not in (None, _checksum(content)):
            raise DamagedManifestError("its manifest was altered: the checksum differs")
        return Manifest(
            name=directory.name,
            report=content["report"],
            attempt=content["attempt"],
            world_size=content["world_size"],
            metrics=content["metrics"],
            files=tuple(StagedFile(*file) for file in content["files"]),
            created_at=content["created_at"],
            versions=content.get("versions", {}),
        )
    except FileNotFoundError as error:
        raise DamagedManifestError("its manifest is missing") from error
    except OSError as error:
        if is_passing(error):
            raise UnreadableError(
                f"{directory / MANIFEST_NAME} cannot be read: {error.strerror}."
            ) from error
        raise DamagedManifestError(f"its manifest cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedManifestError("its manifest is torn") from error


def _checksum(content: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True).encode())
