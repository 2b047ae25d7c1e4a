"""Reading of model files of XGBoost and LightGBM, of which a damaged one can crash the process.

Neither library validates its input fully: a changed byte can make it access invalid memory. So a
file is first compared with its digest, and a file without a digest is tried in another process.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from hpctrain import environ, timeouts
from hpctrain.bulk.digest import digest_file
from hpctrain.checkpoint_files import MANIFEST_NAME
from hpctrain.errors import CheckpointError, HpctrainError
from hpctrain.predict.features import ModelFeatures
from hpctrain.rundir.manifest import DamagedManifestError, read_manifest

T = TypeVar("T")

COMPLAINT = "hpctrain: "
"""Prefix of the line in which the other process reports the damage of a file."""
_NEXT = "Use another checkpoint, or train again."
# Each thread reserves memory, and a GPU reserves more addresses than the limit of the process.
_ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def read_model_file(path: Path, read: Callable[[Path], T], *, framework: str) -> T:
    """Return the model in a file. Not collective.

    Parameters
    ----------
    path
        A file in a checkpoint's directory.
    read
        Reads it with the library.
    framework
        ``xgboost`` or ``lightgbm``.

    Raises
    ------
    CheckpointError
        If the file has changed since it was saved, or the library cannot read it.
    """
    if not verify_digest(path):
        _try_elsewhere(path, framework)
    try:
        return read(path)
    except HpctrainError:
        raise
    except Exception as error:
        raise _damage(path, f"{framework} cannot read it: {first_line(error)}") from error


def read_booster(path: Path, *, framework: str) -> Any:
    """Return the booster in a file. Not collective.

    The arguments and errors are those of `read_model_file`.
    """
    library = import_module(framework)
    return read_model_file(path, lambda path: library.Booster(model_file=path), framework=framework)


def verify_digest(path: Path) -> bool:
    """Return whether a model's file has a digest, after comparing it. Not collective.

    Raises
    ------
    CheckpointError
        If the digest differs, or the path is not a file.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is not a file. {_NEXT}")
    expected = _committed(path) or _described(path)
    if expected is None:
        return False
    size, digest = digest_file(path)
    if digest != expected:
        raise _damage(path, f"its {size} bytes have the digest {digest}, not {expected}")
    return True


def first_line(error: BaseException) -> str:
    """Return the first line with text of a library's error. Not collective."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"


def _committed(path: Path) -> str | None:
    """Return the digest with which a file was committed."""
    if not (path.parent / MANIFEST_NAME).exists():
        return None
    try:
        files = read_manifest(path.parent).files
    except DamagedManifestError as error:
        raise CheckpointError(f"{path.parent} is damaged: {error}. {_NEXT}") from error
    return next((f.digest for f in files if f.path == path.name and f.kind == "content"), None)


def _described(path: Path) -> str | None:
    """Return the digest that was written beside a file when it was saved."""
    features = ModelFeatures.read(path.parent)
    return None if features is None else features.digests.get(path.name)


def _try_elsewhere(path: str | PathLike[str], framework: str) -> None:
    """Read a file in another process, and raise if that fails."""
    command = [sys.executable, "-m", "hpctrain.gbdt.model_check", framework, str(path)]
    try:
        tried = subprocess.run(
            command,
            env={**environ.environment(), **_ALONE},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeouts.MODEL_FILE_S,
        )
    except subprocess.TimeoutExpired as error:
        raise _damage(
            path, f"{framework} had not read it after {timeouts.describe(timeouts.MODEL_FILE_S)}"
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"{path} has no digest, and the process that checks it cannot be started: "
            f"{error.strerror}. Load it where processes can be started."
        ) from error
    if tried.returncode == 0:
        return
    lines = [line for line in tried.stdout.splitlines() if line.startswith(COMPLAINT)]
    if lines:
        raise _damage(path, lines[-1].removeprefix(COMPLAINT))
    if tried.returncode < 0:
        name = signal.Signals(-tried.returncode).name
        why = ", out of time," if name == "SIGXCPU" else ""
        raise _damage(path, f"{framework} ended with {name}{why} when it read it")
    last = next(reversed(tried.stderr.strip().splitlines()), "no message")
    raise _damage(path, f"{framework} failed when it read it: {last[:300]}")


def _damage(path: str | PathLike[str], how: str) -> CheckpointError:
    return CheckpointError(f"the model in {path} is damaged: {how}. {_NEXT}")
