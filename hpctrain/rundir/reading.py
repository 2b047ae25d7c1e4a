"""Reading the files of a run directory, whatever became of them: the one owner.

A file of it is a regular file of a bounded size. Of a file of lines, the lines that are damaged are
left out; any other one that is damaged is refused with its name, the reason and the next step.
"""

from __future__ import annotations

import errno
import functools
import io
import json
import math
import os
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hpctrain.bulk.unreadable import is_passing
from hpctrain.errors import DamagedFileError
from hpctrain.log import log
from hpctrain.regular_file import open_regular

T = TypeVar("T")

MOST_BYTES = 64 * 2**20
"""Of a file that is one JSON object."""
_MOST_BYTES_OF_LINES = 4 * 2**30
# 9999-12-31, the last day that `time` and `datetime` format.
_LAST_TIME = 253_402_300_799.0


def read_content(path: Path, *, most: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file. Not collective.

    Raises
    ------
    OSError
        If it cannot be read, is not a regular file, or has more than `most` bytes.
    """
    return _unless_stale(functools.partial(_read, path, most))


def _unless_stale(read: Callable[[], T]) -> T:
    try:
        return read()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    # NFS: it was replaced between its opening and its reading. Its name leads to the new one.
    return read()


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object that a file holds. Not collective.

    Raises
    ------
    FileNotFoundError, NotADirectoryError
        If there is no such file.
    OSError
        If it cannot be read just now.
    DamagedFileError
        If it is not a regular file, too large, or not a JSON object.
    """
    try:
        content = read_content(path)
    except OSError as error:
        if isinstance(error, (FileNotFoundError, NotADirectoryError)) or is_passing(error):
            raise
        raise damaged(path, error.strerror or str(error)) from error
    value = parse_json(content)
    if not isinstance(value, dict):
        what = "it is empty" if not content.strip() else "it does not hold a JSON object"
        raise damaged(path, what)
    return value


def read_end(path: Path, num_bytes: int) -> bytes:
    """Return the end of a regular file, or all of it if it is shorter. Not collective.

    Raises
    ------
    OSError
        If it cannot be read, or is not a regular file.
    """
    with open_regular(path) as file:
        file.seek(max(0, file.seek(0, 2) - num_bytes))
        return file.readall()[-num_bytes:] if num_bytes else b""


@dataclass(frozen=True, kw_only=True)
class Lines:
    """What a file of lines holds."""

    values: list[dict[str, Any]]
    """Those that are whole, in order."""
    damage: tuple[str, ...] = ()
    """What was left out, each as a sentence."""


def read_lines(path: Path, is_valid: Callable[[Any], bool]) -> list[dict[str, Any]]:
    """Return the JSON values of a file of lines, without those that are torn or damaged.

    Not collective. A file that does not exist has none. What is left out is logged.

    Parameters
    ----------
    is_valid
        Whether a value is what a line of this file holds.

    Raises
    ------
    OSError
        If it cannot be read just now.
    DamagedFileError
        If it is not a regular file, or too large.
    """
    lines = scan_lines(path, is_valid)
    for what in lines.damage:
        log(f"warning: {path}: {what}")
    return lines.values


def scan_lines(path: Path, is_valid: Callable[[Any], bool]) -> Lines:
    """Return what `read_lines` does, and what was left out. Not collective.

    Raises
    ------
    OSError, DamagedFileError
        As `read_lines`.
    """
    try:
        return _unless_stale(functools.partial(_scan, path, is_valid))
    except (FileNotFoundError, NotADirectoryError):
        return Lines(values=[])
    except OSError as error:
        if is_passing(error):
            raise
        if error.errno == errno.EFBIG:
            raise DamagedFileError(
                f"{path} is too large: {error.strerror}, which is more than hpctrain reads. Move "
                f"{path.parent} aside, and continue from what is in its checkpoints with "
                f"resume_from_checkpoint=; report fewer metrics, or less often."
            ) from error
        raise damaged(path, error.strerror or str(error)) from error


def _scan(path: Path, is_valid: Callable[[Any], bool]) -> Lines:
    valid: list[dict[str, Any]] = []
    num_damaged, is_torn = 0, False
    with io.BufferedReader(_open_at_most(path, _MOST_BYTES_OF_LINES)) as file:
        for line in file:
            content = line.rstrip(b"\n")
            if is_valid(value := _parse_line(content)):
                valid.append(value)
            elif content and line != content:
                num_damaged += 1
            else:
                # The last one may be on its way.
                is_torn = bool(content)
    damage = []
    if num_damaged:
        what = "1 line is" if num_damaged == 1 else f"{num_damaged} lines are"
        damage.append(f"{what} damaged, and left out.")
    if is_torn:
        damage.append(_TORN)
    return Lines(values=valid, damage=tuple(damage))


_TORN = "the last line is torn, or just being written, and left out."


def say_torn(path: Path) -> None:
    """Log that a file of lines ends in the middle of one. Not collective."""
    log(f"warning: {path}: {_TORN}")


def parse_json(content: bytes | str) -> Any:
    """Return a JSON value; None for what is not JSON, and for null. Not collective."""
    if len(content) > MOST_BYTES:
        return None
    try:
        return json.loads(content)
    # A few thousand brackets are more than the parser can nest.
    except (ValueError, RecursionError):
        return None


def is_time(value: object) -> bool:
    """Return whether a value is a time in seconds since the epoch. Not collective."""
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= _LAST_TIME
    )


def is_job_id(value: object) -> bool:
    """Return whether a value is a job id of Slurm, and not an option. Not collective."""
    return isinstance(value, str) and _JOB_ID.fullmatch(value) is not None


def is_same_file(path: str, other: Path) -> bool:
    """Return whether two paths lead to one file, however they are spelled. Not collective.

    Where a file is gone, whether they are spelled alike.
    """
    try:
        return os.path.samefile(path, other)
    except (OSError, ValueError):
        return path == str(other)


# Of arrays and heterogeneous jobs too: 7_3, 7+1.
_JOB_ID = re.compile(r"[0-9]{1,12}([_+][0-9]{1,9})?")


def misfits(kind: type, content: Mapping[str, Any]) -> list[str]:
    """Return the names of what is not of the type that a dataclass declares for its field.

    Not collective. A sequence may stand for a tuple.
    """
    checks = _checks(kind)
    return [n for n, value in content.items() if n in checks and not checks[n](value)]


@functools.lru_cache
def _checks(kind: type) -> dict[str, Callable[[Any], bool]]:
    return {name: _check_of(hint) for name, hint in get_type_hints(kind).items()}


def _check_of(hint: Any) -> Callable[[Any], bool]:
    """Return whether values are of a type, as a function that is quick."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        checks = [_check_of(one) for one in inner]
        return lambda value: any(check(value) for check in checks)
    if origin is tuple:
        of = _check_of(inner[0])
        return lambda value: isinstance(value, (list, tuple)) and all(map(of, value))
    if origin is Literal:
        return lambda value: value in inner
    return _SIMPLE.get(hint) or functools.partial(_is_a, origin or hint)


def _is_a(kind: type, value: Any) -> bool:
    return isinstance(value, kind)


# Of exact types, so that True is no number: what JSON has is of these.
_SIMPLE: dict[Any, Callable[[Any], bool]] = {
    Any: lambda value: True,
    int: lambda value: type(value) is int and -(2**63) < value < 2**63,
    float: lambda value: (
        (type(value) is float and math.isfinite(value))
        or (type(value) is int and abs(value) < 2**63)
    ),
}


def _parse_line(line: bytes) -> Any:
    # One byte that is not UTF-8 does not hide the rest of its line.
    return parse_json(line.decode(errors="replace"))


def damaged(path: Path, why: str) -> DamagedFileError:
    """Return the error of a file that is damaged, with the reason. Not collective."""
    return DamagedFileError(
        f"{path} is damaged: {why}. Restore it from a backup, or move {path.parent} aside and "
        f"begin the run again; resume_from_checkpoint= takes what is in its checkpoints."
    )


def _read(path: Path, most: int) -> bytes:
    with _open_at_most(path, most) as file:
        return file.readall()


def _open_at_most(path: Path, most: int) -> io.FileIO:
    file = open_regular(path)
    if os.fstat(file.fileno()).st_size > most:
        file.close()
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
    return file
