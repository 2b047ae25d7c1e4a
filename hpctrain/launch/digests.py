"""What decides the result of a run, as digests by name, and as values for a person to read."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from hpctrain.checkpoint_files import MANIFEST_NAME
from hpctrain.config import CheckpointConfig, RunConfig, Stop
from hpctrain.errors import ConfigError
from hpctrain.plan.modules import ModuleFinder, combine
from hpctrain.plan.spec import ValidationSpec, WorkerSpec, make_fingerprint, pack
from hpctrain.rundir.reading import read_content

FUNCTION = "training function"
"""What the digest of the user's function is called."""
MODULES = "modules of the script"
"""What the digest of the user's own modules is called."""
FILES = "files of the datasets"
"""What the digest of these files is called."""
_LONGEST_VALUE = 80
_READ_BYTES = 16 * 2**20
_PLAIN = (bool, int, float, str, bytes, type(None))


def digest_parts(
    spec: WorkerSpec,
    worker: bytes,
    *,
    run_config: RunConfig,
    num_workers: int | tuple[int, int],
    resume_from: Path | None,
    validation: ValidationSpec | None,
    finder: ModuleFinder,
) -> tuple[dict[str, str], dict[str, str]]:
    """Return digests of what decides the result, and of the user's modules among it by file.

    Not collective.

    Parameters
    ----------
    spec, worker
        What ranks open, and its pickle.
    finder
        Finds the modules.
    """
    stop = _pack_stop(run_config.stop)
    validate = b"" if validation is None else validation.fn
    finder.follow(worker, stop, *([validate] if validate else []))
    modules = dict(sorted(finder.digests.items()))
    digests = {
        FUNCTION: make_fingerprint(pack(spec.train_loop, what="the training function")),
        "train_loop_config": make_fingerprint(pack(spec.train_loop_config, what="the config")),
        "backend config": make_fingerprint(pack(spec.backend_config, what="the backend config")),
        "number of workers": str(num_workers),
        MODULES: combine(modules.items()),
        "stop": make_fingerprint(stop),
        "checkpoint_config": json.dumps(
            _changed_fields(run_config.checkpoint_config), sort_keys=True
        ),
        "validation_config": _digest_validation(validation),
        **identify_datasets(spec.datasets),
    }
    resumed = identify_checkpoint(resume_from)
    if resumed is not None:
        digests["resume_from_checkpoint"] = resumed
    return digests, modules


def describe_values(
    spec: WorkerSpec,
    *,
    run_config: RunConfig,
    num_workers: int | tuple[int, int],
    resume_from: Path | None,
) -> dict[str, str]:
    """Return what decides the result and can be read by a person. Not collective."""
    values = {
        "number of workers": str(num_workers),
        "resume_from_checkpoint": str(resume_from),
    }
    for name, content in (
        ("train_loop_config", spec.train_loop_config),
        ("stop", run_config.stop),
        ("checkpoint_config", _changed_fields(run_config.checkpoint_config)),
    ):
        values.update(_plain_values(name, content))
    return values


def _plain_values(name: str, content: Any) -> Iterator[tuple[str, str]]:
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from _plain_values(f"{name}[{key!r}]", value)
    elif isinstance(content, _PLAIN) or (
        isinstance(content, (list, tuple)) and all(isinstance(x, _PLAIN) for x in content[:100])
    ):
        text = repr(content[:100] if isinstance(content, (str, bytes, list, tuple)) else content)
        yield name, text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _changed_fields(config: CheckpointConfig) -> dict[str, Any]:
    """Return the fields that are not as they are by default: others may be added later."""
    default = CheckpointConfig()
    return {
        field.name: getattr(config, field.name)
        for field in fields(config)
        if getattr(config, field.name) != getattr(default, field.name)
    }


def _digest_validation(validation: ValidationSpec | None) -> str:
    """Return a digest of what decides the metrics of a validation; not of where it runs."""
    if validation is None:
        return "None"
    arguments = json.dumps(dict(validation.task_config.fn_kwargs), sort_keys=True)
    return make_fingerprint(validation.fn, arguments.encode())


def _pack_stop(stop: Stop | None) -> bytes:
    if isinstance(stop, Mapping):
        return repr(sorted(stop.items())).encode()
    if stop is None:
        return b"None"
    try:
        return pack(stop, what="RunConfig(stop=...)")
    except ConfigError:
        # In this process it need not be pickled.
        return getattr(stop, "__qualname__", type(stop).__qualname__).encode()


def identify_checkpoint(path: Path | None) -> str | None:
    """Return a digest of a checkpoint to begin with; None if it is gone, which need not matter.

    Not collective.
    """
    if path is None:
        return "None"
    from hpctrain.rundir.manifest import MOST_BYTES

    try:
        content = read_content(path / MANIFEST_NAME, most=MOST_BYTES)
    except OSError:
        if not path.exists():
            return None
        content = _identify_directory(path)
    return hashlib.sha256(content).hexdigest()


def _identify_directory(directory: Path) -> bytes:
    """Return what changes with the files of a directory: their content, where that is small."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    stats = [path.stat() for path in files]
    if sum(stat.st_size for stat in stats) <= _READ_BYTES:
        marks: list[Any] = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    else:
        marks = [(stat.st_size, stat.st_mtime_ns) for stat in stats]
    names = [str(path.relative_to(directory)) for path in files]
    return repr(list(zip(names, marks, strict=True))).encode()


def identify_datasets(datasets: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of the files of the datasets, if there are any; they may not be ours.

    Not collective.
    """
    if "hpctrain.data.dataset" not in sys.modules:
        return {}
    from hpctrain.data.identity import files_of, identify_files

    files = [path for dataset in datasets.values() for path in files_of(dataset)]
    return {FILES: identify_files(files)} if files else {}
