"""`TensorflowPredictor`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpctrain.checkpoint import Checkpoint
from hpctrain.data.optional import require
from hpctrain.errors import ConfigError
from hpctrain.predict.predictor import Predictor
from hpctrain.predict.tensors import from_output, to_inputs
from hpctrain.tensorflow.checkpoint import H5_NAME, KERAS_NAME, SAVED_MODEL_NAME, load_model
from hpctrain.tensorflow.device import show_gpus
from hpctrain.worker import context
from hpctrain.worker.bootstrap import visible_gpus

if TYPE_CHECKING:
    import tensorflow
    from tensorflow import keras


class TensorflowPredictor(Predictor):
    """Scores batches with a Keras model.

    A batch reaches the model as one tensor: the bare array, the only column, or the columns that
    ``features.json`` names, side by side. Without these names, several columns are a dict of
    tensors.

    Parameters
    ----------
    model
        The model.
    preprocessor
        What batches go through before the model.
    use_gpu
        Whether to compute on this rank's GPU, outside of a run on the first that is visible.

    Raises
    ------
    ConfigError
        If there is no model, or no GPU to use.
    """

    framework = "tensorflow"
    model_files = (KERAS_NAME, H5_NAME, SAVED_MODEL_NAME)

    def __init__(
        self,
        *,
        model: keras.Model | None = None,
        preprocessor: Any = None,
        use_gpu: bool = False,
    ) -> None:
        super().__init__(preprocessor)
        if model is None:
            raise ConfigError(
                f"{type(self).__name__}() needs model=, a Keras model. That of a checkpoint is "
                f"loaded by from_checkpoint()."
            )
        self.device = _device(use_gpu)
        """What TensorFlow calls the device."""
        self.model = model

    @classmethod
    def import_framework(cls) -> Any:
        """Import TensorFlow. Not collective."""
        return require("tensorflow", to="to predict with its models", extra="tensorflow")

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        model_definition: Callable[[], keras.Model] | None = None,
        use_gpu: bool = False,
        trust_preprocessor: bool = False,
        *,
        model: Callable[[], keras.Model] | None = None,
        custom_objects: Mapping[str, Any] | None = None,
        trusted: bool = False,
        **kwargs: Any,
    ) -> TensorflowPredictor:
        """Return a predictor with the model of a checkpoint.

        Not collective. No code of the checkpoint runs unless it is trusted.

        Parameters
        ----------
        checkpoint
            With ``model.keras``, ``model.h5`` or ``saved_model``.
        model_definition
            A function without arguments that makes the model, whose weights are then loaded. None
            takes the architecture from the checkpoint too.
        use_gpu
            Whether to compute on a GPU.
        trust_preprocessor
            Whether functions and objects in its preprocessor may be unpickled, which runs code.
        model
            The same as `model_definition`, as other predictors call it.
        custom_objects
            Classes and functions of the model that Keras does not know, by name.
        trusted
            Whether a ``model.keras`` of Keras 2, ``model.h5`` and ``saved_model`` may be loaded,
            which can run code.
        **kwargs
            Further arguments of the class.

        Raises
        ------
        ConfigError
            If the checkpoint is that of another framework.
        CheckpointError
            If the model cannot be loaded.
        """
        features = cls.check_checkpoint(checkpoint)
        preprocessor = checkpoint.get_preprocessor(trusted=trust_preprocessor)
        tensorflow = cls.import_framework()
        with checkpoint.as_directory() as directory, tensorflow.device(_device(use_gpu)):
            loaded = load_model(
                Path(directory),
                model_definition or model,
                custom_objects=custom_objects,
                compile=False,
                trusted=trusted,
            )
        predictor = cls(model=loaded, preprocessor=preprocessor, use_gpu=use_gpu, **kwargs)
        predictor._take_names(features)
        return predictor

    def call_model(self, inputs: tensorflow.Tensor | dict[str, tensorflow.Tensor]) -> Any:
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
        return self.model(inputs, training=False)

    def _predict_numpy(
        self,
        data: Any,
        dtype: tensorflow.DType | Mapping[str, tensorflow.DType] | None = None,
        **kwargs: Any,
    ) -> Any:
        import tensorflow

        with tensorflow.device(self.device):
            inputs = to_inputs(data, features=self.features, dtype=dtype, to_tensor=_to_tensor)
            output = self.call_model(inputs, **kwargs)
        return from_output(
            output,
            is_tensor=tensorflow.is_tensor,
            to_numpy=lambda tensor: tensor.numpy(),
            predictor=type(self).__name__,
        )


def _to_tensor(values: np.ndarray[Any, Any], dtype: Any) -> Any:
    import tensorflow

    # TensorFlow knows the machine's byte order only.
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    tensor = tensorflow.convert_to_tensor(native)
    return tensor if dtype is None else tensorflow.cast(tensor, dtype)


def _device(use_gpu: bool) -> str:
    """Return the device to compute on."""
    if context.is_active():
        own = context.get_context().gpu_ids
        show_gpus(own, visible=visible_gpus())
    else:
        own = visible_gpus()
    if use_gpu and not own:
        raise ConfigError(
            "use_gpu=True, and there is no GPU here. Run where there is one, or drop use_gpu."
        )
    return "/GPU:0" if use_gpu else "/CPU:0"
