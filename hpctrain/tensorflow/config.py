"""`TensorflowConfig`: which Keras ``tf.keras`` is."""

from __future__ import annotations

from dataclasses import dataclass

from hpctrain.backend import Backend, BackendConfig
from hpctrain.checks import fields_by_name
from hpctrain.errors import ConfigError


@fields_by_name
@dataclass(frozen=True, kw_only=True)
class TensorflowConfig(BackendConfig):
    """How TensorFlow is set up."""

    legacy_keras: bool = True
    """Whether ``tf.keras`` is Keras 2, of the package tf_keras. Its ``fit()`` trains under
    ``MultiWorkerMirroredStrategy``; that of Keras 3 does not."""

    def __post_init__(self) -> None:
        """Check every field."""
        legacy_keras: object = self.legacy_keras
        if not isinstance(legacy_keras, bool):
            raise ConfigError(
                f"TensorflowConfig(legacy_keras={legacy_keras!r}): True for Keras 2, or False for "
                f"Keras 3."
            )

    @property
    def backend_cls(self) -> type[Backend]:
        """Class of the backend."""
        from hpctrain.tensorflow.backend import TensorflowBackend

        return TensorflowBackend
