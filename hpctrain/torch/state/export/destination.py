"""`making`: a file or a directory that appears under its name once it is complete."""

from __future__ import annotations

import os
import shutil
import stat
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath

from hpctrain.checkpoint_files import MANIFEST_NAME
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.own_files import name_beside
from hpctrain.rundir.files import exchange_directory, fsync_directory
from hpctrain.torch.state.export.staging import remove_dead, staging

_NAMED = 3


@contextmanager
def making(
    target: Path, *, is_file: bool, overwrite: bool, is_ours: Callable[[str], bool]
) -> Iterator[Path]:
    """Give an empty directory beside `target`, which then becomes that. Not collective.

    A file is what has the target's name in that directory. After an error nothing of it is left;
    after a kill, the directory is, under a name that begins with a dot, until the next export to
    the same target.

    Parameters
    ----------
    target
        What is made.
    is_file
        Whether it is a file, and not a directory.
    overwrite
        Whether it may replace an earlier one, which stays until then.
    is_ours
        Whether an earlier directory may have a file of this name: another is not replaced.

    Raises
    ------
    ConfigError
        If it exists and may not be replaced, or cannot be there.
    CheckpointError
        If it cannot be written.
    """
    try:
        check_target(target, is_file=is_file, overwrite=overwrite, is_ours=is_ours)
        remove_dead(target)
        with staging(target) as made:
            yield made
            fsync_directory(made)
            # Somebody may have made it meanwhile.
            check_target(target, is_file=is_file, overwrite=overwrite, is_ours=is_ours)
            _publish(made, target, is_file=is_file)
        fsync_directory(target.parent)
    except OSError as error:
        raise CheckpointError(
            f"{target} could not be written: {error.strerror or error}. Nothing of it was left. "
            f"Look at the space and the permissions of {target.parent}, or export to another "
            f"filesystem."
        ) from error


def check_target(
    target: Path, *, is_file: bool, overwrite: bool, is_ours: Callable[[str], bool]
) -> None:
    """Refuse what cannot be made, or must not be replaced; see `making`. Not collective.

    Raises
    ------
    ConfigError
        If so.
    """
    if not target.parent.is_dir():
        raise ConfigError(
            f"{target} cannot be made: {target.parent} is no directory. Make it first."
        )
    for parent in target.resolve().parents:
        # A run takes what it finds beside its checkpoints for a damaged one.
        if (parent / MANIFEST_NAME).exists() or _has_checkpoints(parent):
            raise ConfigError(
                f"{target} is among the checkpoints of a run, which it keeps itself. Export to a "
                f"path outside of {parent}."
            )
    try:
        mode = os.lstat(target).st_mode
    except FileNotFoundError:
        return
    if not overwrite:
        raise ConfigError(
            f"{target} exists. Give another path; --force (overwrite=True) replaces an earlier "
            f"export."
        )
    if is_file:
        if not stat.S_ISREG(mode):
            raise ConfigError(f"{target} is no regular file, and is not replaced by one.")
        if not _is_of_torch(target):
            raise ConfigError(
                f"{target} is no file that torch.save() writes, so it is not replaced. Give "
                f"another path, or remove it yourself."
            )
        return
    if not stat.S_ISDIR(mode):
        raise ConfigError(f"{target} is no directory, and is not replaced by one.")
    names = [entry.name for entry in target.iterdir()]
    if others := sorted(n for n in names if not (is_ours(n) and _is_readable(target / n))):
        rest = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        raise ConfigError(
            f"{target} has {', '.join(others[:_NAMED])}{rest}, which no export writes, so it is "
            f"not replaced. Give another path, or remove it yourself."
        )


def _is_of_torch(path: Path) -> bool:
    """Return whether a file is an archive as `torch.save` writes it, and not another one."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(PurePath(name).match("*/data.pkl") for name in archive.namelist())
    except zipfile.BadZipFile:
        return False


def _is_readable(path: Path) -> bool:
    """Return whether a file that is called a safetensors file is one."""
    if path.suffix != ".safetensors":
        return True
    with open(path, "rb") as file:
        start = file.read(9)
        size = os.fstat(file.fileno()).st_size
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") <= size - 8


def _has_checkpoints(directory: Path) -> bool:
    return directory.name == "checkpoints" and (directory.parent / "plan.json").is_file()


def _publish(beside: Path, target: Path, *, is_file: bool) -> None:
    if is_file:
        os.replace(beside / target.name, target)
        return
    if not target.exists():
        os.rename(beside, target)
        return
    replaced = name_beside(target)
    exchange_directory(beside, target, aside=replaced)
    shutil.rmtree(replaced, ignore_errors=True)
