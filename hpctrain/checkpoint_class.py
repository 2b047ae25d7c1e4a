"""The class of a checkpoint, which its dict and its directory restore.

No name from a file is imported: a class counts only if this process has already imported it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from hpctrain.errors import ConfigError
from hpctrain.regular_file import open_regular

CLASS_NAME = ".checkpoint-class.json"
"""Written by ``from_dict()`` of a subclass."""
_MOST_BYTES = 4096

T = TypeVar("T")


class DictOf(dict[str, Any]):
    """The result of ``to_dict()`` of a subclass; a plain dict for everything else."""

    of: type | None = None


def write_class(cls: type, directory: Path) -> None:
    """Write the name of a class into a directory. Not collective."""
    content = json.dumps({"class": _name(cls)})
    (directory / CLASS_NAME).write_text(content, encoding="utf-8")


def read_class(base: type, directory: Path) -> type | None:
    """Return the class that a directory names, if this process has it as a subclass of `base`.

    Not collective. A damaged file is ignored: it is no reason to lose a model.
    """
    try:
        with open_regular(directory / CLASS_NAME) as file:
            name = json.loads(file.read(_MOST_BYTES) or b"")["class"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    # The newest of several classes of one name, as after a notebook cell has run again.
    return next((one for one in _subclasses(base) if _name(one) == name), None)


def choose_class(asked: type[T], found: type | None) -> type[T]:
    """Return the one of two classes that extends the other. Not collective.

    Raises
    ------
    ConfigError
        If neither does.
    """
    if found is None or issubclass(asked, found):
        return asked
    if issubclass(found, asked):
        return found
    raise ConfigError(
        f"the checkpoint is a {found.__name__}, not a {asked.__name__}. Open it as "
        f"a {found.__name__} or a Checkpoint; {asked.__name__}.from_checkpoint() accepts "
        f"that."
    )


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _subclasses(base: type) -> Iterator[type]:
    direct: list[type] = base.__subclasses__()
    for one in reversed(direct):
        yield one
        yield from _subclasses(one)
