"""The user's own modules that a pickle reaches, found without importing anything.

cloudpickle stores functions and classes of an imported module only by name. So the pickle of a
training function that calls ``model.build()`` does not contain ``model.py``. This module finds the
files of the names, and the files that these import.

It excludes the standard library, ``site-packages`` and hpctrain itself. It cannot find a module
whose name is computed at run time.
"""

from __future__ import annotations

import dis
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hpctrain.plan.fingerprint import Node, build_pickle, is_code_type
from hpctrain.plan.sources import SourceFile

_MOST_FILES = 2000
_FOREIGN = ("site-packages", "dist-packages")
_STDLIB = os.path.dirname(os.__file__) + os.sep
_HPCTRAIN = str(Path(__file__).parents[1]) + os.sep
_IMPORT_NAME, _EXTENDED_ARG = dis.opmap["IMPORT_NAME"], dis.opmap["EXTENDED_ARG"]
# Arguments of types.CodeType, in all Pythons: bytecode, constants, names.
_BYTECODE, _CONSTANTS, _NAMES = 6, 7, 8

# Also within functions, after `;` and `:`, and in strings, which is harmless.
_STATEMENT = re.compile(
    rb"(?:^|[;:])[ \t]*(?:from[ \t]+(\.*)[ \t]*([\w.]*)[ \t]+import[ \t]*(\([^)]*\)|[^\n;#(]+)"
    rb"|import[ \t]+([^\n;#]+))"
    rb"|\b(?:import_module|__import__)\(\s*['\"]([\w.]+)['\"]",
    re.MULTILINE,
)
_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")


class ModuleFiles:
    """Files of modules, each of which is read once: later edits do not show."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[bytes, int]] = {}

    def __contains__(self, path: str) -> bool:
        """Return whether there is a file, or was when it was read."""
        return path in self._read or os.path.isfile(path)

    def read(self, path: str) -> tuple[bytes, int]:
        """Return the content of a file and its modification time in nanoseconds. Not collective.

        Raises
        ------
        OSError
            If it cannot be read.
        """
        if path not in self._read:
            with open(path, "rb") as file:
                self._read[path] = file.read(), os.fstat(file.fileno()).st_mtime_ns
        return self._read[path]


class ModuleFinder:
    """Follows pickles to names of modules, these to files, and files to the names they import.

    Parameters
    ----------
    files
        What has been read before, for several runs of the same code; None reads all files now.
    """

    def __init__(self, files: ModuleFiles | None = None) -> None:
        self._files = ModuleFiles() if files is None else files
        self.digests: dict[str, str] = {}
        """Of each file, by its name relative to where Python found the module (``package/net.py``),
        which does not change with the directory."""
        self.sources: dict[str, SourceFile] = {}
        """Of each module that is Python source, by its name for ``import``."""
        self.is_complete = True
        """Whether nothing was left out because there are too many files."""
        self._found: dict[str, str | None] = {}
        self._places: dict[str, list[str]] = {}
        paths = dict.fromkeys(os.path.abspath(path) for path in sys.path)
        self._paths = [p for p in paths if _is_own(p + os.sep) and not p.endswith(".zip")]
        self._foreign = {path for path in paths if path not in self._paths}
        self._all_paths = list(paths)

    def follow(self, *pickles: bytes) -> None:
        """Add all modules that pickles reach. Not collective."""
        for content in pickles:
            try:
                tree = build_pickle(content)
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                continue
            for name in _named_in(tree):
                self._reach(name)

    def _reach(self, name: str) -> None:
        """Add a module, its imports, and its parent packages."""
        waiting = [name]
        while waiting:
            if len(self.digests) >= _MOST_FILES:
                self.is_complete = False
                return
            name = waiting.pop()
            for parent in _with_parents(name):
                if parent in self._found:
                    continue
                path = self._found[parent] = self._locate(parent)
                if path is None:
                    continue
                try:
                    content, mtime_ns = self._files.read(path)
                except OSError:
                    continue
                self.digests[shown_name(parent, path)] = hashlib.sha256(content).hexdigest()
                if path.endswith(".py"):
                    waiting += _imported_by(parent, path, content)
                    self.sources[parent] = SourceFile.of(path, content, mtime_ns=mtime_ns)

    def _locate(self, name: str) -> str | None:
        """Return the file of a module, if it is the user's own."""
        top, _, _ = name.partition(".")
        if top in ("hpctrain", "__main__"):
            return None
        module = sys.modules.get(name)
        if module is not None:
            path = getattr(module, "__file__", None)
            if not isinstance(path, str):
                return None
            path = os.path.abspath(path)
            return path if _is_own(path) and path in self._files else None
        if top in sys.modules and not _has_own_place(sys.modules[top]):
            return None
        return self._search(name)

    def _search(self, name: str) -> str | None:
        package, _, last = name.rpartition(".")
        if not package and self._is_foreign(name):
            return None
        for directory in self._directories(package):
            for path in (
                os.path.join(directory, last, "__init__.py"),
                os.path.join(directory, last + ".py"),
            ):
                if path in self._files and _is_own(path):
                    return path
        return None

    def _is_foreign(self, name: str) -> bool:
        """Return whether ``import`` finds a library of this name before a file of the user's."""
        if name in sys.builtin_module_names:
            return True
        for directory in self._all_paths:
            place = os.path.join(directory, name)
            if os.path.isfile(f"{place}.py") or os.path.isfile(os.path.join(place, "__init__.py")):
                return directory in self._foreign
        return False

    def _directories(self, package: str) -> list[str]:
        """Return the directories of a package's modules; a namespace package has several."""
        if not package:
            return self._paths
        if package not in self._places:
            path = self._found.get(package)
            if path is None:
                parts = package.split(".")
                places = [os.path.join(folder, *parts) for folder in self._paths]
                self._places[package] = [place for place in places if os.path.isdir(place)]
            else:
                is_package = os.path.basename(path).startswith("__init__.")
                self._places[package] = [os.path.dirname(path)] if is_package else []
        return self._places[package]


def _is_own(path: str) -> bool:
    if path.startswith((_STDLIB, _HPCTRAIN)):
        return False
    return not any(f"{os.sep}{folder}{os.sep}" in path for folder in _FOREIGN)


def own_places(sys_path: Iterable[str]) -> tuple[str, ...]:
    """Return the directories of ``sys.path`` whose modules are the user's own. Not collective.

    Parameters
    ----------
    sys_path
        Its directories, and archives, which are none.
    """
    return tuple(
        path
        for path in sys_path
        if _is_own(os.path.abspath(path) + os.sep) and not path.endswith(".zip")
    )


def _has_own_place(module: Any) -> bool:
    path = getattr(module, "__file__", None)
    if isinstance(path, str):
        return _is_own(os.path.abspath(path))
    # A namespace package; built-in modules have no path.
    return hasattr(module, "__path__")


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])


def shown_name(name: str, path: str) -> str:
    """Return what a module's file is called in ``plan.json``: ``package/net.py``. Pure.

    Parameters
    ----------
    name
        Of the module, for ``import``.
    path
        Its file.
    """
    parts = name.split(".")
    if os.path.basename(path).startswith("__init__."):
        parts.append("__init__")
    return "/".join(parts) + os.path.splitext(path)[1]


def _imported_by(name: str, path: str, source: bytes) -> Iterator[str]:
    """Yield names that a file imports, and some that are not modules."""
    is_package = os.path.basename(path) == "__init__.py"
    for dots, origin, members, modules, computed in _STATEMENT.findall(source):
        if computed:
            yield computed.decode()
        elif modules:
            for word in modules.decode("utf-8", "replace").split(","):
                if match := _NAME.match(word.strip()):
                    yield match.group()
        else:
            base = origin.decode("utf-8", "replace")
            if dots:
                package = name.split(".")
                kept = len(package) - len(dots) + is_package
                base = ".".join([*package[: max(kept, 0)], *([base] if base else [])])
            if not base:
                continue
            yield base
            text = members.decode("utf-8", "replace").strip("()")
            for word in re.sub(r"#[^\n]*", "", text).split(","):
                # It may be a module of a package.
                if match := _NAME.match(word.strip()):
                    yield f"{base}.{match.group()}"


def _named_in(tree: Any) -> Iterator[str]:
    """Yield names of modules in a pickle, and some that are not modules."""
    main = sys.modules.get("__main__")
    package = getattr(main, "__package__", None) or ""
    seen: set[int] = set()
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, Node) or id(node) in seen:
            continue
        seen.add(id(node))
        if node.kind == "global":
            if isinstance(node.parts[0], str):
                yield node.parts[0]
        elif node.kind == "call" and isinstance(node.parts[1], Node):
            callee, arguments = node.parts[:2]
            if is_code_type(callee):
                for name in _imported_in_code(arguments.parts):
                    yield name
                    if package:
                        yield f"{package}.{name}"
            elif getattr(callee, "parts", None) == ["cloudpickle.cloudpickle", "subimport"]:
                yield arguments.parts[0]
        waiting += node.parts


def _imported_in_code(arguments: list[Any]) -> Iterator[str]:
    bytecode = arguments[_BYTECODE]
    names = arguments[_NAMES].parts
    if not isinstance(bytecode, bytes):
        return
    imported = []
    extended = 0
    for opcode, argument in zip(bytecode[::2], bytecode[1::2], strict=True):
        argument |= extended
        extended = argument << 8 if opcode == _EXTENDED_ARG else 0
        if opcode == _IMPORT_NAME:
            imported.append(names[argument])
    yield from imported
    # For `from package import module` and `package.module.function`.
    for name in imported:
        yield from (f"{name}.{other}" for other in names if isinstance(other, str))
    if "import_module" in names or "__import__" in names:
        constants = arguments[_CONSTANTS]
        for constant in constants.parts if isinstance(constants, Node) else ():
            if isinstance(constant, str) and _NAME.fullmatch(constant):
                yield constant


def combine(digests: Iterable[tuple[str, str]]) -> str:
    """Return one digest of many, by name. Not collective."""
    return hashlib.sha256(repr(sorted(digests)).encode()).hexdigest()
