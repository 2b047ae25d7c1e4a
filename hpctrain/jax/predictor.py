"""`JaxPredictor`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from hpctrain.checkpoint import Checkpoint
from hpctrain.errors import ConfigError
from hpctrain.jax import process
from hpctrain.jax.checkpoint import STATE_NAME, read_params
from hpctrain.predict.predictor import Predictor
from hpctrain.predict.tensors import from_output, to_inputs
from hpctrain.worker import context

ApplyFunction: TypeAlias = Callable[[Any, Any], Any]


class JaxPredictor(Predictor):
    """Scores batches with parameters and the function that applies them.

    A batch reaches the function as one array: the bare array, the only column, or the columns that
    ``features.json`` names, side by side. Without these names, several columns are a dict of
    arrays. Numbers of floating point are given to it in the type of the parameters, unless `dtype`
    says otherwise. The function is compiled once for each shape of batches.

    Parameters
    ----------
    apply
        Called with the parameters and a batch; returns an array, or a dict of arrays, which become
        columns.
    params
        A pytree of arrays.
    preprocessor
        What batches go through before the model.
    use_gpu
        Whether to compute on this rank's GPU, outside of a run on the first that is visible.

    Raises
    ------
    ConfigError
        If there is no GPU to use.
    """

    framework = "jax"
    model_files = (STATE_NAME,)

    def __init__(
        self, apply: ApplyFunction, params: Any, preprocessor: Any = None, use_gpu: bool = False
    ) -> None:
        super().__init__(preprocessor)
        jax = process.import_jax()
        self.device = _device(use_gpu)
        self.params = jax.device_put(params, self.device)
        """On the device."""
        self._apply = jax.jit(apply)
        types = (np.asarray(leaf).dtype for leaf in jax.tree.leaves(params))
        self._dtype = next((t for t in types if jax.numpy.issubdtype(t, np.floating)), None)

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        model: Any = None,
        use_gpu: bool = False,
        trust_preprocessor: bool = False,
        **kwargs: Any,
    ) -> JaxPredictor:
        """Return a predictor with the parameters of a checkpoint.

        Not collective, unless it is called in the training function of a `JaxTrainer`. Nothing is
        unpickled.

        Parameters
        ----------
        checkpoint
            With the state that `JaxCheckpoint.from_state` writes.
        model
            The function of parameters and a batch, or something that has it as its method
            ``apply``, or the class of that: a module of Flax.
        use_gpu
            Whether to compute on a GPU.
        trust_preprocessor
            Whether functions and objects in its preprocessor may be unpickled, which runs code.
        **kwargs
            Further arguments of the class.

        Raises
        ------
        ConfigError
            If the checkpoint is that of another framework, or `model` is missing.
        CheckpointError
            If the state cannot be read.
        """
        features = cls.check_checkpoint(checkpoint)
        apply = _apply_function(model, cls.__name__)
        params = read_params(checkpoint)
        preprocessor = checkpoint.get_preprocessor(trusted=trust_preprocessor)
        predictor = cls(apply, params, preprocessor=preprocessor, use_gpu=use_gpu, **kwargs)
        predictor._take_names(features)
        return predictor

    def call_model(self, inputs: Any) -> Any:
        """Return what the model makes of a batch; override it for another call. Not collective.

        Parameters
        ----------
        inputs
            On the device of the parameters.

        Returns
        -------
        Any
            An array, or a dict of arrays, which become columns.
        """
        return self._apply(self.params, inputs)

    def _predict_numpy(self, data: Any, dtype: Any = None, **kwargs: Any) -> Any:
        import jax

        inputs = to_inputs(data, features=self.features, dtype=dtype, to_tensor=self._cast)
        return from_output(
            self.call_model(jax.device_put(inputs, self.device), **kwargs),
            is_tensor=lambda values: isinstance(values, (jax.Array, np.ndarray)),
            to_numpy=_to_numpy,
            predictor=type(self).__name__,
        )

    def _cast(self, values: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
        if dtype is None and values.dtype.kind == "f":
            dtype = self._dtype
        # JAX knows one byte order.
        cast = values.astype(dtype or values.dtype.newbyteorder("="), copy=False)
        _refuse_cut(cast)
        return cast


def _refuse_cut(values: np.ndarray[Any, Any]) -> None:
    """Refuse integers that JAX would change without a word: by default it has none of 64 bits."""
    import jax

    if values.dtype.kind not in "iu" or not values.size:
        return
    held = jax.dtypes.canonicalize_dtype(values.dtype)
    if held == values.dtype:
        return
    limits = np.iinfo(held)
    for value in (values.min(), values.max()):
        if not limits.min <= value <= limits.max:
            raise ConfigError(
                f"{value} is in the batch, and JAX computes with {held} in place of "
                f"{values.dtype}, which does not hold it. Call jax.config.update('jax_enable_x64', "
                f"True) first, or give dtype= of a floating type, which rounds it."
            )


def _apply_function(model: Any, predictor: str) -> ApplyFunction:
    if isinstance(model, type):
        model = model()
    apply: Any = getattr(model, "apply", model)
    if not callable(apply):
        raise ConfigError(
            f"{predictor} needs model=, and got {model!r}: a checkpoint holds parameters and no "
            f"code. Give the function of parameters and a batch that the training used."
        )
    function: ApplyFunction = apply
    return function


def _to_numpy(values: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(values)
    # What NumPy has not, as bfloat16, has the kind of unknown bytes.
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def _device(use_gpu: bool) -> Any:
    import jax

    if context.is_active() and not process.computes_already():
        process.use_devices(context.get_context().gpu_indices if use_gpu else ())
    try:
        return jax.local_devices(backend="gpu" if use_gpu else "cpu")[0]
    except RuntimeError as error:
        raise ConfigError(
            f"use_gpu={use_gpu}, and JAX has no such device here: {error} Run where there is one, "
            f"with the JAX for it (pip install 'jax[cuda13]'), or drop use_gpu."
        ) from error
