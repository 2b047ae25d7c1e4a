"""`Manifest`: what makes a directory a complete checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import xxhash

from hpctrain.bulk.unreadable import UnreadableError, is_passing
from hpctrain.checkpoint_files import MANIFEST_NAME, VALIDATION_NAME
from hpctrain.errors import CheckpointError
from hpctrain.log import log
from hpctrain.rundir import FORMAT
from hpctrain.rundir.reading import is_time, misfits, read_content
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
    """Rank 0's metrics of the report, and what a validation of the checkpoint found since."""
    files: tuple[StagedFile, ...]
    created_at: float
    """Seconds since the epoch."""
    versions: Mapping[str, str]
    """Of hpctrain and Python, and of torch if the rank that saved had imported it."""
    validation: Mapping[str, Any] | None = None
    """Of a validation that is pending: ``fn_kwargs`` and ``timeout_s``. None if there is none, or
    it has ended."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


MOST_BYTES = 256 * 2**20
"""Of a manifest: that of a million files."""


class DamagedManifestError(Exception):
    """A manifest is not there, or not what was written."""


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the content of the manifest's file. Not collective.

    Raises
    ------
    CheckpointError
        If it would be too long to be read again.
    """
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
        "validation": None if manifest.validation is None else dict(manifest.validation),
    }
    encoded = json.dumps({**content, "checksum": _checksum(content)}, indent=1).encode()
    if len(encoded) > MOST_BYTES:
        raise CheckpointError(
            f"checkpoint {manifest.name} has {len(manifest.files)} files, whose manifest of "
            f"{len(encoded)} bytes is longer than the {MOST_BYTES} bytes that are read. Put what "
            f"it has into fewer files."
        )
    return encoded


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
        content = _read_json(directory / MANIFEST_NAME)
        version = content["format"]
        if type(version) is not int:
            raise DamagedManifestError("its manifest is torn")
        if version > FORMAT:
            raise CheckpointError(
                f"checkpoint {directory.name} has format {version}, and this hpctrain "
                f"reads up to {FORMAT}. Use a newer hpctrain."
            )
        checksum = content.pop("checksum", None)
        if checksum is None:
            raise DamagedManifestError("its manifest was altered: it has no checksum")
        if checksum != _checksum(content):
            raise DamagedManifestError("its manifest was altered: the checksum differs")
        return _with_validation(_decode(directory.name, content), directory)
    except FileNotFoundError as error:
        raise DamagedManifestError("its manifest is missing") from error
    except OSError as error:
        if is_passing(error):
            raise UnreadableError(
                f"{directory / MANIFEST_NAME} cannot be read: {error.strerror}."
            ) from error
        raise DamagedManifestError(f"its manifest cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedManifestError("its manifest is torn") from error


def encode_validation(manifest: Manifest, metrics: Mapping[str, Any]) -> bytes:
    """Return the content of the file which records that a validation has ended. Not collective.

    The manifest does not change: who reads the checkpoint holds a lock on it.
    """
    content = {"created_at": manifest.created_at, "metrics": dict(metrics)}
    return json.dumps({**content, "checksum": _checksum(content)}, indent=1).encode()


def _with_validation(manifest: Manifest, directory: Path) -> Manifest:
    """Add what a validation has found; without a whole file of it, it is pending."""
    if manifest.validation is None:
        return manifest
    try:
        content = _read_json(directory / VALIDATION_NAME)
        checksum = content.pop("checksum")
        # A copy of another checkpoint's, which a training function has put there, does not count.
        is_of_this = content["created_at"] == manifest.created_at
        if checksum == _checksum(content) and is_of_this and isinstance(content["metrics"], dict):
            metrics = {**manifest.metrics, **content["metrics"]}
            return replace(manifest, metrics=metrics, validation=None)
    except FileNotFoundError:
        return manifest
    except OSError as error:
        if is_passing(error):
            raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    log(
        f"warning: {directory / VALIDATION_NAME}: what a validation found is damaged, and left "
        f"out; a fit() that goes on with the run validates the checkpoint again."
    )
    return manifest


def _read_json(path: Path) -> Any:
    return json.loads(read_content(path, most=MOST_BYTES))


def _decode(name: str, content: Mapping[str, Any]) -> Manifest:
    known = {
        "report": content["report"],
        "attempt": content["attempt"],
        "world_size": content["world_size"],
        "metrics": content["metrics"],
        "created_at": content["created_at"],
        "versions": content["versions"],
        "validation": content["validation"],
    }
    files = tuple(StagedFile(*file) for file in content["files"])
    wrong = misfits(Manifest, known) or [n for f in files for n in misfits(StagedFile, vars(f))]
    if wrong or not is_time(known["created_at"]):
        raise DamagedManifestError(f"its manifest is torn: {(wrong or ['created_at'])[0]}")
    for file in files:
        if not _is_inside(file.path):
            raise DamagedManifestError(
                f"its manifest names {file.path!r}, which is not a file inside of the checkpoint"
            )
    return Manifest(name=name, files=files, **known)


def _is_inside(path: str) -> bool:
    """Return whether a path names what lies in a directory, in the one form that is written."""
    return "\0" not in path and all(part not in ("", ".", "..") for part in path.split("/"))


def _checksum(content: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True).encode())
