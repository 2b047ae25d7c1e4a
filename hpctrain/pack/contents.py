"""What belongs in a packed environment: the files, and under which names."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from hpctrain.errors import ConfigError
from hpctrain.pack.editable import Elsewhere, find_elsewhere
from hpctrain.pack.header import BASE, ENVIRONMENT, FURTHER
from hpctrain.pack.walk import Member, Walk, unreadable

OF_NODES = Path("/usr")
"""Where the interpreter of an operating system is: each node has its own."""
_NO_ENVIRONMENTS = (OF_NODES, Path("/usr/local"), Path("/"))
_SYSTEM_PACKAGES = re.compile(r"^include-system-site-packages\s*=\s*true\s*$", re.I | re.M)
_IS_LINKED = re.compile(r"\.so(\.[\d.]+)?$|^base/bin/python")
_FURTHER_PATHS = "hpctrain-pack.pth"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The Python environment of this process, and what of elsewhere belongs to it."""

    prefix: Path
    """``sys.prefix``."""
    interpreter: Path
    """``sys.executable``."""
    base: Path | None
    """``sys.base_prefix`` if it is packed too."""
    node_python: Path | None
    """The interpreter that every node needs, if it is not packed."""
    has_system_packages: bool
    """Whether packages of `base` are seen."""
    site_packages: tuple[Path, ...]
    """Its directories of packages; the last one has those of pure Python, and ``.pth`` files."""
    elsewhere: Elsewhere
    """What its packages lead to."""
    further: tuple[Path, ...]
    """Further directories of modules."""

    def starter(self) -> str:
        """Return the path in the archive of an interpreter that needs no configuration."""
        if self.base is None:
            return self.in_archive(self.interpreter)
        program = self.interpreter.resolve()
        if program.parent != (self.base / "bin").resolve():
            # A venv with a copy of it.
            return f"{BASE}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
        return f"{BASE}/bin/{program.name}"

    def in_archive(self, path: Path) -> str:
        """Return the path in the archive of a file below `prefix`."""
        return f"{ENVIRONMENT}/{path.relative_to(self.prefix)}"


def find_environment(further: Sequence[Path]) -> Environment:
    """Return the environment of this process.

    Not collective.

    Parameters
    ----------
    further
        Further directories of modules.

    Raises
    ------
    ConfigError
        If it is none that can be packed.
    """
    # An interpreter that is started as ../env/bin/python keeps the dots.
    prefix, base, interpreter = (
        Path(os.path.abspath(path)) for path in (sys.prefix, sys.base_prefix, sys.executable)
    )
    if prefix in _NO_ENVIRONMENTS:
        raise ConfigError(
            f"{interpreter} is the Python of this machine, not an environment. Make one with "
            f"python3 -m venv DIR or conda, install your packages there, and run its hpctrain."
        )
    if not interpreter.is_relative_to(prefix):
        raise ConfigError(
            f"sys.executable is {interpreter}, which is not in the environment {prefix}. Start the "
            f"interpreter of the environment by its own path, without PYTHONHOME."
        )
    configuration = prefix / "pyvenv.cfg"
    sees_base = configuration.exists() and bool(
        _SYSTEM_PACKAGES.search(configuration.read_text(encoding="utf-8", errors="replace"))
    )
    is_of_nodes = base == OF_NODES
    places = [Path(os.path.abspath(sysconfig.get_path(kind))) for kind in ("purelib", "platlib")]
    # lib64 may be a link to lib.
    folders = list({place.resolve(): place for place in reversed(places)}.values())
    return Environment(
        prefix=prefix,
        interpreter=interpreter,
        base=None if is_of_nodes or base == prefix else base,
        node_python=interpreter.resolve() if is_of_nodes else None,
        has_system_packages=sees_base,
        site_packages=tuple(folders),
        elsewhere=find_elsewhere(folders[-1], prefix=prefix),
        further=_check_further(further, prefix=prefix),
    )


def _check_further(further: Sequence[Path], *, prefix: Path) -> tuple[Path, ...]:
    found = tuple(dict.fromkeys(Path(os.path.abspath(place)) for place in further))
    for place in found:
        if not place.is_dir():
            raise ConfigError(f"--with {place}: it is not a directory. Name one of modules.")
        if prefix.is_relative_to(place) or place.is_relative_to(prefix):
            raise ConfigError(
                f"--with {place}: the environment {prefix} is packed anyway, and one of them "
                f"contains the other. Name a directory of modules alone."
            )
    return found


def check_own_package(environment: Environment) -> None:
    """Refuse an environment without the hpctrain that packs it. Not collective.

    Raises
    ------
    ConfigError
        If agents and ranks would not find it there.
    """
    own = Path(__file__).parents[1].resolve()
    modules = [path.resolve() for path in environment.elsewhere.modules.values()]
    places = [environment.prefix, *environment.elsewhere.directories, *environment.further]
    if own in modules or any(own.is_relative_to(place.resolve()) for place in places):
        return
    raise ConfigError(
        f"hpctrain itself is imported from {own}, which is not in the environment "
        f"{environment.prefix}. Install it there (python -m pip install hpctrain), unset "
        f"PYTHONPATH, or add --with {own.parent}."
    )


def uncompiled(environment: Environment) -> list[str]:
    """Return the paths in the archive whose modules are not compiled. Pure."""
    there = environment.in_archive(environment.site_packages[-1])
    modules = [f"{there}/{name}" for name in sorted(environment.elsewhere.modules)]
    is_further = bool(environment.elsewhere.directories or environment.further)
    return [*modules, *([FURTHER] if is_further else [])]


def list_members(environment: Environment) -> Iterator[Member]:
    """Yield what belongs in the archive, always in the same order.

    Not collective. Directories come before what is in them.

    Raises
    ------
    ConfigError
        If something cannot be read.
    """
    walk = _walk(environment)
    folder = environment.site_packages[-1]
    dropped = {folder / name for name in environment.elsewhere.left_out}
    replaced = _path_files(environment, _names(environment))
    yield from walk.tree(environment.prefix, ENVIRONMENT, without={*dropped, *replaced})
    for path, content in sorted(replaced.items()):
        yield Member(name=environment.in_archive(path), content=content)
    if environment.base is not None:
        yield from _base_members(walk, environment)
    yield from _list_editable(environment, walk)


def digest_editable(environment: Environment) -> str:
    """Return the digest of the modules that may be edited; empty if there are none.

    Not collective. They are those of editable installations, and of `Environment.further`: they may
    change without another version of anything.

    Raises
    ------
    ConfigError
        If something cannot be read.
    """
    digest, is_empty = hashlib.sha256(), True
    for member in _list_editable(environment, _walk(environment)):
        is_empty = False
        content = member.content or b""
        if member.source is not None and member.source.is_file():
            try:
                content = member.source.read_bytes()
            except OSError as error:
                raise unreadable(member.source, error) from error
        words = (os.fsencode(member.name), os.fsencode(member.target or ""), content)
        digest.update(b"".join(len(word).to_bytes(8, "big") + word for word in words))
    return "" if is_empty else digest.hexdigest()


def _walk(environment: Environment) -> Walk:
    packed = {environment.prefix: ENVIRONMENT}
    if environment.base is not None:
        packed[environment.base] = BASE
    return Walk(packed)


def _names(environment: Environment) -> dict[Path, str]:
    """Return the names in the archive of directories of modules outside the environment."""
    further = dict.fromkeys([*environment.elsewhere.directories, *environment.further])
    # site reads its lines from a directory of packages, to which they may be relative.
    return {place: f"{FURTHER}/{number}" for number, place in enumerate(further)}


def _list_editable(environment: Environment, walk: Walk) -> Iterator[Member]:
    elsewhere = environment.elsewhere
    there = environment.in_archive(environment.site_packages[-1])
    for name, path in sorted(elsewhere.modules.items()):
        yield from walk.tree(path, f"{there}/{name}", has_compiled=False)
    for place, name in _names(environment).items():
        only = elsewhere.directories.get(place)
        if only is None or place in environment.further:
            yield from walk.tree(place, name, has_compiled=False)
        else:
            yield Member(name=name, source=place)
            parents = {parent for entry in only for parent in PurePath(entry).parents[:-1]}
            for parent in sorted(parents):
                yield Member(name=f"{name}/{parent}", source=place / parent)
            for entry in only:
                yield from walk.tree(place / entry, f"{name}/{entry}", has_compiled=False)


def _path_files(environment: Environment, names: dict[Path, str]) -> dict[Path, bytes]:
    """Return the ``.pth`` files whose lines lead to other places in the archive."""
    folder = environment.site_packages[-1]
    there = environment.in_archive(folder)

    def moved(place: Path) -> str:
        return os.path.relpath(names.get(place) or environment.in_archive(place), there)

    files = {}
    for file, lines in environment.elsewhere.lines.items():
        path = folder / file
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
        for line in lines:
            place = moved(Path(os.path.normpath(folder / line))).replace("\\", r"\\")
            text = re.sub(rf"(?m)^{re.escape(line)}[ \t]*$", place, text)
        files[path] = text.encode(errors="surrogateescape")
    if environment.further:
        listed = "".join(f"{moved(place)}\n" for place in environment.further)
        files[folder / _FURTHER_PATHS] = listed.encode(errors="surrogateescape")
    return files


def _base_members(walk: Walk, environment: Environment) -> Iterator[Member]:
    """Yield the interpreter of a venv and its standard library, with paths relative to them."""
    for member in _members_of_base(walk, environment):
        if member.source is None or not _IS_LINKED.search(member.name):
            yield member
            continue
        # A Python that was configured with --enable-shared has its whole path in every file.
        relative = os.path.relpath(f"{BASE}/lib", os.path.dirname(member.name))
        old, new = os.fsencode(f"{environment.base}/lib"), f"$ORIGIN/{relative}".encode()
        yield replace(member, library_path=(old, new) if len(new) <= len(old) else None)


def _members_of_base(walk: Walk, environment: Environment) -> Iterator[Member]:
    base = environment.base
    assert base is not None
    yield Member(name=BASE, source=base)
    yield Member(name=f"{BASE}/bin", source=base / "bin")
    for path in sorted((base / "bin").glob("python*")):
        yield from walk.tree(path, f"{BASE}/bin/{path.name}")
    libraries = "lib*.so*" if (base / "conda-meta").is_dir() else "libpython*.so*"
    standard = sorted({Path(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib")})
    standard = [Path(os.path.abspath(path)) for path in standard]
    for folder in sorted({base / "lib", *(path.parent for path in standard)}):
        if not folder.is_dir() or folder.is_symlink() or not folder.is_relative_to(base):
            continue
        yield Member(name=f"{BASE}/{folder.relative_to(base)}", source=folder)
        for path in sorted(folder.glob(libraries)):
            yield from walk.tree(path, f"{BASE}/{path.relative_to(base)}")
    for path in standard:
        if path.is_relative_to(base):
            # To import modules no node needs the tests, and what programs are linked with.
            left_out = {path / "test", *path.glob("config-*/*.a")}
            if not environment.has_system_packages:
                left_out.add(path / "site-packages")
            yield from walk.tree(path, f"{BASE}/{path.relative_to(base)}", without=left_out)
