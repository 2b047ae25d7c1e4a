"""Site profiles: the options that a centre expects.

A profile is a TOML file in ``slurm_templates/sites/``, or one of the user's own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

from hpctrain.errors import ConfigError
from hpctrain.plan.resources import NodeShape, Placement
from hpctrain.plan.sbatch_options import check_site_directives, check_srun_args
from hpctrain.slurm_config import GpuRequest, check_setup


@dataclass(frozen=True, kw_only=True)
class Site:
    """The options that a centre expects. The keys of a profile are these fields."""

    name: str = "generic"
    """Name of the profile: that of its file."""
    description: str = ""
    """One line: the machine."""
    grade: str = ""
    """Grade of the sources. A: the centre's own documentation. B: scripts of its staff or of large
    projects. C: scripts of users; verify before relying on it."""
    cpus_per_node: int | None = None
    """CPUs of a node that jobs may use."""
    gpus_per_node: int | None = None
    """GPUs (or GPU dies) of a node."""
    cpus_per_gpu: int | None = None
    """CPUs of a worker for each of its GPUs, where the ScalingConfig does not say ``CPU``."""
    gpu_request: str = "gpus-per-node"
    """How GPUs are requested: gpus-per-node, gpus-per-task, gres or gpus."""
    mpi: str = "auto"
    """The meaning of ``SlurmConfig(mpi="auto")``."""
    requeue: bool = True
    """Whether jobs may be requeued; otherwise a run continues in a successor."""
    account_suffix: str = ""
    """Suffix of every account: ``@a100``."""
    directives: Mapping[str, str] = field(default_factory=dict)
    """Further sbatch options, without dashes; an empty text is a switch."""
    skip_directives: tuple[str, ...] = ()
    """sbatch options that the site rejects."""
    setup: tuple[str, ...] = ()
    """Shell lines of the batch script."""
    srun_args: tuple[str, ...] = ()
    """Further srun options for the workers' step."""
    gpu_srun_args: tuple[str, ...] = ()
    """The same, but only where workers have GPUs."""
    full_node_srun_args: tuple[str, ...] = ()
    """The same, but only where workers have one GPU each and use all of a node: binding masks."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that ranks get."""

    @property
    def node_shape(self) -> NodeShape:
        """Shape of a node."""
        return NodeShape(
            cpus=self.cpus_per_node, gpus=self.gpus_per_node, cpus_per_gpu=self.cpus_per_gpu
        )

    def complete_account(self, account: str) -> str:
        """Return an account with the site's suffix, unless it has one. Not collective."""
        return account if "@" in account else account + self.account_suffix


def known_shape(site: Site, seen: NodeShape) -> NodeShape:
    """Return the shape of a node, from the profile, else from Slurm. Not collective."""
    return NodeShape(
        cpus=seen.cpus if site.cpus_per_node is None else site.cpus_per_node,
        gpus=seen.gpus if site.gpus_per_node is None else site.gpus_per_node,
        mem_mib=seen.mem_mib,
        cpus_per_gpu=site.cpus_per_gpu,
    )


def site_srun_args(site: Site, placement: Placement, *, gpu_request: str) -> tuple[str, ...]:
    """Return the further srun options of a site for the workers' step.

    Not collective.

    Parameters
    ----------
    site
        The profile.
    placement
        How the workers lie on the nodes.
    gpu_request
        ``SlurmConfig(gpu_request=...)``; ``auto`` is the profile's.
    """
    options = list(site.srun_args)
    if placement.gpus_per_task:
        request = site.gpu_request if gpu_request == "auto" else gpu_request
        if request == "gpus-per-task":
            # Also for srun: an allocation made by hand may lack the option.
            options.append(f"--gpus-per-task={placement.gpus_per_task}")
        options += site.gpu_srun_args
        if placement.gpus_per_task == 1 and set(placement.tasks_per_node) == {site.gpus_per_node}:
            options += site.full_node_srun_args
    return tuple(options)


def load_site(name: str | None) -> Site:
    """Return a site profile by its name, or from the path of a TOML file.

    Not collective. None gives an empty profile.

    Raises
    ------
    ConfigError
        If there is no such profile, it is not UTF-8, or has an unknown key.
    """
    if name is None:
        return Site()
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise ConfigError(
                f"SlurmConfig(site={name!r}): there is no such file. Give its full path, or one of "
                f"the names {', '.join(site_names())}."
            )
        return parse_site(path.stem, _read_profile(path), origin=name)
    if name not in site_names():
        raise ConfigError(
            f"SlurmConfig(site={name!r}): known profiles are {', '.join(site_names())}. For "
            f"another site give the path of a .toml file like theirs."
        )
    text = (files("hpctrain.slurm_templates") / "sites" / f"{name}.toml").read_text("utf-8")
    return parse_site(name, text, origin=name)


def _read_profile(path: Path) -> str:
    try:
        # Editors of Windows begin a file with a byte order mark, which TOML does not know.
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"site profile {path} is not UTF-8: byte {error.object[error.start]:#04x} at "
            f"{error.start}. Save it as UTF-8."
        ) from error


def site_names() -> tuple[str, ...]:
    """Return the names of the profiles that ship with hpctrain. Not collective."""
    folder = files("hpctrain.slurm_templates") / "sites"
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".toml")))


def parse_site(name: str, text: str, *, origin: str) -> Site:
    """Return the site profile that a TOML text holds.

    Not collective.

    Parameters
    ----------
    name
        Of the profile.
    text
        Its content.
    origin
        What errors call it.

    Raises
    ------
    ConfigError
        If it is not TOML, or has a key or a value that no profile has.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"site profile {origin} is not TOML: {error}. Strings need quotes, and a [table] ends "
            f"with the next one."
        ) from error
    known = {f.name: f.type for f in fields(Site) if f.name != "name"}
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise ConfigError(
            f"site profile {origin} has the keys {unknown}. A profile has {sorted(known)}; sbatch "
            f"options belong below [directives]."
        )
    values = {key: _checked(origin, key, str(known[key]), value) for key, value in table.items()}
    requests = tuple(request for request in get_args(GpuRequest) if request != "auto")
    if values.get("gpu_request", requests[0]) not in requests:
        raise ConfigError(
            f"site profile {origin}: gpu_request={values['gpu_request']!r}. Use one of "
            f"{', '.join(requests)}."
        )
    check_site_directives(values.get("directives", {}), origin=origin)
    for key in ("srun_args", "gpu_srun_args", "full_node_srun_args"):
        check_srun_args(values.get(key, ()), what=f"site profile {origin}: {key}")
    check_setup(f"site profile {origin}: setup", values.get("setup", ()))
    return Site(name=name, **values)


def _checked(origin: str, key: str, annotation: str, value: Any) -> Any:
    """Return the value of a key of a profile in the type of its field."""
    if annotation.startswith("int"):
        fits = isinstance(value, int) and value is not True and value >= 1
        wanted = "a number of at least 1, or left out"
    elif annotation == "bool":
        fits, wanted = isinstance(value, bool), "true or false"
    elif annotation == "str":
        fits, wanted = isinstance(value, str), "a text"
    elif annotation.startswith("tuple"):
        fits = isinstance(value, list) and all(isinstance(v, str) for v in value)
        wanted = "a list of texts"
        value = tuple(value) if fits else value
    else:
        fits = isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
        wanted = "a table of texts"
    if not fits:
        raise ConfigError(f"site profile {origin}: {key} = {value!r}. It is {wanted}.")
    return value
