"""`LightningCheckpoint`: a directory with Lightning's ``checkpoint.ckpt``, or Ray's ``model``."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hpctrain
from hpctrain.checkpoint import Checkpoint
from hpctrain.errors import CheckpointError, ConfigError, HpctrainError
from hpctrain.predict.features import describe_model
from hpctrain.torch.checkpoint import TorchCheckpoint, load_own_model

if TYPE_CHECKING:
    import torch

CHECKPOINT_NAME = "checkpoint.ckpt"
NAME_IN_RAY = "model"
"""What a LightningTrainer of Ray 2.4 to 2.9 has called the same file."""
FRAMEWORK = "lightning"


def get_checkpoint_path() -> str | None:
    """Return what to give as ``trainer.fit(ckpt_path=...)``: None at a fresh start.

    Not collective. It is ``checkpoint.ckpt`` in what `hpctrain.get_checkpoint` returns.

    Raises
    ------
    CheckpointError
        If that is not a checkpoint of Lightning.
    """
    checkpoint = hpctrain.get_checkpoint()
    return None if checkpoint is None else str(_find(checkpoint.path))


class LightningCheckpoint(TorchCheckpoint):
    """A checkpoint that Lightning wrote: ``checkpoint.ckpt``, or ``model`` of an old Ray."""

    @classmethod
    def from_path(
        cls, path: str | PathLike[str], *, preprocessor: Any = None
    ) -> LightningCheckpoint:
        """Return a checkpoint with a copy of a file, or directory, that Lightning wrote.

        Not collective. The copy lives as long as the handle.

        Parameters
        ----------
        path
            Such as ``last.ckpt``.
        preprocessor
            What batches go through before the model.
        """
        checkpoint = cls._make()
        copy = shutil.copytree if Path(path).is_dir() else shutil.copyfile
        copy(path, checkpoint.path / CHECKPOINT_NAME)
        return describe_model(checkpoint, framework=FRAMEWORK, preprocessor=preprocessor)

    def get_state_dict(self) -> dict[str, torch.Tensor]:
        """Return the weights, on the CPU. Not collective. No code is run.

        Raises
        ------
        CheckpointError
            If there are none, or they cannot be read that way.
        """
        with self.as_directory() as directory:
            return _read_state_dict(_find_file(directory), weights_only=True)

    def get_model(
        self,
        model: torch.nn.Module | Callable[[], torch.nn.Module] | None = None,
        **load_from_checkpoint_kwargs: Any,
    ) -> torch.nn.Module:
        """Return a module with the weights of the checkpoint.

        Not collective.

        Parameters
        ----------
        model
            The class of the LightningModule, whose arguments are what it saved with
            ``save_hyperparameters()``; or as in `hpctrain.torch.TorchCheckpoint.get_model`.
        **load_from_checkpoint_kwargs
            For ``load_from_checkpoint()`` of the class. ``weights_only`` is true unless it is here.

        Raises
        ------
        CheckpointError
            If the weights are not those of this architecture, or reading them would run code.
        ConfigError
            If `model` is missing.
        """
        if model is None:
            return load_own_model(self)
        return load_model(self, model, **load_from_checkpoint_kwargs)


def load_model(checkpoint: Checkpoint, model: Any, **kwargs: Any) -> torch.nn.Module:
    """Return a module with the weights in a checkpoint, on the CPU. Not collective.

    Raises
    ------
    CheckpointError
        If the weights are not those of this architecture, or reading them would run code.
    ConfigError
        If `model` is neither a module, nor a class or function that makes one.
    """
    import torch

    with checkpoint.as_directory() as directory:
        path = _find_file(directory)
        try:
            if isinstance(model, type) and hasattr(model, "load_from_checkpoint"):
                arguments = {"map_location": "cpu", "weights_only": True, **kwargs}
                loaded: torch.nn.Module = model.load_from_checkpoint(path, **arguments)
                return loaded
            if others := sorted(set(kwargs) - {"weights_only"}):
                raise ConfigError(
                    f"{', '.join(others)}: for load_from_checkpoint() of a class of a "
                    f"LightningModule, and model={_name(model)} is none. Leave them out, or give "
                    f"the class."
                )
            made = model if isinstance(model, torch.nn.Module) else model()
            if not isinstance(made, torch.nn.Module):
                raise ConfigError(
                    f"model={model!r} gave a {type(made).__name__}. The class of the "
                    f"LightningModule is needed."
                )
            weights = _read_state_dict(path, weights_only=kwargs.get("weights_only", True))
            made.load_state_dict(weights)
        except HpctrainError:
            raise
        except pickle.UnpicklingError as error:
            raise _unsafe(path) from error
        except ValueError as error:
            # Lightning's, of what the hyper-parameters name to be called.
            raise CheckpointError(
                f"{path} cannot be loaded into {_name(model)}: {error} If its hyper-parameters are "
                f"not your own, give a function that makes the model: only weights are read then."
            ) from error
        except RuntimeError as error:
            raise CheckpointError(
                f"the weights in {path} are not those of {_name(model)}: {error} Give the class "
                f"that was trained."
            ) from error
    return made


def _read_state_dict(path: Path, *, weights_only: bool) -> dict[str, torch.Tensor]:
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=weights_only)
        return dict(content["state_dict"])
    except Exception as error:  # whatever a strange pickle brings about
        raise _unsafe(path) from error


def _unsafe(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} is damaged, or holds more than weights and plain values, as hyper-parameters of "
        f"a class of one's own, and reading it would run code. If it is your own, load it with "
        f"weights_only=False."
    )


def _find(directory: str | PathLike[str]) -> Path:
    for name in (CHECKPOINT_NAME, NAME_IN_RAY):
        path = Path(directory, name)
        if path.exists():
            return path
    raise CheckpointError(
        f"{directory} has no {CHECKPOINT_NAME}. hpctrain.lightning.ReportCallback writes it."
    )


def _find_file(directory: str | PathLike[str]) -> Path:
    path = _find(directory)
    if path.is_dir():
        raise CheckpointError(
            f"{path} is a directory, into which a strategy that shards has written. Its Trainer "
            f"goes on from it; to have the weights in one file, as FSDP's: python -m "
            f"lightning.pytorch.utilities.consolidate_checkpoint {path}"
        )
    return path


def _name(model: Any) -> str:
    return getattr(model, "__name__", type(model).__name__)
