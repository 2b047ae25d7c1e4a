"""`TensorflowConfig`: which Keras ``tf.keras`` is."""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.backend import BackendConfig
from hpctrain.rules import checked, kind


@checked(
    legacy_keras=kind(bool),
)
@dataclass(frozen=True, kw_only=True)
class TensorflowConfig(BackendConfig):
    """How TensorFlow is set up."""

    legacy_keras: bool = True
    """Whether ``tf.keras`` is Keras 2, of the package tf_keras. Its ``fit()`` trains under
    ``MultiWorkerMirroredStrategy``; that of Keras 3 does not."""

    _backend_path = "hpctrain.tensorflow.backend.TensorflowBackend"
