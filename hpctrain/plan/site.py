"""Site profiles: what a centre wants to be said, and how.

A profile is a TOML file in ``slurm_templates/sites/``, or one of the user's own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from hpctrain.errors import ConfigError
from hpctrain.plan.resources import NodeShape


@dataclass(frozen=True, kw_only=True)
class Site:
    """What a centre wants to be said, and how."""

    name: str = "generic"
    """Name of the profile."""
    description: str = ""
    """One line: the machine, and where these facts are from."""
    cpus_per_node: int | None = None
    """CPUs of a node that jobs may use."""
    gpus_per_node: int | None = None
    """GPUs (or GPU dies) of a node."""
    gpu_request: str = "gpus-per-node"
    """How GPUs are asked for: gpus-per-node, gpus-per-task, gres or gpus."""
    mpi: str = "auto"
    """What ``SlurmConfig(mpi="auto")`` means here."""
    directives: Mapping[str, str] = field(default_factory=dict)
    """Further sbatch options, without dashes."""
    skip_directives: tuple[str, ...] = ()
    """sbatch options that the site rejects."""
    setup: tuple[str, ...] = ()
    """Shell lines of the batch script."""
    srun_args: tuple[str, ...] = ()
    """Further srun options for the workers' step."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that ranks get."""

    @property
    def node_shape(self) -> NodeShape:
        """Shape of a node."""
        return NodeShape(cpus=self.cpus_per_node, gpus=self.gpus_per_node)


def load_site(name: str | None) -> Site:
    """Return a site profile by its name, or from the path of a TOML file.

    Not collective. None is a profile that knows nothing.

    Raises
    ------
    ConfigError
        If there is no such profile, or it holds what a profile does not have.
    """
    if name is None:
        return Site()
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise ConfigError(f"SlurmConfig(site={name!r}): there is no such file.")
        return _parse_site(path.stem, path.read_text(encoding="utf-8"), origin=name)
    if name not in site_names():
        raise ConfigError(
            f"SlurmConfig(site={name!r}): known profiles are {', '.join(site_names())}. For "
            f"another site give the path of a .toml file like theirs."
        )
    text = (files("hpctrain.slurm_templates") / "sites" / f"{name}.toml").read_text("utf-8")
    return _parse_site(name, text, origin=name)


def site_names() -> tuple[str, ...]:
    """Return the names of the profiles that ship with hpctrain. Not collective."""
    folder = files("hpctrain.slurm_templates") / "sites"
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".toml")))


def _parse_site(name: str, text: str, *, origin: str) -> Site:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"site profile {origin}: not TOML: {error}") from error
    known = {f.name for f in fields(Site)} - {"name"}
    unknown = sorted(set(table) - known)
    if unknown:
        raise ConfigError(
            f"site profile {origin} has the keys {unknown}. A profile has {sorted(known)}."
        )
    for key, value in table.items():
        if isinstance(value, list):
            table[key] = tuple(value)
    return Site(name=name, **table)
