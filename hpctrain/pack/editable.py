"""Where editable installations, and other lines of ``.pth`` files, have their modules."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.machinery import all_suffixes
from importlib.metadata import Distribution, distributions
from pathlib import Path

from hpctrain.errors import ConfigError

_FINDER = re.compile(r"import (__editable___\w+_finder)\b")
# A directory with this name holds packages, and nothing but packages.
_OF_SOURCES = "src"
_OF_ENVIRONMENTS = {"pyvenv.cfg", "conda-meta"}
_NAMESPACES = 3
"""How many directories without ``__init__.py`` may lead to a package."""


@dataclass(kw_only=True)
class Elsewhere:
    """What a ``site-packages`` directory takes from elsewhere."""

    modules: dict[str, Path] = field(default_factory=dict)
    """Files and directories to put into ``site-packages``, by their path there."""
    directories: dict[Path, tuple[str, ...] | None] = field(default_factory=dict)
    """Directories of modules, and the relative paths of those that belong to it; None for all."""
    left_out: set[str] = field(default_factory=set)
    """Files of ``site-packages`` that lead to `modules`."""
    lines: dict[str, list[str]] = field(default_factory=dict)
    """Lines of ``.pth`` files that name directories, by the name of the file."""
    editable: dict[str, str] = field(default_factory=dict)
    """Names of the editable installations, and where their modules are."""


def find_elsewhere(site_packages: Path, *, prefix: Path) -> Elsewhere:
    """Return what a ``site-packages`` directory takes from elsewhere.

    Not collective. No code of it is run.

    Parameters
    ----------
    prefix
        What is packed anyway.

    Raises
    ------
    ConfigError
        If an editable installation finds its modules in a way that cannot be packed.
    """
    found = Elsewhere()
    names = _editable_distributions(site_packages)
    owners = {path: name for name, each in names.items() for path in _pth_files(each)}
    served: set[str] = set()
    for path in sorted(site_packages.glob("*.pth")):
        owner = owners.get(path.name)
        for line in _lines(path):
            if finder := _FINDER.match(line):
                modules = _read_mapping(site_packages / f"{finder[1]}.py")
                found.modules |= modules
                found.left_out |= {path.name, f"{finder[1]}.py"}
                _note(found, owner, *modules.values())
            elif line.startswith(("import ", "import\t")):
                continue
            elif os.path.isdir(place := Path(os.path.normpath(site_packages / line))):
                if not place.is_relative_to(prefix):
                    only = None if owner is None else _top_level(names[owner])
                    found.directories[place] = importable = _importable(place, only)
                    if owner is not None and importable == ():
                        raise ConfigError(
                            f"the editable installation of {owner} leads to {place}, where "
                            f"{' or '.join(only) if only else 'a module'} "
                            f"is missing. Install it without -e: python -m pip "
                            f"install PROJECT."
                        )
                found.lines.setdefault(path.name, []).append(line)
                _note(found, owner, place)
            else:
                continue
            if owner is not None:
                served.add(owner)
    for name in sorted(names.keys() - served):
        raise ConfigError(
            f"the editable installation of {name} finds its modules in a way that cannot be "
            f"packed. Install it without -e: python -m pip install PROJECT."
        )
    return found


def _note(found: Elsewhere, owner: str | None, *places: Path) -> None:
    if owner is not None:
        found.editable[owner] = os.path.commonpath([str(place) for place in places])


def _editable_distributions(site_packages: Path) -> dict[str, Distribution]:
    return {
        str(each.metadata["Name"]): each
        for each in distributions(path=[str(site_packages)])
        if _is_editable(each.read_text("direct_url.json"))
    }


def _is_editable(direct_url: str | None) -> bool:
    try:
        url = json.loads(direct_url or "{}")
        return bool(url.get("dir_info", {}).get("editable"))
    except (ValueError, AttributeError):
        return False


def _pth_files(distribution: Distribution) -> list[str]:
    return [str(path) for path in distribution.files or () if path.suffix == ".pth"]


def _top_level(distribution: Distribution) -> tuple[str, ...] | None:
    """Return the names of a distribution's modules, if its metadata has them."""
    return tuple((distribution.read_text("top_level.txt") or "").split()) or None


def _lines(path: Path) -> Iterator[str]:
    for line in path.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.rstrip()


def _importable(place: Path, only: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return which entries of a directory are modules; None for all of them.

    The root of a project holds more than its packages: data, environments, a repository.
    """
    if place.name == _OF_SOURCES:
        return None
    found: list[str] = []
    for entry in place.iterdir():
        if only is None:
            found += _modules_of(entry, depth=_NAMESPACES)
        elif entry.name.partition(".")[0] in only and (_is_module(entry) or os.path.isdir(entry)):
            found.append(entry.name)
    return tuple(sorted(found))


def _modules_of(entry: Path, *, depth: int) -> list[str]:
    """Return the module or package that an entry is, or those of a namespace package, by path.

    Other files of a namespace package are none of its modules: a directory of data may have a
    script in it.
    """
    # Before Python 3.14, methods of a path raise where a directory may not be searched.
    if _is_module(entry) or os.path.exists(entry / "__init__.py"):
        return [entry.name]
    if not depth or not entry.name.isidentifier() or entry.is_symlink() or not os.path.isdir(entry):
        return []
    try:
        children = os.listdir(entry)
    except PermissionError:  # what this user may not read is no package of theirs
        return []
    if not _OF_ENVIRONMENTS.isdisjoint(children):
        return []
    # Only what a module or a package can be called is looked at: there may be much data.
    named = [c for c in children if c.isidentifier() or c.endswith(tuple(all_suffixes()))]
    return [
        f"{entry.name}/{module}"
        for child in named
        for module in _modules_of(entry / child, depth=depth - 1)
    ]


def _is_module(entry: Path) -> bool:
    return entry.name.endswith(tuple(all_suffixes())) and os.path.isfile(entry)


def _read_mapping(finder: Path) -> dict[str, Path]:
    """Return where the modules of a finder of setuptools are, by their path in site-packages."""
    mapping: dict[str, str] = {}
    try:
        for node in ast.parse(finder.read_bytes()).body:
            if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
                continue
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name) and target.id == "MAPPING":
                mapping = dict(ast.literal_eval(node.value))
        return dict(_place(name, path) for name, path in sorted(mapping.items()))
    except (OSError, SyntaxError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{finder} leads to an editable installation, and cannot be read: {error}. Install "
            f"the package without -e."
        ) from error


def _place(name: str, path: str) -> tuple[str, Path]:
    there = name.replace(".", "/")
    if Path(path).is_dir():
        return there, Path(path)
    for suffix in all_suffixes():
        if (file := Path(path).with_suffix(suffix)).is_file():
            return there + suffix, file
    raise ConfigError(
        f"the editable installation of {name} leads to {path}, which is not there. Install it "
        f"again, or remove it."
    )
