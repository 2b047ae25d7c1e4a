"""Which files hpctrain itself writes into the directory of a checkpoint, and its metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpctrain.errors import CheckpointError
from hpctrain.regular_file import open_regular

MANIFEST_NAME = ".hpctrain-manifest.json"
"""Written by the commit; not part of what the user saved."""
VALIDATION_NAME = ".hpctrain-validation.json"
"""What a validation of a committed checkpoint found."""
OF_THE_RUN = (MANIFEST_NAME, VALIDATION_NAME)
"""Files that belong to the run, and that no copy of a checkpoint has."""
DICT_NAME = "dict_checkpoint.pkl"
"""Written by `Checkpoint.from_dict`."""
_METADATA_NAME = ".metadata.json"
_METADATA_OF_RUN_NAME = ".run-metadata.json"
"""What a trainer was given; a file of its own, since ranks may add to the other one."""


def read_metadata(directory: Path) -> dict[str, Any]:
    """Return the metadata of a checkpoint; what was set for it wins over the trainer's.

    Not collective.

    Raises
    ------
    CheckpointError
        If a file of it is damaged, or cannot be read.
    """
    return {
        **_read_json(directory / _METADATA_OF_RUN_NAME),
        **_read_json(directory / _METADATA_NAME),
    }


def write_metadata(metadata: Mapping[str, Any], directory: Path) -> None:
    """Replace the metadata of a checkpoint, the trainer's included. Not collective."""
    (directory / _METADATA_NAME).write_text(json.dumps(dict(metadata)), encoding="utf-8")
    (directory / _METADATA_OF_RUN_NAME).unlink(missing_ok=True)


def metadata_of_run(metadata: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the file, by name, that holds a trainer's metadata in a checkpoint. Not collective."""
    return {_METADATA_OF_RUN_NAME: json.dumps(dict(metadata)).encode()}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        with open_regular(path) as file:
            metadata = json.loads(file.readall())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: it does not hold JSON.") from error
    if not isinstance(metadata, dict):
        raise CheckpointError(f"{path} is damaged: it does not hold a JSON object.")
    return metadata
