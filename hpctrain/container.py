"""`Container`: the image that ranks run in. No I/O, no environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal

from hpctrain.checks import check_type, show_changes
from hpctrain.errors import ConfigError
from hpctrain.rules import checked, choice, line, path, several, with_value

ContainerRuntime = Literal["apptainer", "singularity", "pyxis", "shifter", "podman-hpc"]

RUNTIMES = ("apptainer", "singularity", "pyxis", "shifter", "podman-hpc")
"""The container runtimes that ranks can start in."""

# What separates mounts, and the parts of a mount, in the options of every runtime.
_SEPARATORS = (":", ",")
_MODES = ("ro", "rw")


def _image(what: str, value: Any) -> str:
    check_type(what, value, str, PathLike)
    name = path(what, value) if isinstance(value, PathLike) else value
    image: str = line(otherwise="the image as its runtime knows it")(what, name)
    if image.startswith(("-", "~", "$")):
        raise ConfigError(
            f"{with_value(what, value)}: no shell reads it. Give the whole path of the image, or "
            f"its name in a registry."
        )
    return image


def _mount(what: str, value: Any) -> str:
    mount: str = path(what, value)
    parts = mount.split(":")
    mode = parts.pop() if len(parts) > 1 and parts[-1] in _MODES else ""
    is_whole = len(parts) in (1, 2) and all(part.startswith("/") for part in parts)
    if not is_whole or "," in mount or not mount.isprintable():
        raise ConfigError(
            f"{with_value(what, value)}: a mount is '/path', '/path:/path/inside' or "
            f"'/path:/path/inside:ro', of whole paths without commas. No shell expands them."
        )
    # Runtimes differ in what they make of '/path:ro', and each writes without a mode.
    source, target = (*parts, *parts)[:2]
    return f"{source}:{target}" + (":ro" if mode == "ro" else "")


def _option(what: str, value: Any) -> str:
    option: str = line(otherwise="one word of the command line")(what, value)
    return option


@checked(
    image=_image,
    runtime=choice(*RUNTIMES),
    python=line(otherwise="the interpreter inside the image"),
    mounts=several(_mount, of="mounts"),
    options=several(_option, of="words of its command line"),
)
@dataclass(frozen=True, kw_only=True)
class Container:
    """The container that the ranks of Slurm's jobs run in.

    The executor, and the agent of each node, stay outside: they call Slurm's commands. The run
    directory, the working directory, the script's modules and ``/tmp`` are mounted, each at its own
    path.
    """

    image: str
    """Image: the path of a file or directory, or a name that the runtime knows, such as
    ``"docker://..."``."""
    runtime: ContainerRuntime = "apptainer"
    """``apptainer``, ``singularity``, ``pyxis`` (Enroot, by options of srun), ``shifter`` or
    ``podman-hpc``."""
    python: str = "python3"
    """Interpreter inside the image. It needs the same ``hpctrain`` as the one outside, mpi4py and
    an MPI library, and Python of the same minor version. With the path of the interpreter outside
    (``sys.executable``) its environment is mounted."""
    mounts: Sequence[str] = ()
    """Further directories and files to mount: ``"/data"``, ``"/data:/inside"``,
    ``"/data:/data:ro"``."""
    options: Sequence[str] = ()
    """Further options of the runtime, each as one word of a command line. Of ``pyxis``: options of
    srun."""

    def __post_init__(self) -> None:
        """Check the fields against each other."""
        sources: dict[str, str] = {}
        for mount in self.mounts:
            source, target, *mode = mount.split(":")
            if sources.setdefault(target, mount) != mount:
                raise ConfigError(
                    f"Container(mounts=[...]): {sources[target]!r} and {mount!r} have one place "
                    f"inside. Leave one of them out, or give it another place."
                )
            if self.runtime == "shifter" and source == target and mode:
                raise ConfigError(
                    f"Container(runtime='shifter', mounts=[{mount!r}]): Shifter has it inside "
                    f"already, as its site allows, and cannot make it read-only there. Leave ':ro' "
                    f"out, or give it another place inside."
                )

    __repr__ = show_changes


def can_mount(path: str) -> bool:
    """Return whether options of the runtimes can name a path. Pure; not collective.

    Examples
    --------
    >>> can_mount("/data/a b"), can_mount("/data/12:30")
    (True, False)
    """
    return path.isprintable() and not any(mark in path for mark in _SEPARATORS)
