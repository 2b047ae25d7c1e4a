"""`TorchCheckpoint`: the weights of a model in a directory, without pickle."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hpctrain import pickle_trust
from hpctrain.bulk.index import INDEX_NAME
from hpctrain.checkpoint import DICT_NAME, Checkpoint
from hpctrain.constants import MODEL_KEY
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.plan import spec
from hpctrain.predict.features import describe_model

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
    """

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
        """Return a checkpoint with the weights of a model.

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
        checkpoint = cls.from_state_dict(
            unwrapped.state_dict(),
            path=path,
            preprocessor=preprocessor,
            features=features,
            label=label,
        )
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
            If something in it is not a tensor.
        """
        import torch

        if others := [k for k, v in state_dict.items() if not isinstance(v, torch.Tensor)]:
            raise ConfigError(
                f"the state_dict has values that are no tensors: {', '.join(others[:6])}. Keep "
                f"them in a file of their own beside {SAFETENSORS_NAME}."
            )
        checkpoint = cls._make(path)
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
        self, model: torch.nn.Module | Callable[[], torch.nn.Module] | None = None
    ) -> torch.nn.Module:
        """Return a model with the weights of the checkpoint.

        Not collective.

        Parameters
        ----------
        model
            A model of the same architecture, whose weights are replaced, or a function that makes
            one. A checkpoint holds no code; None is for the very handle that was made of a model.

        Raises
        ------
        CheckpointError
            If the weights are not those of this architecture.
        ConfigError
            If `model` is missing.
        """
        return load_model(self, model) if model is not None else load_own_model(self)


def write_state_dict(state_dict: Mapping[str, torch.Tensor], directory: Path) -> None:
    """Write weights into a directory. Not collective."""
    from safetensors.torch import save_file

    # Each in memory of its own: safetensors refuses weights that share it.
    tensors = {k: v.detach().to("cpu", copy=True).contiguous() for k, v in state_dict.items()}
    save_file(tensors, directory / SAFETENSORS_NAME)


def read_state_dict(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """Return the weights in a checkpoint, on the CPU. Not collective.

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

            return read_weights_of_dict(Path(directory, DICT_NAME))
        if not pickled.exists():
            raise CheckpointError(
                f"{directory} has none of {SAFETENSORS_NAME}, {INDEX_NAME} and {PICKLED_NAME}. "
                f"Write it with TorchCheckpoint.from_model() or hpctrain.torch.report_state()."
            )
        try:
            content = torch.load(pickled, map_location="cpu", weights_only=True)
        except Exception as error:  # whatever a strange pickle brings about
            raise CheckpointError(
                f"{pickled} is damaged, or holds more than weights, and reading it would run code. "
                f"Save model.state_dict(), or use TorchCheckpoint.from_model()."
            ) from error
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{pickled} holds a {type(content).__name__}, not a state_dict().")
    return dict(content)


def load_own_model(checkpoint: Checkpoint) -> torch.nn.Module:
    """Return a copy of the model that a handle was made of, as it was then. Not collective.

    No pickle is opened but what this handle has written, byte by byte.

    Raises
    ------
    ConfigError
        If the handle was not made of a model.
    """
    if checkpoint._architecture is not None:
        return load_model(checkpoint, copy.deepcopy(checkpoint._architecture))
    if checkpoint._given is not None:
        with checkpoint.as_directory() as directory:
            content = Path(directory, DICT_NAME).read_bytes()
        if pickle_trust.is_made_here(content):
            made: torch.nn.Module = spec.unpack(content)[MODEL_KEY]
            return made
    raise ConfigError(
        f"{checkpoint!r} needs model=: a checkpoint holds weights and no code. Give the "
        f"architecture, or a function that makes it."
    )


def load_model(
    checkpoint: Checkpoint, model: torch.nn.Module | Callable[[], torch.nn.Module]
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
        made.load_state_dict(_named_as_in(made, read_state_dict(checkpoint)))
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
