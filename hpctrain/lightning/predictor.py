"""`LightningPredictor`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hpctrain.checkpoint import Checkpoint
from hpctrain.errors import ConfigError
from hpctrain.lightning.checkpoint import (
    CHECKPOINT_NAME,
    FRAMEWORK,
    NAME_IN_RAY,
    load_model,
)
from hpctrain.torch.predictor import TorchPredictor

if TYPE_CHECKING:
    import torch


class LightningPredictor(TorchPredictor):
    """Scores batches with ``forward()`` of a LightningModule.

    It is made of a module, and takes batches, as `hpctrain.torch.TorchPredictor`.
    """

    framework = FRAMEWORK
    model_files = (CHECKPOINT_NAME, NAME_IN_RAY)

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        model: torch.nn.Module | Callable[[], torch.nn.Module] | None = None,
        use_gpu: bool = False,
        trust_preprocessor: bool = False,
        *,
        model_class: Callable[..., torch.nn.Module] | None = None,
        preprocessor: Any = None,
        **load_from_checkpoint_kwargs: Any,
    ) -> LightningPredictor:
        """Return a predictor with the module of a checkpoint.

        Not collective. Nothing is unpickled but tensors and plain values.

        Parameters
        ----------
        checkpoint
            With ``checkpoint.ckpt``.
        model
            The class of the LightningModule; a module; or a function without arguments that makes
            one.
        use_gpu
            Whether to compute on a GPU.
        trust_preprocessor
            Whether functions and objects in its preprocessor may be unpickled, which runs code.
        model_class
            Another name for `model`.
        preprocessor
            In place of the checkpoint's.
        **load_from_checkpoint_kwargs
            As in `LightningCheckpoint.get_model`.

        Raises
        ------
        ConfigError
            If the checkpoint is that of another framework, or `model` is missing.
        CheckpointError
            If the weights are not those of `model`, or reading them would run code.
        """
        cls.check_checkpoint(checkpoint)
        wanted = model if model_class is None else model_class
        if wanted is None:
            raise ConfigError(
                f"{cls.__name__} needs model=: a checkpoint holds weights and no code. Give the "
                f"class of the LightningModule."
            )
        if preprocessor is None:
            preprocessor = checkpoint.get_preprocessor(trusted=trust_preprocessor)
        return cls(
            load_model(checkpoint, wanted, **load_from_checkpoint_kwargs),
            preprocessor=preprocessor,
            use_gpu=use_gpu,
        )
