"""What the container of a run's ranks mounts, and which modules ranks import inside of it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from hpctrain import environ
from hpctrain.container import Container, can_mount
from hpctrain.errors import ConfigError
from hpctrain.log import log

_PACKAGES = frozenset(["site-packages", "dist-packages", "lib-dynload"])
_STDLIB = re.compile(r"python3[\d.]*t?(\.zip)?")
# The image has its own.
_OF_SYSTEM = frozenset(map(Path, ("/", "/usr", "/usr/local", "/opt", "/etc", "/bin", "/lib")))
_TMP = "/tmp"


def plan_container(
    container: Container | None,
    *,
    launcher: str,
    run_dir: Path,
    resume_from: Path | None = None,
) -> Container | None:
    """Return the container of a run's ranks with all that it mounts; None without one.

    Not collective. Where no job of Slurm starts the ranks it is None too, which is logged.

    Parameters
    ----------
    container
        ``SlurmConfig(container=...)``.
    launcher
        What starts the ranks.
    run_dir
        The run directory. All of its storage path is mounted: that is where runs, and the
        checkpoints of others, are.
    resume_from
        Checkpoint of another run that this one begins with.

    Raises
    ------
    ConfigError
        If no option of a runtime can name a path that has to be mounted.
    """
    if container is None:
        return None
    if launcher not in ("slurm", "allocation"):
        log(
            f"note: SlurmConfig(container=...) is for jobs of Slurm. Ranks start by {launcher!r} "
            f"here, and run in {sys.executable}."
        )
        return None
    _warn_of_absent(container)
    own = [
        str(run_dir.parent),
        environ.working_directory(),
        *([] if resume_from is None else [str(resume_from)]),
        *(path for path in map(_absolute, sys.path) if _is_of_user(path)),
        *(_environment_outside() if container.python == sys.executable else ()),
    ]
    return replace(container, mounts=(*_without_nested(own, container.mounts), *container.mounts))


def ranks_path(paths: Sequence[str], container: Container | None) -> tuple[str, ...]:
    """Return the module path for ranks: inside a container its interpreter has its own packages.

    Not collective.

    Parameters
    ----------
    paths
        ``sys.path`` of the process that asks for them.
    """
    if container is None:
        return tuple(paths)
    return tuple(path for path in paths if not is_of_interpreter(path))


def is_of_interpreter(path: str) -> bool:
    """Return whether a directory of modules is that of an interpreter, not the user's own.

    Pure; not collective.

    Examples
    --------
    >>> is_of_interpreter("/env/lib/python3.11/site-packages"), is_of_interpreter("/home/me/work")
    (True, False)
    """
    place = Path(path)
    return bool(_PACKAGES.intersection(place.parts) or _STDLIB.fullmatch(place.name))


def _absolute(path: str) -> str:
    return str(Path(path).absolute())


def _is_of_user(path: str) -> bool:
    # A command of an environment has its bin directory there.
    is_own = is_of_interpreter(path) or Path(path) == Path(sys.executable).parent
    return not is_own and os.path.exists(path)


def _environment_outside() -> Iterable[str]:
    """Return where the interpreter outside has its files."""
    # An editable installation of hpctrain is elsewhere.
    package = str(Path(__file__).parents[2])
    places = dict.fromkeys((sys.prefix, sys.base_prefix, sys.base_exec_prefix, package))
    return [place for place in places if Path(place) not in _OF_SYSTEM]


def _without_nested(paths: Iterable[str], given: Sequence[str]) -> list[str]:
    """Return the mounts of directories at their own paths, but those within other ones.

    A link and what it leads to are both mounted: programs see either name.
    """
    wanted = dict.fromkeys(each for path in paths for each in (path, os.path.realpath(path)))
    there = {mount.split(":")[1] for mount in given}
    places = [_TMP, *(path for path in wanted if Path(path) not in _OF_SYSTEM)]
    for path in places:
        if not can_mount(path):
            raise ConfigError(
                f"SlurmConfig(container=...) has to mount {path!r}, and no option of a container "
                f"runtime can name a path with ':' or ','. Choose another "
                f"RunConfig(storage_path=...), or another directory for the script."
            )
    return [
        f"{path}:{path}"
        for path in dict.fromkeys(places)
        if path not in there and not any(_is_below(path, other) for other in places)
    ]


def _is_below(path: str, other: str) -> bool:
    return path != other and Path(other) in Path(path).parents


def _warn_of_absent(container: Container) -> None:
    """Log what this machine does not have of it; nodes may have disks of their own."""
    from hpctrain.plan.container import image_path

    image = image_path(container)
    sources = [mount.split(":")[0] for mount in container.mounts]
    for what, path in [("image", image), *(("mounts", source) for source in sources)]:
        if path is not None and not os.path.exists(path):
            log(
                f"warning: Container({what}=...): this machine has no {path}. Unless compute nodes "
                f"have it, the ranks cannot start."
            )
