"""`TorchCheckpoint`: the weights of a model in a directory, without pickle, and its module."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hpctrain import pickle_trust
from hpctrain.bulk.index import INDEX_NAME
from hpctrain.checkpoint import Checkpoint
from hpctrain.checkpoint_class import write_class
from hpctrain.checkpoint_files import DICT_NAME
from hpctrain.constants import ARCHITECTURE_NAME, MODEL_KEY
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.plan import spec
from hpctrain.predict.features import describe_model
from hpctrain.torch.architecture import NoArchitectureError, read_architecture, write_architecture
from hpctrain.writers import open_judged, read_judged

if TYPE_CHECKING:
    import torch

SAFETENSORS_NAME = "model.safetensors"
PICKLED_NAME = "model.pt"
# DistributedDataParallel puts it before the names of the weights.
_WRAPPED = "module."
_WRAPPERS = frozenset(
    [
        ("torch", "DataParallel"),
        ("torch", "DistributedDataParallel"),
        ("torch", "FullyShardedDataParallel"),
        ("deepspeed", "DeepSpeedEngine"),
    ]
)


class TorchCheckpoint(Checkpoint):
    """A checkpoint with the weights of a torch model.

    Weights are ``model.safetensors``, which holds tensors and nothing that could run. A
    ``model.pt`` of a training function's own (``torch.save(model.state_dict(), ...)``) is read too,
    with ``weights_only``; and so is the ``model`` of `hpctrain.torch.report_state`.

    The module itself, without its weights, is a pickle in ``model.architecture``, which
    `from_model` writes. That runs code, as does a ``model.pt`` that holds a whole model: they are
    opened where nobody but this user can have written them, or if they are trusted.
    """

    # Its methods read the directory at once.
    _may_be_made_later = False

    @classmethod
    def from_model(
        cls,
        model: torch.nn.Module,
        *,
        path: str | PathLike[str] | None = None,
        preprocessor: Any = None,
        features: Sequence[str] | None = None,
        label: str | None = None,
    ) -> TorchCheckpoint:
        """Return a checkpoint with the weights of a model, and its module beside them.

        Not collective.

        Parameters
        ----------
        model
            The model; one that `hpctrain.torch.prepare_model` has wrapped is unwrapped.
        path
            Directory, made if needed. None makes a temporary one that lives as long as the handle.
        preprocessor
            What batches go through before the model.
        features
            Names of the model's inputs, in order, if it takes a matrix with a column for each.
        label
            Column that the model predicts.
        """
        unwrapped = unwrap(model)
        weights = unwrapped.state_dict()
        checkpoint = cls.from_state_dict(
            weights, path=path, preprocessor=preprocessor, features=features, label=label
        )
        write_architecture(unwrapped, weights, checkpoint.path)
        checkpoint._architecture = unwrapped
        return checkpoint

    @classmethod
    def from_state_dict(
        cls,
        state_dict: Mapping[str, Any],
        *,
        path: str | PathLike[str] | None = None,
        preprocessor: Any = None,
        features: Sequence[str] | None = None,
        label: str | None = None,
    ) -> TorchCheckpoint:
        """Return a checkpoint with the weights of a ``state_dict()``.

        Not collective.

        Parameters
        ----------
        state_dict
            Tensors by name.
        path, preprocessor, features, label
            As in `from_model`.

        Raises
        ------
        ConfigError
            If something in it is not a tensor, or is sharded.
        """
        import torch

        if others := [k for k, v in state_dict.items() if not isinstance(v, torch.Tensor)]:
            raise ConfigError(
                f"the state_dict has values that are no tensors: {', '.join(others[:6])}. Keep "
                f"them in a file of their own beside {SAFETENSORS_NAME}."
            )
        if any(hasattr(value, "placements") for value in state_dict.values()):
            raise ConfigError(
                "the model is sharded (FSDP): each rank has a part of it. Save it with "
                "hpctrain.torch.report_state(), and give that to hpctrain.torch.export_state()."
            )
        checkpoint = cls._make(path)
        write_class(cls, checkpoint.path)
        # The module of other weights, which were there before.
        (checkpoint.path / ARCHITECTURE_NAME).unlink(missing_ok=True)
        write_state_dict(state_dict, checkpoint.path)
        return describe_model(
            checkpoint,
            framework="torch",
            preprocessor=preprocessor,
            features=features,
            label=label,
        )

    def get_state_dict(self) -> dict[str, torch.Tensor]:
        """Return the weights, on the CPU. Not collective. Nothing is unpickled but tensors.

        Raises
        ------
        CheckpointError
            If there are none, or they cannot be read that way.
        """
        return read_state_dict(self)

    def get_model(
        self,
        model: torch.nn.Module | Callable[[], torch.nn.Module] | None = None,
        *,
        trusted: bool = False,
    ) -> torch.nn.Module:
        """Return a model with the weights of the checkpoint.

        Not collective.

        Parameters
        ----------
        model
            A model of the same architecture, whose weights are replaced, or a function that makes
            one. None takes the module of the checkpoint.
        trusted
            Whether a pickle may be opened though another user can have written it. That runs code.

        Raises
        ------
        CheckpointError
            If the weights are not those of this architecture.
        ConfigError
            If `model` is None, and the checkpoint has no module, or none that may be opened.
        """
        if model is not None:
            return load_model(self, model, trusted=trusted)
        return load_own_model(self, trusted=trusted)


def write_state_dict(state_dict: Mapping[str, torch.Tensor], directory: Path) -> None:
    """Write weights into a directory. Not collective."""
    from safetensors.torch import save_file

    # Each in memory of its own: safetensors refuses weights that share it.
    tensors = {k: v.detach().to("cpu", copy=True).contiguous() for k, v in state_dict.items()}
    save_file(tensors, directory / SAFETENSORS_NAME)


def read_state_dict(checkpoint: Checkpoint, *, trusted: bool = False) -> dict[str, torch.Tensor]:
    """Return the weights in a checkpoint, on the CPU.

    Not collective. Pickles of whole models are opened where they may be.

    Raises
    ------
    CheckpointError
        If there are none, or reading them would run code.
    """
    import torch

    with checkpoint.as_directory() as directory:
        safe, pickled = Path(directory, SAFETENSORS_NAME), Path(directory, PICKLED_NAME)
        if safe.exists():
            from safetensors import SafetensorError
            from safetensors.torch import load_file

            try:
                return dict(load_file(safe))
            except (SafetensorError, ValueError, KeyError) as error:
                raise CheckpointError(
                    f"{safe} is damaged: {error}. Load another checkpoint."
                ) from error
        if Path(directory, INDEX_NAME).exists():
            from hpctrain.torch.state.weights import read_weights

            return read_weights(Path(directory))
        if Path(directory, DICT_NAME).exists():
            from hpctrain.torch.dict_checkpoint import read_weights_of_dict

            path = Path(directory, DICT_NAME)
            try:
                return read_weights_of_dict(path)
            except CheckpointError as error:
                content, refusal = _open_dict(path, trusted=trusted)
                if refusal:
                    raise CheckpointError(f"{error} For the whole: {refusal}.") from error
                if not isinstance(content, (torch.nn.Module, Mapping)):
                    raise
            return _as_weights(content, path)
        if not pickled.exists():
            raise CheckpointError(
                f"{directory} has none of {SAFETENSORS_NAME}, {INDEX_NAME} and {PICKLED_NAME}. "
                f"Write it with TorchCheckpoint.from_model() or hpctrain.torch.report_state()."
            )
        return _as_weights(_read_pickled(pickled, trusted=trusted), pickled)


def _as_weights(content: Any, path: Path) -> dict[str, torch.Tensor]:
    import torch

    if isinstance(content, torch.nn.Module):
        return dict(unwrap(content).state_dict())
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, not a state_dict().")
    return dict(content)


def _read_pickled(path: Path, *, trusted: bool) -> Any:
    """Return what a ``model.pt`` holds: whole models only where they may be opened."""
    import torch

    try:
        file, foreign = open_judged(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    with io.BufferedReader(file) as stream:
        try:
            return torch.load(stream, map_location="cpu", weights_only=True)
        except Exception as error:  # whatever a strange pickle brings about
            if not (trusted or foreign is None):
                raise CheckpointError(
                    f"{path} is damaged, or holds more than weights, and reading it would run "
                    f"code. {pickle_trust.advice(path.parent, foreign)} Or save "
                    f"model.state_dict(), or use TorchCheckpoint.from_model()."
                ) from error
        stream.seek(0)
        try:
            return torch.load(stream, map_location="cpu", weights_only=False)
        except Exception as error:  # whatever its code does
            raise CheckpointError(
                f"{path} cannot be opened here: {type(error).__name__}: {error}. Save "
                f"model.state_dict(), or use TorchCheckpoint.from_model()."
            ) from error


def _open_dict(path: Path, *, trusted: bool) -> tuple[Any, str]:
    """Return the model in a pickled dict, None if there is none, and why it may not be opened."""
    try:
        content, foreign = read_judged(path)
    except OSError as error:
        return None, f"its {path.name} cannot be read ({error.strerror})"
    if not (trusted or foreign is None or pickle_trust.is_made_here(content)):
        text = pickle_trust.advice(path.parent, foreign).rstrip(".")
        return None, f"its {path.name} holds a pickle; opening it runs code. {text}"
    try:
        data = spec.unpack(content)
    except Exception as error:  # whatever its code does
        text = f"{type(error).__name__}: {error}".rstrip(".")
        return None, f"its {path.name} cannot be opened here ({text})"
    return (data.get(MODEL_KEY), "") if isinstance(data, Mapping) else (None, "")


def load_own_model(checkpoint: Checkpoint, *, trusted: bool = False) -> torch.nn.Module:
    """Return the model of a checkpoint, as it was when it was saved. Not collective.

    Raises
    ------
    CheckpointError
        If its weights cannot be read.
    ConfigError
        If the checkpoint has no module, or none that may be opened.
    """
    if checkpoint._architecture is not None:
        return load_model(checkpoint, copy.deepcopy(checkpoint._architecture))
    with checkpoint.as_directory() as name:
        directory = Path(name)
        try:
            return _load_stored(checkpoint, directory, trusted=trusted)
        except NoArchitectureError as error:
            raise ConfigError(
                f"{checkpoint!r} needs model=: {error}. Give the architecture, or a function that "
                f"makes it."
            ) from error.__cause__


def _load_stored(checkpoint: Checkpoint, directory: Path, *, trusted: bool) -> torch.nn.Module:
    import torch

    made: Any = None
    if (directory / SAFETENSORS_NAME).exists():
        weights = read_state_dict(checkpoint)
        return read_architecture(directory, weights, trusted=trusted)
    if (directory / DICT_NAME).exists():
        if (given := _given_unchanged(checkpoint)) is not None:
            return given
        made, refusal = _open_dict(directory / DICT_NAME, trusted=trusted)
        if refusal:
            raise NoArchitectureError(refusal)
    elif (directory / PICKLED_NAME).exists():
        made = _read_pickled(directory / PICKLED_NAME, trusted=trusted)
    if not isinstance(made, torch.nn.Module):
        raise NoArchitectureError("a checkpoint holds weights and no code")
    return unwrap(made)


def _given_unchanged(checkpoint: Checkpoint) -> torch.nn.Module | None:
    """Return the very model that a handle was made of, if it is still what was stored."""
    if checkpoint._given is None:
        return None
    others, model = checkpoint._given
    if (given := model()) is None:
        return None
    content = spec.pack(others | {MODEL_KEY: given}, what="the checkpoint", canonical=True)
    stored = (checkpoint.path / DICT_NAME).read_bytes()
    return unwrap(given) if content == stored else None


def load_model(
    checkpoint: Checkpoint,
    model: torch.nn.Module | Callable[[], torch.nn.Module],
    *,
    trusted: bool = False,
) -> torch.nn.Module:
    """Return a model with the weights in a checkpoint. Not collective.

    Raises
    ------
    CheckpointError
        If the weights are not those of this architecture.
    ConfigError
        If `model` is neither a model nor a function that makes one.
    """
    import torch

    made = model if isinstance(model, torch.nn.Module) else model()
    if not isinstance(made, torch.nn.Module):
        raise ConfigError(
            f"model={model!r} gave a {type(made).__name__}. A torch.nn.Module is needed, or a "
            f"function without arguments that makes one."
        )
    try:
        made.load_state_dict(_named_as_in(made, read_state_dict(checkpoint, trusted=trusted)))
    except RuntimeError as error:
        raise CheckpointError(
            f"the weights in {checkpoint.path} are not those of {type(made).__name__}: {error} "
            f"Give model= the architecture that was trained."
        ) from error
    return made


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model that a wrapper for distributed training holds, or itself. Not collective."""
    # By name: importing them costs a start. A model of the user may have a part called "module".
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(model).__mro__}
    return cast("torch.nn.Module", model.module) if kinds & _WRAPPERS else model


def _named_as_in(
    model: torch.nn.Module, weights: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return weights that DistributedDataParallel has named, with the names of its inner model."""
    stripped = {name.removeprefix(_WRAPPED): tensor for name, tensor in weights.items()}
    is_wrapped = all(name.startswith(_WRAPPED) for name in weights)
    # A model may have one part of its own, called "module": its names are right as they are.
    return stripped if is_wrapped and not weights.keys() <= model.state_dict().keys() else weights
