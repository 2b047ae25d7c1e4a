"""`TorchVisionPreprocessor`: transforms of torchvision, and other functions of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hpctrain.errors import ConfigError
from hpctrain.preprocessors.batches import Array, NumpyBatch
from hpctrain.preprocessors.columns import _PerColumn


class TorchVisionPreprocessor(_PerColumn):
    """Applies a transform of torchvision, or any function of a tensor, to columns of images.

    Parameters
    ----------
    columns
        Columns of arrays.
    transform
        Takes a tensor, or an array if it does not accept tensors, such as ``ToTensor``; returns a
        tensor or an array.
    output_columns
        Names of the result columns; by default the columns are replaced.
    batched
        Whether it takes all images of a batch at once.
    """

    _is_fittable = False

    def __init__(
        self,
        columns: list[str],
        transform: Callable[[Any], Any],
        output_columns: list[str] | None = None,
        batched: bool = False,
    ) -> None:
        if not callable(transform):
            raise ConfigError(
                f"transform={transform!r} cannot be called. Give a function of a tensor."
            )
        self._take_columns(columns, output_columns)
        self.transform_fn = transform
        self.batched = batched

    @property
    def torchvision_transform(self) -> Callable[[Any], Any]:
        """The transform."""
        return self.transform_fn

    def _configuration(self) -> dict[str, Any]:
        return {
            "columns": self.columns,
            "transform": self.transform_fn,
            "output_columns": self.output_columns,
            "batched": self.batched,
        }

    def _transform_columns(self, columns: NumpyBatch) -> Mapping[str, Any]:
        outputs = {}
        for name, output in self._names():
            images = columns[name]
            # Transform one image of zeros to learn type and shape of the result for an empty batch.
            is_empty = not len(images) and images.ndim > 1
            given = np.zeros((1, *images.shape[1:]), images.dtype) if is_empty else images
            if self.batched or not len(given):
                made = self._apply(given) if len(given) else given
            else:
                made = np.stack([self._apply(image) for image in given])
            outputs[output] = made[: len(images)]
        return outputs

    def _apply(self, array: Array) -> Array:
        import torch

        try:
            # torch.tensor copies: the array may be a read-only view of the dataset.
            made = self.transform_fn(torch.tensor(array))
        except TypeError as error:
            made = self._apply_to_array(array, error)
        return made.numpy() if isinstance(made, torch.Tensor) else np.asarray(made)

    def _apply_to_array(self, array: Array, of_tensor: TypeError) -> Any:
        """Return the result for an array, where a tensor gave a TypeError."""
        try:
            return self.transform_fn(array)
        except Exception:
            # It is not the tensor then, but the transform. What torchvision says of a tensor is of
            # no use to a transform that takes arrays.
            if _is_raised_by(of_tensor, "torchvision"):
                raise
            raise of_tensor from None


def _is_raised_by(error: BaseException, package: str) -> bool:
    """Return whether the innermost frame of an error is in a package."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return False
    return str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0] == package
