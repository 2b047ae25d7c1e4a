"""`write_pack`: the environment of this process as one file."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpctrain.errors import ConfigError, HpctrainError
from hpctrain.own_files import create_file, name_beside
from hpctrain.pack import relocate
from hpctrain.pack.archive import Archive
from hpctrain.pack.contents import (
    Environment,
    check_own_package,
    digest_editable,
    find_environment,
    list_members,
    uncompiled,
)
from hpctrain.pack.header import (
    FORK_CLIENT,
    FORMAT,
    MANIFEST,
    RELOCATE,
    SQUASHFS,
    TAR,
    EnvironmentPack,
    begin_digest,
    digest_of,
    distributions_of,
    image_bytes,
    read_pack,
)
from hpctrain.pack.squashfs import check_program, compile_members, write_image
from hpctrain.pack.walk import Member, unreadable
from hpctrain.version import __version__

_FORK_CLIENT = Path(__file__).parents[1] / "worker/fork_client.py"


@dataclass(frozen=True, kw_only=True)
class Packed:
    """What `write_pack` has written."""

    pack: EnvironmentPack
    num_files: int
    """Number of files in it."""
    editable: dict[str, str]
    """Editable installations, which are regular ones in it, and where their modules are."""
    node_python: str | None
    """The interpreter that every node needs, as it is not packed."""


def write_pack(
    path: Path, *, further: Sequence[Path] = (), overwrite: bool = False, form: str = TAR
) -> Packed:
    """Write the environment of this process into one file.

    Not collective. An unchanged environment gives the same bytes. The file is read again before it
    appears under its name.

    Parameters
    ----------
    path
        The file.
    further
        Further directories of modules.
    overwrite
        Whether an existing file is replaced.
    form
        `TAR` or `SQUASHFS`.

    Raises
    ------
    ConfigError
        If the environment cannot be packed, or the file exists.
    HpctrainError
        If what was written is not what is read again.
    OSError
        If it cannot be written.
    """
    path = Path(os.path.abspath(path))
    if form == SQUASHFS:
        check_program()
    environment = find_environment(further)
    check_own_package(environment)
    _check_target(path, environment, overwrite=overwrite)
    # A module that is imported from now on must not change what is packed.
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    beside = name_beside(path)
    try:
        num_files = _write(beside, environment, form=form)
        pack, _ = read_pack(beside)
        if digest_of(beside, pack.size) != pack.sha256:
            raise HpctrainError(
                f"{path}: what was read again is not what was written. Look at its disk."
            )
        if overwrite:
            os.replace(beside, path)
        else:
            _link(beside, path)
    except OSError as error:
        if error.filename in (None, str(beside)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        sys.dont_write_bytecode = writes
        with suppress(OSError):
            beside.unlink()
    python = environment.node_python
    return Packed(
        pack=read_pack(path)[0],
        num_files=num_files,
        editable=dict(environment.elsewhere.editable),
        node_python=None if python is None else str(python),
    )


def _check_target(path: Path, environment: Environment, *, overwrite: bool) -> None:
    if path.is_dir():
        raise ConfigError(f"{path} is a directory. Name a file: -o {path}/environment.tar.")
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent} is not a directory. Make it, or choose another -o FILE.")
    for place in (environment.prefix, *environment.further):
        if path.parent.resolve().is_relative_to(place.resolve()):
            raise ConfigError(
                f"{path} is in {place}, which is packed: it would contain itself. Choose a FILE "
                f"elsewhere."
            )
    if os.path.lexists(path) and not overwrite:
        raise _exists(path)


def _exists(path: Path) -> ConfigError:
    return ConfigError(f"{path} exists. Choose another -o FILE, or replace it with --force.")


def _link(beside: Path, path: Path) -> None:
    try:
        os.link(beside, path)
    except FileExistsError:
        raise _exists(path) from None
    except OSError:
        # Some filesystems have no hard links.
        if os.path.lexists(path):
            raise _exists(path) from None
        os.replace(beside, path)


def _write(path: Path, environment: Environment, *, form: str) -> int:
    """Write the file; return the number of those in it."""
    members = list(list_members(environment))
    sizes = [_size(member) for member in members]
    places = uncompiled(environment)
    manifest = {
        "format": FORMAT,
        "hpctrain": __version__,
        "python": platform.python_version(),
        "platform": sysconfig.get_platform(),
        "prefix": str(environment.prefix),
        "base": "" if environment.base is None else str(environment.base),
        "interpreter": environment.in_archive(environment.interpreter),
        "starter": environment.starter(),
        "compile": places if form == TAR else [],
        "module_paths": _module_paths(environment),
        "further": [str(place) for place in environment.further],
        "editable_sha256": digest_editable(environment),
        "distributions": distributions_of(environment.site_packages),
        "site_packages": [str(folder) for folder in environment.site_packages],
        "bytes": sum(sizes),
    }
    own = [
        Member(name=MANIFEST, content=json.dumps(manifest, indent=1, sort_keys=True).encode()),
        Member(name=RELOCATE, content=Path(relocate.__file__).read_bytes()),
        Member(name=FORK_CLIENT, content=_FORK_CLIENT.read_bytes()),
    ]
    if form == SQUASHFS:
        members = [*compile_members(members, places)]
    return write_members(path, [*own, *members], form=form)


def write_members(path: Path, members: Sequence[Member], *, form: str) -> int:
    """Write what is packed, the manifest first; return the number of files.

    Not collective.

    Raises
    ------
    ConfigError
        If a member cannot be read.
    HpctrainError
        If no image can be made of them.
    OSError
        If the file exists, or cannot be written.
    """
    with open(create_file(path, os.O_RDWR), "r+b") as file:
        if form == TAR:
            archive = Archive(file)
            for member in members:
                archive.add(member)
            num_files = archive.num_files
        else:
            num_files = write_image(path, members)
            image = image_bytes(file)
            file.seek(0)
            archive = Archive(file, digest=begin_digest(file, image))
            # Who only asks what it is does not mount it.
            archive.add(members[0])
        archive.end()
        file.flush()
        os.fsync(file.fileno())
    return num_files


def _module_paths(environment: Environment) -> list[str]:
    """Return where the interpreter looks for modules by itself, as far as that is packed."""
    code = "import sys; print(*(path for path in sys.path if path), sep='\\0', end='')"
    done = subprocess.run(
        [str(environment.interpreter), "-I", "-B", "-c", code], capture_output=True, check=False
    )
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip() or f"it ended with {done.returncode}"
        raise ConfigError(f"{environment.interpreter} does not start: {said}")
    found = [os.fsdecode(path) for path in done.stdout.split(b"\0")]
    packed = [environment.prefix, environment.base, *environment.elsewhere.directories]
    own = [
        path for path in found if any(each and Path(path).is_relative_to(each) for each in packed)
    ]
    return [*own, *map(str, environment.further)]


def _size(member: Member) -> int:
    if member.source is None:
        return len(member.content or b"")
    try:
        return member.source.stat().st_size
    except OSError as error:
        raise unreadable(member.source, error) from error
