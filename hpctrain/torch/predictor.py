"""`TorchPredictor`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hpctrain.bulk.index import INDEX_NAME
from hpctrain.checkpoint import Checkpoint
from hpctrain.checkpoint_files import DICT_NAME
from hpctrain.errors import ConfigError
from hpctrain.predict.predictor import Predictor
from hpctrain.predict.tensors import from_output, to_inputs
from hpctrain.torch.checkpoint import PICKLED_NAME, SAFETENSORS_NAME, load_model, load_own_model
from hpctrain.worker import context

if TYPE_CHECKING:
    import torch


class TorchPredictor(Predictor):
    """Scores batches with a torch model.

    A batch reaches the model as one tensor: the bare array, the only column, or the columns that
    ``features.json`` names, side by side. Without these names, several columns are a dict of
    tensors. Numbers of floating point are given to the model in the type of its weights, unless
    `dtype` says otherwise; so is a tensor of integers that the model refuses.

    Parameters
    ----------
    model
        The model; it is put into evaluation mode.
    preprocessor
        What batches go through before the model.
    use_gpu
        Whether to compute on this rank's GPU, outside of a run on the first that is visible.

    Raises
    ------
    ConfigError
        If there is no GPU to use.
    """

    framework = "torch"
    model_files: ClassVar[tuple[str, ...]] = (
        SAFETENSORS_NAME,
        PICKLED_NAME,
        INDEX_NAME,
        DICT_NAME,
    )

    def __init__(
        self, model: torch.nn.Module, preprocessor: Any = None, use_gpu: bool = False
    ) -> None:
        super().__init__(preprocessor)
        self.device = predict_device(use_gpu)
        self.model = model.to(self.device).eval()
        first = next(self.model.parameters(), None)
        self._dtype = None if first is None or not first.is_floating_point() else first.dtype
        self._refuses_integers = False

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        model: torch.nn.Module | Callable[[], torch.nn.Module] | None = None,
        use_gpu: bool = False,
        trust_preprocessor: bool = False,
        *,
        trusted: bool = False,
        **kwargs: Any,
    ) -> TorchPredictor:
        """Return a predictor with the weights of a checkpoint.

        Not collective. A pickle is opened where nobody but this user can have written it, or if it
        is trusted; otherwise nothing is unpickled but tensors.

        Parameters
        ----------
        checkpoint
            With ``model.safetensors`` or ``model.pt``, of `hpctrain.torch.report_state`, or of
            ``Checkpoint.from_dict({"model": model.state_dict()})``.
        model
            A model of the same architecture, or a function without arguments that makes one. None
            takes the module that ``TorchCheckpoint.from_model()`` has stored, or the model of
            ``Checkpoint.from_dict({"model": model})``.
        use_gpu
            Whether to compute on a GPU.
        trust_preprocessor
            Whether functions and objects in its preprocessor may be unpickled though another user
            can have written them, which runs code.
        trusted
            The same for the model.
        **kwargs
            Further arguments of the class.

        Raises
        ------
        ConfigError
            If the checkpoint is that of another framework, or `model` is None and the checkpoint
            has no module, or none that may be opened.
        CheckpointError
            If the weights are not those of `model`.
        """
        features = cls.check_checkpoint(checkpoint)
        if model is None:
            loaded = load_own_model(checkpoint, trusted=trusted)
        else:
            loaded = load_model(checkpoint, model, trusted=trusted)
        preprocessor = checkpoint.get_preprocessor(trusted=trust_preprocessor)
        predictor = cls(loaded, preprocessor=preprocessor, use_gpu=use_gpu, **kwargs)
        predictor._take_names(features)
        return predictor

    def call_model(self, inputs: torch.Tensor | dict[str, torch.Tensor]) -> Any:
        """Return what the model makes of a batch; override it for another call. Not collective.

        Parameters
        ----------
        inputs
            On the device of the model.

        Returns
        -------
        Any
            A tensor, or a dict of tensors, which become columns.
        """
        return self.model(inputs)

    def _predict_numpy(
        self, data: Any, dtype: torch.dtype | Mapping[str, torch.dtype] | None = None, **kwargs: Any
    ) -> Any:
        import torch

        with torch.inference_mode():
            inputs = to_inputs(data, features=self.features, dtype=dtype, to_tensor=self._to_tensor)
            output = self._call(inputs, may_cast=dtype is None, **kwargs)
        return from_output(
            output, is_tensor=torch.is_tensor, to_numpy=_to_numpy, predictor=type(self).__name__
        )

    def _call(self, inputs: Any, *, may_cast: bool, **kwargs: Any) -> Any:
        import torch

        # Only the model knows whether it wants integers, as an embedding does.
        is_one = torch.is_tensor(inputs) and self._dtype is not None and may_cast
        if not is_one or inputs.is_floating_point() or inputs.is_complex():
            return self.call_model(inputs, **kwargs)
        if not self._refuses_integers:
            try:
                return self.call_model(inputs, **kwargs)
            except RuntimeError:
                output = self.call_model(inputs.to(self._dtype), **kwargs)
                self._refuses_integers = True
                return output
        return self.call_model(inputs.to(self._dtype), **kwargs)

    def _to_tensor(self, values: np.ndarray[Any, Any], dtype: Any) -> torch.Tensor:
        import torch

        if dtype is None and values.dtype.kind == "f":
            dtype = self._dtype
        if not values.flags.writeable or not values.dtype.isnative:
            # torch warns of memory that it must not write to, and knows one byte order.
            values = values.astype(values.dtype.newbyteorder("="))
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device, dtype)


def _to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    import torch

    # NumPy has no such type.
    tensor = tensor.float() if tensor.dtype is torch.bfloat16 else tensor
    array: np.ndarray[Any, Any] = tensor.detach().cpu().numpy()
    return array


def predict_device(use_gpu: bool) -> torch.device:
    """Return what a predictor computes on. Not collective.

    Raises
    ------
    ConfigError
        If there is no GPU to use.
    """
    import torch

    if not use_gpu:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            "use_gpu=True, and torch sees no GPU here. Run where there is one, or drop use_gpu."
        )
    if not context.is_active():
        return torch.device("cuda", 0)
    from hpctrain.torch.device import get_device

    return get_device()
