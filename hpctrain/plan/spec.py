"""`RunSpec`: what every rank runs. The one module that uses cloudpickle."""

from __future__ import annotations

import dis
import inspect
import io
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Literal

from hpctrain.errors import ConfigError, NotSerializableError

if TYPE_CHECKING:
    # Each rank imports this module, and few have any of these.
    from hpctrain.container import Container
    from hpctrain.slurm_config import SlurmConfig
    from hpctrain.validation_task_config import ValidationTaskConfig

LARGE_PICKLE_BYTES = 10 * 2**20
"""Above this size of a training function, a warning names its largest part."""


@dataclass(frozen=True, kw_only=True)
class RankSettings:
    """The surroundings of a rank; the same on every rank."""

    name: str
    """Name of the run."""
    cwd: str
    """The driver's working directory."""
    sys_path: tuple[str, ...]
    """The driver's ``sys.path``, so that modules next to the script need no installation."""
    cpus_per_worker: int
    gpus_per_worker: int
    commit_timeout_s: float
    """Seconds that a rank waits for its checkpoint to be committed."""
    scratch_dir: str | None = None
    """Node-local directory for checkpoints before their copy, with unexpanded variables."""
    sync_artifacts: bool = False
    """Whether artifacts are written there, too."""
    max_writers: int | None = None
    """Ranks that may write their parts of checkpoints at a time."""
    max_bytes_per_s: float | None = None
    """Limit of each rank's copy rate."""
    # Specs of older versions lack it: the default must be a constant.
    in_container: bool = False
    """Whether ranks may have other packages than the executor: in a container, or in a packed
    environment."""
    preload: tuple[str, ...] = ()
    """Modules that one process of a node may import for all of its ranks."""
    preload_for_trials: tuple[str, ...] = ()
    """More of them, for a process that is kept from trial to trial; in a run of its own, for those
    that start again after ranks have imported them."""
    stops_at: Mapping[str, float] | None = None
    """Stop criteria at whose report ranks wait for the executor; None: they go on meanwhile."""
    seed: int | None = None
    """Decides the random numbers of ranks that their function does not seed; None: each process
    seeds itself, as in runs of older versions and where a script has started the ranks."""
    awaits_decisions: bool = False
    """Whether ranks begin a report only once it is decided that the last one does not end the run:
    by the executor, and by a tuner if one has sent that it decides."""


@dataclass(frozen=True, kw_only=True)
class ValidationJob:
    """The job of one validation."""

    directives: Mapping[str, str | None]
    """Options of sbatch, without dashes; None is a switch."""
    setup: tuple[str, ...]
    """Shell lines of the batch script before anything of hpctrain."""
    environment: Mapping[str, str]
    """Variables that the validation gets on top of the executor's own."""
    cpus: int
    """Compute threads."""
    # Specs of older versions lack it: the default must be a constant.
    container: Container | None = None
    """The container that it runs in, with all that it mounts."""


@dataclass(frozen=True, kw_only=True)
class ValidationSpec:
    """How a run validates its checkpoints."""

    fn: bytes
    """The function, pickled: only the process that calls it imports what it needs."""
    task_config: ValidationTaskConfig
    use_gpu: bool
    wait_timeout_s: float
    # Specs of older versions lack the following fields: defaults must be constants.
    slurm_config: SlurmConfig | None = None
    resources: Mapping[str, float] | None = None
    max_jobs: int = 1
    job: ValidationJob | None = None
    """The job of each validation; None if each is a process of the executor's node."""
    container: Container | None = None
    """The container of such a process, with all that it mounts."""


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What a run runs.

    Pickled parts stay pickled until a process needs them: the executor must not import torch only
    to read its own part.
    """

    trainer: str
    """Class of the trainer, ``module.Class``."""
    backend: str
    """Class of the backend, ``module.Class``."""
    fingerprint: str
    """Digest of everything that identifies the run."""
    digests: Mapping[str, str]
    """Digests of its parts, by readable names."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Digests of the user's modules that it reaches, by their file."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Readable parts as text: only for comparison."""
    settings: RankSettings
    worker: bytes
    """Pickled `WorkerSpec`."""
    executor: bytes
    """Pickled RunConfig, plan and checkpoint to begin with, for a job's executor and for
    ``restore()``. Empty where they cannot be pickled and need not be."""
    sources: bytes = b""
    """The user's modules as they were (`hpctrain.plan.sources.pack_sources`); empty where the run
    imports them as they are."""
    validation: ValidationSpec | None = None
    """How checkpoints are validated; None if the trainer has no ValidationConfig. It does not
    identify the run."""
    # Specs of older versions lack it: the default must be a constant.
    first_start: bytes = b""
    """Pickled FirstStart of a job that is submitted; empty for others."""

    def to_bytes(self) -> bytes:
        """Return the content of ``spec.pkl``."""
        return pickle.dumps(self, protocol=5)

    @staticmethod
    def from_bytes(content: bytes) -> RunSpec:
        """Return the spec from the bytes of `to_bytes`. The content is code: open only your own."""
        spec = pickle.loads(content)
        assert isinstance(spec, RunSpec)
        return spec


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """The part of a run that ranks open."""

    train_loop: Callable[..., Any]
    train_loop_config: Mapping[str, Any] | None = None
    takes_config: bool
    backend_config: Any
    datasets: Mapping[str, Any] = field(default_factory=dict)
    datasets_to_split: Literal["all"] | Sequence[str] = "all"
    preprocessor: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    data_config: Any = None
    """A DataConfig with the user's own ``configure()``, which assigns the datasets."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Hyperparameters for trackers: the configuration, or that of a trainer's loop."""
        if self.train_loop_config is not None:
            return self.train_loop_config
        parameters: Mapping[str, Any] = getattr(self.train_loop, "parameters", {})
        return parameters


def make_fingerprint(*parts: bytes) -> str:
    """Return a digest of parts: texts, and pickles made by `pack`.

    Not collective. The same script gives the same digest in every process and from every directory;
    the pickled values count, not the bytes (see `hpctrain.plan.fingerprint`).
    """
    # Ranks import this module too, and compute no fingerprint.
    import hashlib

    from hpctrain.plan.fingerprint import digest_pickle, is_pickle

    digest = hashlib.sha256()
    for part in parts:
        digest.update(digest_pickle(part) if is_pickle(part) else hashlib.sha256(part).digest())
    return digest.hexdigest()


def pack(
    value: Any,
    *,
    what: str,
    canonical: bool = False,
    reference: Callable[[Any], Any] | None = None,
    max_bytes: int | None = None,
) -> bytes:
    """Return `value` pickled, functions and classes of the main script included.

    Not collective.

    Parameters
    ----------
    value
        What to pickle.
    what
        Its name in the error message.
    canonical
        Whether equal tensors give equal bytes, in every process and from every device: they are on
        the CPU when they are unpickled.
    reference
        Returns the reference that replaces a part stored elsewhere, and None for all other values:
        `unpack` gets the function that restores the part.
    max_bytes
        What can be sent; None if it is not sent.

    Raises
    ------
    NotSerializableError
        If it cannot be pickled; the message names the variable.
    ConfigError
        If it has more than `max_bytes`.
    """
    try:
        content = _dump(value, canonical=canonical, reference=reference)
    except Exception as error:
        culprits = _unpicklable(value)
        at_fault = f" At fault: {', '.join(culprits)}." if culprits else ""
        if isinstance(value, WorkerSpec) or hasattr(value, "__code__"):
            next_step = "Create it inside the training function instead."
        else:
            next_step = "Create it where it is first used instead."
        # Users of Ray Train look for "was found to be non-serializable".
        raise NotSerializableError(
            f"{what} cannot be sent to the workers, because it was found to be non-serializable: "
            f"{type(error).__name__}: {error}.{at_fault} {next_step}"
        ) from error
    if max_bytes is not None and len(content) > max_bytes:
        raise ConfigError(
            f"{what} has {len(content):,} bytes when it is pickled, and {max_bytes:,} can be sent. "
            "Write it to a file and send its path, or report a checkpoint."
        )
    return content


def _dump(value: Any, *, canonical: bool, reference: Callable[[Any], Any] | None) -> bytes:
    import cloudpickle

    torch: Any = sys.modules.get("torch") if canonical else None
    if torch is None and reference is None:
        plain: bytes = cloudpickle.dumps(value, protocol=5)
        return plain

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def persistent_id(self, obj: Any) -> Any:
            return None if reference is None else reference(obj)

        def reducer_override(self, obj: Any) -> Any:
            if torch is None or not isinstance(obj, torch.storage.TypedStorage):
                return super().reducer_override(obj)
            storage = torch.storage.TypedStorage(
                wrap_storage=obj._untyped_storage.cpu(), dtype=obj.dtype, _internal=True
            )
            # torch's own way to pickle a storage writes its address in memory.
            saved = io.BytesIO()
            torch.save(storage, saved)
            return torch.storage._load_from_bytes, (saved.getvalue(),)

    file = io.BytesIO()
    Pickler(file, protocol=5).dump(value)
    return file.getvalue()


def unpack(content: bytes, *, referred: Callable[[Any], Any] | None = None) -> Any:
    """Return the value that `pack` pickled. Not collective.

    Parameters
    ----------
    content
        The pickle.
    referred
        Returns the part for a reference in the pickle.
    """
    if referred is None:
        return pickle.loads(content)
    make = referred

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> Any:
            return make(pid)

    return Unpickler(io.BytesIO(content)).load()


def explain_large_pickle(value: Any, content: bytes) -> str | None:
    """Return a warning that names the largest part of a pickle, or None if it is small.

    Not collective.
    """
    if len(content) <= LARGE_PICKLE_BYTES:
        return None
    size, name = max(((_size(part), name) for name, part in _captured(value)), default=(0, ""))
    culprit = f" Most of it is {name} ({size / 2**20:.0f} MiB)." if name else ""
    return (
        f"the training function, with everything it refers to, is {len(content) / 2**20:.0f} MiB "
        f"when pickled; above {LARGE_PICKLE_BYTES // 2**20} MiB every start of the ranks is slow."
        f"{culprit} Load or make it inside the training function."
    )


def _unpicklable(value: Any, *, above: frozenset[int] = frozenset()) -> list[str]:
    """Return the names of parts of `value` that cannot be pickled, the innermost known ones."""
    names: list[str] = []
    for name, part in _captured(value):
        if id(part) not in above and _size(part) < 0:
            inside = _unpicklable(part, above=above | {id(value), id(part)})
            names += [f"{inner} of {name}" for inner in inside] or [name]
    return list(dict.fromkeys(names))


def _captured(value: Any) -> list[tuple[str, Any]]:
    """Return the objects that `value` refers to, with a name for each."""
    if isinstance(value, WorkerSpec):
        loop = value.train_loop
        # One that calls the user's function has it as functools.wraps() says.
        parts = _captured(loop if isinstance(loop, FunctionType) else inspect.unwrap(loop))
        for label, mapping in (
            ("train_loop_config", value.train_loop_config),
            ("datasets", value.datasets),
        ):
            parts += [(f"{label}[{key!r}]", part) for key, part in (mapping or {}).items()]
        parts += [("backend_config", value.backend_config), ("preprocessor", value.preprocessor)]
        parts += [("dataset_config", value.data_config)]
        return parts
    if isinstance(value, tuple):
        return [part for member in value for part in _captured(member)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name)) for f in fields(value)]
    if not isinstance(value, FunctionType):
        return []
    parts = [
        (f"global variable {name!r}", value.__globals__[name])
        for name in _global_names(value.__code__)
        if name in value.__globals__
    ]
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        try:
            parts.append((f"captured variable {name!r}", cell.cell_contents))
        except ValueError:
            # Not assigned yet.
            continue
    return parts


def _global_names(code: CodeType) -> list[str]:
    """Return the global names that code reads, functions inside it included."""
    names = [
        i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    ]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _global_names(constant)
    return list(dict.fromkeys(names))


def _size(value: Any) -> int:
    """Return the pickled size of `value`, -1 if it cannot be pickled."""
    import cloudpickle

    try:
        return len(cloudpickle.dumps(value, protocol=5))
    except Exception:  # whatever an object's own reduction raises
        return -1
