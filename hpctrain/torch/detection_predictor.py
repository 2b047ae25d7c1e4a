"""`TorchDetectionPredictor`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpctrain.errors import ConfigError
from hpctrain.torch.predictor import TorchPredictor


class TorchDetectionPredictor(TorchPredictor):
    """Scores images with a detection model as torchvision has them.

    Such a model takes a list of images and returns a dict of tensors for each, with as many rows as
    it found objects. The predictions are columns: ``pred_boxes``, ``pred_labels``, ``pred_scores``
    and what else it returns, an array for each image. A `hpctrain.predict.BatchPredictor` has no
    output for arrays of several shapes: for that, let a subclass give each image as many objects.

    Its arguments are those of `hpctrain.torch.TorchPredictor`.
    """

    def _predict_numpy(self, data: Any, dtype: Any = None, **kwargs: Any) -> Any:
        import torch

        if isinstance(data, Mapping):
            if len(data) != 1:
                raise ConfigError(
                    f"{type(self).__name__} takes one column of images, not {len(data)}: "
                    f"{', '.join(data)}. With a BatchPredictor, name it in feature_columns=[...]."
                )
            (data,) = data.values()
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise ConfigError(
                f"dtype={dtype!r} is a {type(dtype).__name__}, and no torch.dtype such as "
                f"torch.float32."
            )
        with torch.inference_mode():
            images = [self._to_tensor(np.asarray(image), dtype) for image in data]
            found = self.call_model(images, **kwargs)  # type: ignore[arg-type]
        names = list(dict.fromkeys(name for one in found for name in one))
        return {f"pred_{name}": _as_column([one[name] for one in found]) for name in names}


def _as_column(tensors: list[Any]) -> np.ndarray[Any, Any]:
    """Return arrays of any lengths as one column with an array for each row."""
    column = np.empty(len(tensors), dtype=object)
    for index, tensor in enumerate(tensors):
        column[index] = tensor.detach().cpu().numpy()
    return column
