"""The command lines that start a process inside a container. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hpctrain.container import Container

GpuVendor = Literal["", "nvidia", "amd", "unknown"]

# podman starts with an empty environment; "*" is its own pattern.
_PASSED = tuple(
    f"{begin}*"
    for begin in (
        *("SLURM", "HPCTRAIN_", "PMI", "MPI", "OMPI_", "PRTE_", "MV2_", "HYDRA_", "HYDI_", "PALS_"),
        *("HWLOC_", "FI_", "UCX_", "CUDA", "NVIDIA_", "NCCL_", "GLOO_", "ROCR_", "HIP_", "RCCL_"),
        *("OMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "TF_", "TORCH_"),
    )
)
# Libraries read them when they are loaded: those of the image would win with Pyxis otherwise.
_OURS = (
    "HWLOC_XMLFILE",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)
# What only the node knows: where Slurm's PMIx server has its files, and the job's own temporary
# directory. The shell replaces itself with the runtime, so signals and the end are the runtime's.
_WITH_PLACES_OF_NODE = (
    "program=$0 verb=$1 option=$2; shift 2; "
    'for place in "$PMIX_SERVER_TMPDIR" "$TMPDIR"; do case $place in *[:,]*) ;; *) '
    'test ! -d "$place" || set -- "$option" "$place:$place" "$@" ;; esac; done; '
    'exec "$program" "$verb" "$@"'
)
_OF_VENDOR = {"": [], "nvidia": ["--nv"], "amd": ["--rocm"], "unknown": ["--NV_OR_ROCM"]}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """How a process starts inside a container."""

    srun_options: tuple[str, ...] = ()
    """Options of the srun that starts it."""
    argv: tuple[str, ...]
    """The command that srun or mpiexec starts."""


@dataclass(frozen=True, kw_only=True)
class _Call:
    """What a runtime is called with."""

    container: Container
    command: tuple[str, ...]
    cwd: str
    gpus: GpuVendor
    variables: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """A container runtime."""

    program: str
    """The program that has to be on the ``PATH`` of a compute node; empty for options of srun."""
    needs: str
    """What a site has, in words."""
    enter: Callable[[_Call], Entry]
    schemes: tuple[str, ...] = ()
    """Prefixes of images that are no paths."""
    images_are_paths: bool = True
    """Whether an image without one is a path, even if it does not begin with a slash."""


def _start(program: str, verb: str, option: str) -> list[str]:
    """Return the beginning of a command that mounts places of its node too."""
    return ["sh", "-c", _WITH_PLACES_OF_NODE, program, verb, option]


def _apptainer(program: str) -> Callable[[_Call], Entry]:
    def enter(call: _Call) -> Entry:
        container = call.container
        options = container.options
        # The user knows better.
        chosen = {"--nv", "--nvccli", "--rocm"}.intersection(options)
        mounts = [word for mount in container.mounts for word in ("--bind", mount)]
        words = [
            *_start(program, "exec", "--bind"),
            *([] if chosen else _OF_VENDOR[call.gpus]),
            # --cwd is newer; both have this one.
            "--pwd",
            call.cwd,
            *mounts,
            *options,
            container.image,
        ]
        return Entry(argv=(*words, *call.command))

    return enter


def _shifter(call: _Call) -> Entry:
    container = call.container
    words = [
        "shifter",
        f"--image={container.image}",
        *(["--module=gpu"] if call.gpus else []),
        f"--workdir={call.cwd}",
        # It mounts what its site already has inside, and nothing else: at its own path it is there.
        *(f"--volume={mount}" for mount in container.mounts if _is_elsewhere(mount)),
        *container.options,
    ]
    return Entry(argv=(*words, *call.command))


def _is_elsewhere(mount: str) -> bool:
    source, target = mount.split(":")[:2]
    return source != target


def _podman_hpc(call: _Call) -> Entry:
    container = call.container
    words = [
        *_start("podman-hpc", "run", "--volume"),
        "--rm",
        *(["--gpu"] if call.gpus else []),
        # The sockets of agents, the processes that they look at, and MPI's shared memory.
        "--network=host",
        "--pid=host",
        "--ipc=host",
        f"--workdir={call.cwd}",
        *(f"--env={name}" for name in dict.fromkeys((*_PASSED, *call.variables))),
        *(f"--volume={mount}" for mount in container.mounts),
        *container.options,
        container.image,
    ]
    return Entry(argv=(*words, *call.command))


def _pyxis(call: _Call) -> Entry:
    container = call.container
    options = (
        f"--container-image={container.image}",
        f"--container-workdir={call.cwd}",
        *([f"--container-mounts={','.join(container.mounts)}"] if container.mounts else []),
        f"--container-env={','.join(dict.fromkeys((*_OURS, *call.variables)))}",
        *container.options,
    )
    return Entry(srun_options=options, argv=call.command)


_SCHEMES = ("docker:", "library:", "shub:", "oras:", "http:", "https:", "instance:")
RUNTIMES: Mapping[str, Runtime] = {
    "apptainer": Runtime(
        program="apptainer",
        needs="apptainer on PATH",
        enter=_apptainer("apptainer"),
        schemes=_SCHEMES,
    ),
    "singularity": Runtime(
        program="singularity",
        needs="singularity on PATH",
        enter=_apptainer("singularity"),
        schemes=_SCHEMES,
    ),
    "pyxis": Runtime(
        program="",
        needs="srun with Pyxis (srun --help lists --container-image)",
        enter=_pyxis,
        images_are_paths=False,
    ),
    "shifter": Runtime(
        program="shifter", needs="shifter on PATH", enter=_shifter, images_are_paths=False
    ),
    "podman-hpc": Runtime(
        program="podman-hpc", needs="podman-hpc on PATH", enter=_podman_hpc, images_are_paths=False
    ),
}
"""The runtimes, by ``Container(runtime=...)``."""


def enter_container(
    container: Container,
    command: Sequence[str],
    *,
    cwd: str,
    gpus: GpuVendor,
    variables: Sequence[str] = (),
) -> Entry:
    """Return how a command starts inside a container.

    Not collective. The runtime replaces itself with the command where it can: what srun signals,
    and whose end it sees, is the command.

    Parameters
    ----------
    container
        Its image, with all mounts.
    command
        The command.
    cwd
        Its working directory, which is mounted.
    gpus
        Of whom the GPUs are that it gets; empty for none.
    variables
        Names of variables that it gets from outside, even if the image has its own.

    Examples
    --------
    >>> box = Container(image="torch.sif", mounts=["/data"])
    >>> entry = enter_container(box, ["python3", "a.py"], cwd="/home/me", gpus="nvidia")
    >>> " ".join(entry.argv[3:])
    'apptainer exec --bind --nv --pwd /home/me --bind /data:/data torch.sif python3 a.py'
    """
    return RUNTIMES[container.runtime].enter(
        _Call(
            container=container,
            command=tuple(command),
            cwd=cwd,
            gpus=gpus,
            variables=tuple(variables),
        )
    )


def image_path(container: Container) -> str | None:
    """Return the path of an image; None if it is a name in a registry. Pure; not collective.

    Examples
    --------
    >>> image_path(Container(image="torch.sif"))
    'torch.sif'
    >>> image_path(Container(image="docker://ubuntu"))
    """
    runtime, image = RUNTIMES[container.runtime], container.image
    if image.startswith(("/", "./", "../")):
        return image
    is_path = runtime.images_are_paths and not image.startswith(runtime.schemes)
    return image if is_path else None
