"""The packed environment that the ranks of a run start in."""

from __future__ import annotations

import os
import shlex
import stat
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain import environ
from hpctrain.errors import ConfigError
from hpctrain.log import log
from hpctrain.rundir.trust import check_owner
from hpctrain.slurm_config import SlurmConfig
from hpctrain.version import __version__

if TYPE_CHECKING:
    from hpctrain.pack.header import EnvironmentPack

_NAMED = 4


def plan_environment_pack(slurm: SlurmConfig, *, launcher: str) -> EnvironmentPack | None:
    """Return the packed environment of a run's ranks; None without one.

    Not collective. Where no job of Slurm starts the ranks it is None too, which is logged.

    Parameters
    ----------
    slurm
        The settings that name it.
    launcher
        What starts the ranks.

    Raises
    ------
    ConfigError
        If it is not one, or not one of the environment of this process.
    """
    if slurm.environment_pack is None:
        return None
    if launcher not in ("slurm", "allocation"):
        log(
            f"note: SlurmConfig(environment_pack=...) is for jobs of Slurm. Ranks start by "
            f"{launcher!r} here, and run in {sys.executable}."
        )
        return None
    import platform

    from hpctrain.pack.header import distributions_of, read_pack

    path = Path(environ.working_directory(), Path(slurm.environment_pack).expanduser())
    pack, manifest = read_pack(path)
    _refuse_foreign(path)
    command = shlex.join(["hpctrain", "pack", "-o", str(path), *pack.options, "--force"])
    again = f"Pack it again with its hpctrain: {command}"
    if pack.prefix != os.path.abspath(sys.prefix):
        raise ConfigError(
            f"{path} was packed from {pack.prefix}, and this script runs in {sys.prefix}. Start it "
            f"with the Python there, or name a pack of this environment."
        )
    for what, packed, here in (
        ("Python", pack.python, platform.python_version()),
        ("hpctrain", pack.hpctrain, __version__),
        ("programs of", manifest.get("platform"), sysconfig.get_platform()),
    ):
        if packed != here:
            raise ConfigError(f"{path} has {what} {packed}, and this script {here}. {again}")
    then = set(manifest.get("distributions", ()))
    now = set(distributions_of([Path(folder) for folder in manifest.get("site_packages", ())]))
    if changed := sorted(then ^ now):
        named = [f"{'now' if name in now else 'then'} {name}" for name in changed[:_NAMED]]
        rest = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
        raise ConfigError(
            f"{sys.prefix} has changed since it was packed in {path}: {', '.join(named)}{rest}. "
            f"{again}"
        )
    if digest := manifest.get("editable_sha256"):
        _refuse_edits(pack, str(digest), again=again)
    return replace(pack, directory=slurm.environment_pack_dir)


def _refuse_foreign(path: Path) -> None:
    """Refuse a pack that another user can have written, but for the owner of the environment."""
    found = os.stat(path)
    runs_anyway = found.st_uid == os.stat(sys.prefix).st_uid
    if not (runs_anyway and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        instead = "another SlurmConfig(environment_pack=...)"
        check_owner(found, path, what="packed environment", instead=instead)


def _refuse_edits(pack: EnvironmentPack, digest: str, *, again: str) -> None:
    """Refuse a pack whose modules were edited since, which no version shows."""
    from hpctrain.pack.contents import digest_editable, find_environment

    environment = find_environment([Path(place) for place in pack.further])
    if digest_editable(environment) == digest:
        return
    elsewhere = environment.elsewhere
    places = dict.fromkeys([*elsewhere.editable.values(), *map(str, environment.further)])
    raise ConfigError(
        f"modules in {' or '.join(places) or sys.prefix} have changed since they were packed in "
        f"{pack.path}. {again}"
    )


def ranks_path_with_pack(paths: tuple[str, ...], pack: EnvironmentPack | None) -> tuple[str, ...]:
    """Return the module path for ranks: what is packed, their interpreter finds by itself.

    Pure; not collective.

    Parameters
    ----------
    paths
        ``sys.path`` of the process that asks for them.
    """
    if pack is None:
        return paths
    from hpctrain.plan.environment_pack import is_packed

    return tuple(path for path in paths if not is_packed(path, pack))
