"""`EnvironmentPack`: what a job has to know of a packed environment, and how it is read."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hpctrain.errors import ConfigError
from hpctrain.printable import show_controls
from hpctrain.regular_file import open_regular
from hpctrain.writers import name_of_user

FORMAT = 2
"""Version of the layout of a pack; raised when it holds what older ones do not."""
MANIFEST, RELOCATE, DIGEST = "hpctrain-pack.json", "hpctrain-pack.py", "hpctrain-pack.sha256"
FORK_CLIENT = "hpctrain-fork-client.py"
"""What a launcher starts in a rank's place, wherever hpctrain itself is in the archive."""
ENVIRONMENT, BASE, FURTHER = "env", "base", "with"
TAR, SQUASHFS = "tar", "squashfs"
"""Kinds of files: nodes unpack the first, and mount the second."""
TRAILER_BYTES = 4 * tarfile.BLOCKSIZE
"""Header and content of `DIGEST`, and the two empty blocks that end an archive."""
_MOST_MANIFEST_BYTES = 64 * 2**20
# The superblock of squashfs begins with the magic; mksquashfs fills the last page of an image.
_MAGIC, _IMAGE_SIZE, _PAGE_BYTES = b"hsqs", struct.Struct("<40xQ"), 4096
_DIGITS = 64
# OverflowError is of a size that no file has.
_DAMAGES = (
    *(tarfile.TarError, ValueError, KeyError, TypeError, AttributeError, EOFError),
    OverflowError,
)
_BLOCK_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class EnvironmentPack:
    """A Python environment in one file, as ``hpctrain pack`` writes it."""

    path: str
    """The file."""
    size: int
    """Its bytes before the digest."""
    sha256: str
    """Digest of these bytes."""
    unpacked_bytes: int
    """Bytes of the files in it."""
    python: str
    """Version of its interpreter."""
    hpctrain: str
    """Version of hpctrain in it."""
    prefix: str
    """``sys.prefix`` of the environment that was packed."""
    interpreter: str
    """Path of its interpreter, in the archive."""
    starter: str
    """Path in the archive of an interpreter that starts before `relocate` has run."""
    base: str
    """``sys.base_prefix`` if that is packed too; empty if nodes have that interpreter."""
    further: tuple[str, ...]
    """Directories of modules elsewhere that are packed too."""
    module_paths: tuple[str, ...]
    """Directories of modules that its interpreter finds by itself, where they were packed from."""
    form: str = TAR
    """`TAR`; `SQUASHFS` if nodes mount it."""
    directory: str = "$TMPDIR"
    """Where nodes unpack it, with unexpanded variables."""

    @property
    def total_bytes(self) -> int:
        """Size of the file."""
        return self.size + TRAILER_BYTES

    @property
    def options(self) -> tuple[str, ...]:
        """Options of ``hpctrain pack`` with which it was packed, but for the file."""
        words = [word for place in self.further for word in ("--with", place)]
        return (*words, *(() if self.form == TAR else ("--format", self.form)))

    @property
    def name(self) -> str:
        """Name of a copy: packs with other content have another one."""
        return self.sha256[:32]


def read_pack(path: Path) -> tuple[EnvironmentPack, dict[str, Any]]:
    """Return what a pack holds, and its whole manifest.

    Not collective. Two short reads, for a file of any size: the digest is compared on the nodes.

    Raises
    ------
    ConfigError
        If it cannot be read, is cut off, or is not a pack.
    """
    again = "Write it again: hpctrain pack -o FILE --force."
    try:
        with open_regular(path, follow_links=True) as file:
            # Of an image the manifest lies behind it.
            image = image_bytes(file)
            file.seek(image)
            with tarfile.open(fileobj=file) as archive:
                first = archive.next()
                if first is None or first.name != MANIFEST or first.size > _MOST_MANIFEST_BYTES:
                    raise ConfigError(f"{path} is not a packed environment. {again}")
                content = archive.extractfile(first)
                assert content is not None
                manifest = json.loads(content.read())
            size = file.seek(0, 2) - TRAILER_BYTES
            file.seek(max(size, 0))
            digest = _read_trailer(file.read(TRAILER_BYTES))
        if manifest.get("format") != FORMAT:
            raise ConfigError(
                f"{path} has format {show_controls(str(manifest.get('format')))} of packed "
                f"environments, and this version of hpctrain reads {FORMAT}. {again}"
            )
        if digest is None:
            raise ConfigError(f"{path} is cut off: its digest is missing at the end. {again}")
        return _make(path, size, digest, manifest, form=SQUASHFS if image else TAR), manifest
    except ConfigError:
        # It is a ValueError, too.
        raise
    except PermissionError as error:
        raise ConfigError(_explain_closed(path)) from error
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(f"the packed environment {path} cannot be read: {why}.") from error
    except _DAMAGES as error:
        raise ConfigError(f"{path} is not a packed environment, or damaged. {again}") from error


def image_bytes(file: IO[bytes]) -> int:
    """Return the size of the image of squashfs that a file begins with; 0 without one.

    Not collective.
    """
    file.seek(0)
    block = file.read(_IMAGE_SIZE.size)
    if len(block) < _IMAGE_SIZE.size or not block.startswith(_MAGIC):
        return 0
    (used,) = _IMAGE_SIZE.unpack(block)
    return -(-int(used) // _PAGE_BYTES) * _PAGE_BYTES


def digest_of(path: Path, size: int) -> str:
    """Return the digest of the first bytes of a file. Not collective.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    with open_regular(path, follow_links=True) as file:
        return begin_digest(file, size).hexdigest()


def begin_digest(file: IO[bytes], size: int) -> hashlib._Hash:
    """Return what digests a file, after its next bytes. Not collective."""
    digest = hashlib.sha256()
    while size > 0 and (data := file.read(min(size, _BLOCK_BYTES))):
        digest.update(data)
        size -= len(data)
    return digest


def _explain_closed(path: Path) -> str:
    """Return what keeps this user from reading a file: it, or the first directory above."""
    absolute = path.absolute()
    closed, must = absolute, "read"
    for folder in reversed(absolute.parents):
        if not os.access(folder, os.X_OK):
            closed, must = folder, "enter"
            break
    who = name_of_user(os.geteuid())
    try:
        found = os.stat(closed)
    except OSError:
        # Where the server decides, and not the mode.
        return f"the packed environment {path} cannot be read: {who} may not {must} {closed}."
    letter = "r" if must == "read" else "x"
    return (
        f"the packed environment {path} cannot be read: {who} may not {must} {closed}, which "
        f"belongs to {name_of_user(found.st_uid)} and has mode {stat.S_IMODE(found.st_mode):04o}. "
        f"Its owner can change that (chmod a+{letter}), or pack the environment yourself: hpctrain "
        f"pack -o FILE."
    )


def distributions_of(site_packages: Sequence[Path]) -> tuple[str, ...]:
    """Return the names and versions of what is installed, as its metadata is named.

    Not collective. One look at each directory.
    """
    names = {
        entry.name.removesuffix(end)
        for folder in site_packages
        if folder.is_dir()
        for entry in folder.iterdir()
        for end in (".dist-info", ".egg-info")
        if entry.name.endswith(end)
    }
    return tuple(sorted(names))


def _make(
    path: Path, size: int, digest: str, manifest: dict[str, Any], *, form: str
) -> EnvironmentPack:
    texts = {
        name: manifest[name]
        for name in ("python", "hpctrain", "prefix", "interpreter", "starter", "base")
    }
    further, module_paths = tuple(manifest["further"]), tuple(manifest["module_paths"])
    if not all(isinstance(each, str) for each in (*texts.values(), *further, *module_paths)):
        raise ValueError("a field is not a text")
    for name in ("interpreter", "starter"):
        if texts[name].startswith("/") or ".." in Path(texts[name]).parts:
            raise ValueError(f"{name} is outside of the archive")
    return EnvironmentPack(
        path=str(path),
        size=size,
        sha256=digest,
        unpacked_bytes=int(manifest["bytes"]),
        further=further,
        module_paths=module_paths,
        form=form,
        **texts,
    )


def _read_trailer(data: bytes) -> str | None:
    """Return the digest at the end of a pack; None if it is not there."""
    if len(data) != TRAILER_BYTES:
        return None
    try:
        member = tarfile.TarInfo.frombuf(data[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return None
    text = data[tarfile.BLOCKSIZE :][:_DIGITS].decode("ascii", "replace")
    is_whole = member.name == DIGEST and not set(text) - set("0123456789abcdef")
    return text if is_whole else None
