"""Preprocessors on disk: ``preprocessor.json``, and ``preprocessor.npz`` for its arrays.

Reading hpctrain's own classes runs no code. The second file holds the other parts of a
preprocessor: estimators of scikit-learn in the format of skops, functions and other objects as
pickles. These are opened if only this user can have written them, if this process has pickled the
same bytes, or if the caller declares them trusted (`hpctrain.pickle_trust`).
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Container
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from hpctrain import pickle_trust
from hpctrain.data.arguments import path
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.own_files import write_own
from hpctrain.preprocessors.batches import Array
from hpctrain.preprocessors.encoding import Decoder, Encoder
from hpctrain.preprocessors.preprocessor import Preprocessor
from hpctrain.version import __version__
from hpctrain.writers import Foreign, read_judged

JSON_NAME = "preprocessor.json"
ARRAYS_NAME = "preprocessor.npz"
_FORMAT = 1
_MADE_BY = "made_by"
# Python's errors for damaged content.
_DAMAGED = (
    OSError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    zipfile.BadZipFile,
)


def save(preprocessor: Preprocessor, directory: str | PathLike[str]) -> None:
    """Write a preprocessor into a directory, next to a model.

    Not collective.

    Parameters
    ----------
    preprocessor
        The preprocessor, fitted or not.
    directory
        An existing directory.

    Raises
    ------
    ConfigError
        If it is not a preprocessor, or holds an object that cannot be pickled.
    """
    folder = Path(path("directory", directory))
    for name, content in to_files(preprocessor).items():
        write_own(folder / name, content)


def load(directory: str | PathLike[str], *, trusted: bool = False) -> Preprocessor:
    """Return the preprocessor that was written into a directory.

    Not collective.

    Parameters
    ----------
    directory
        A directory, such as that of a checkpoint.
    trusted
        Whether to unpickle functions and objects of other packages even if another user can have
        written them. Unpickling runs code.

    Raises
    ------
    CheckpointError
        If there is none, it is damaged, or it holds a pickle and is not trusted.
    """
    return _load(Path(path("directory", directory)), trusted=trusted)


def has_preprocessor(directory: str | PathLike[str]) -> bool:
    """Return whether a preprocessor was written into a directory. Not collective."""
    return (Path(directory) / JSON_NAME).exists()


def is_stored(preprocessor: Preprocessor, directory: str | PathLike[str]) -> bool:
    """Return whether a directory holds exactly this preprocessor, byte by byte.

    Not collective.
    """
    folder = Path(directory)
    try:
        made_by = json.loads((folder / JSON_NAME).read_bytes()).get(_MADE_BY)
        return all(
            (folder / name).read_bytes() == content
            for name, content in to_files(preprocessor, made_by=made_by).items()
        )
    except (OSError, ValueError, AttributeError, ConfigError):
        return False


def to_files(preprocessor: Preprocessor, *, made_by: str | None = None) -> dict[str, bytes]:
    """Return the content of the files that hold a preprocessor, by name.

    Not collective.

    Parameters
    ----------
    preprocessor
        The preprocessor, fitted or not.
    made_by
        `call_digest` of the preprocessor before it was fitted, for `load_same`.
    """
    content, arrays = _encode(preprocessor)
    if made_by is not None:
        content[_MADE_BY] = made_by
    files = {JSON_NAME: json.dumps({**content, "arrays": list(arrays)}, indent=1).encode()}
    if arrays:
        stream = io.BytesIO()
        named: dict[str, Any] = arrays
        np.savez(stream, **named)
        files[ARRAYS_NAME] = stream.getvalue()
    return files


def serialize(preprocessor: Preprocessor) -> str:
    """Return a preprocessor as one text, arrays included. Not collective."""
    content, arrays = _encode(preprocessor)
    return json.dumps({**content, "arrays": {n: _array_text(a) for n, a in arrays.items()}})


def deserialize(serialized: str, *, trusted: bool = False) -> Preprocessor:
    """Return the preprocessor that `serialize` encoded. Not collective.

    Raises
    ------
    CheckpointError
        If it is damaged, or holds a pickle and is not trusted.
    """
    where = "a serialized text"
    try:
        content = json.loads(serialized)
        _check_format(content, where)
        arrays = {
            name: np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)
            for name, text in content["arrays"].items()
        }
        return _decode_preprocessor(
            content["preprocessor"], Decoder(arrays, where=where, may_open=trusted)
        )
    except _DAMAGED as error:
        raise _damage(where, error) from error


def call_digest(preprocessor: Preprocessor) -> str:
    """Return a digest of what a preprocessor is before it is fitted. Not collective."""
    encoded = _without_stats(Encoder().encode(preprocessor))
    return hashlib.sha256(json.dumps(encoded).encode()).hexdigest()


def load_same(preprocessor: Preprocessor, directory: str | PathLike[str]) -> Preprocessor | None:
    """Return the preprocessor of a directory if the same call made it, else None.

    Not collective. A pickle is opened if it equals one of `preprocessor`, byte by byte, or if only
    this user can have written it.

    Raises
    ------
    CheckpointError
        If it is damaged, or holds another pickle.
    """
    if not has_preprocessor(directory):
        return None
    folder = Path(directory)
    writer = Encoder()
    wanted = _without_stats(writer.encode(preprocessor))
    stored = _read_json(folder)[0]
    # A user's own class is one pickle, which is another one when it is fitted.
    is_same = stored.get(_MADE_BY) == call_digest(preprocessor)
    if not is_same and _without_stats(stored["preprocessor"]) != wanted:
        return None
    return _load(folder, known=writer.arrays)


def recognize(preprocessor: Preprocessor) -> None:
    """Let this process open the pickles that ranks will write of a preprocessor it sends to them.

    Not collective. Only equal bytes are recognized, so nothing else is opened.
    """
    Encoder().encode(preprocessor)


def recognized_in(directory: str | PathLike[str]) -> frozenset[str]:
    """Return the digests of the pickles in a directory that this process has made itself.

    Not collective. `hpctrain.pickle_trust.remember_digests` lets another process open them too.
    """
    path = Path(directory) / ARRAYS_NAME
    if not path.exists():
        return frozenset()
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as stored:
            contents = [stored[name] for name in stored.files]
    except _DAMAGED as error:
        raise _damage(directory, error) from error
    pickles = (array.tobytes() for array in contents if array.dtype == np.uint8)
    return frozenset(map(pickle_trust.digest, filter(pickle_trust.is_made_here, pickles)))


def check_is_preprocessor(value: Any) -> None:
    """Check that a value is a preprocessor.

    Not collective.

    Raises
    ------
    ConfigError
        If it is not; the message names classes to wrap it in.
    """
    if not isinstance(value, Preprocessor):
        raise ConfigError(
            f"preprocessor={value!r} is a {type(value).__name__}, not a Preprocessor. Wrap a "
            f"transformer of scikit-learn in SklearnPreprocessor, a function in BatchMapper."
        )


def _without_stats(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_stats(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _without_stats(part)
        for key, part in value.items()
        if not (key == "stats" and "class" in value)
    }


def _encode(preprocessor: Preprocessor) -> tuple[dict[str, Any], dict[str, Array]]:
    check_is_preprocessor(preprocessor)
    writer = Encoder()
    encoded = writer.encode(preprocessor)
    return (
        {"format": _FORMAT, "hpctrain": __version__, "preprocessor": encoded},
        writer.arrays,
    )


def _load(folder: Path, *, trusted: bool = False, known: Container[str] = ()) -> Preprocessor:
    content, foreign = _read_json(folder)
    try:
        arrays: dict[str, Array] = {}
        if content["arrays"]:
            stored_arrays, foreign_arrays = read_judged(folder / ARRAYS_NAME)
            foreign = foreign or foreign_arrays
            with np.load(io.BytesIO(stored_arrays), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in content["arrays"]}
        may_open = trusted or foreign is None
        reader = Decoder(arrays, where=str(folder), may_open=may_open, foreign=foreign, known=known)
        return _decode_preprocessor(content["preprocessor"], reader)
    except _DAMAGED as error:
        raise _damage(folder, error) from error


def _read_json(folder: Path) -> tuple[dict[str, Any], Foreign | None]:
    try:
        stored, foreign = read_judged(folder / JSON_NAME)
        content: dict[str, Any] = json.loads(stored)
        _check_format(content, str(folder))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{folder} holds no preprocessor: {JSON_NAME} is missing. Give the trainer one, or "
            f"write it with hpctrain.preprocessors.save()."
        ) from error
    except _DAMAGED as error:
        raise _damage(folder, error) from error
    return content, foreign


def _damage(where: object, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"the preprocessor in {where} is damaged: {type(error).__name__}: {error}. Use another "
        f"checkpoint, or fit it again."
    )


def _check_format(content: Any, where: str) -> None:
    if content["format"] != _FORMAT:
        raise CheckpointError(
            f"{where} was written by hpctrain {content.get('hpctrain')} in format "
            f"{content['format']}, but this hpctrain reads format {_FORMAT}. Read it with that "
            f"version."
        )


def _array_text(array: Array) -> str:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return base64.b64encode(stream.getvalue()).decode()


def _decode_preprocessor(encoded: Any, reader: Decoder) -> Preprocessor:
    value = reader.decode(encoded)
    if not isinstance(value, Preprocessor):
        raise ValueError(f"it is a {type(value).__name__}, not a preprocessor")
    return value
