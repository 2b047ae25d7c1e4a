"""The backend: TF_CONFIG for the ranks that MPI brought together."""

from __future__ import annotations

import atexit
import json
import socket
import traceback
from typing import TYPE_CHECKING

from hpctrain.backend import Backend, BackendContext
from hpctrain.errors import ConfigError
from hpctrain.tensorflow.device import show_gpus

if TYPE_CHECKING:
    from hpctrain.tensorflow.config import TensorflowConfig

# Of the process, as TensorFlow's server is. It cannot be stopped, so a second run uses it again.
_port: socket.socket | None = None


class TensorflowBackend(Backend):
    """Says in TF_CONFIG where all ranks are: what ``MultiWorkerMirroredStrategy()`` reads.

    TensorFlow's worker is the MPI rank. It listens on a port that the kernel chose, without
    authentication: any process that reaches the node's network can speak to it.
    """

    def on_start(self, context: BackendContext, config: TensorflowConfig) -> None:
        """Export TF_CONFIG, and choose Keras and GPUs. Collective.

        One rank alone gets no TF_CONFIG: the strategy is then one of a single worker, which needs
        no server, and can be made again and again in one process.

        Raises
        ------
        ConfigError
            If TensorFlow or tf_keras is missing, or one of them was used before in another way.
        """
        # Before the import: it loads the Keras that this names.
        context.export(TF_USE_LEGACY_KERAS="1" if config.legacy_keras else "0", TF_CONFIG=None)
        try:
            import tensorflow  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                f"the workers cannot import tensorflow: {error}. Install it where the workers run: "
                f"pip install 'hpctrain[tensorflow]'."
            ) from error
        _check_keras(config)
        show_gpus(context.gpu_ids, visible=context.visible_gpu_ids)
        world = context.world
        if world.world_size > 1:
            address = f"{context.reachable_address()}:{_reserve_port()}"
            cluster = {"worker": context.comm.allgather(address)}
            task = {"type": "worker", "index": world.world_rank}
            context.export(TF_CONFIG=json.dumps({"cluster": cluster, "task": task}))

    def on_shutdown(self, context: BackendContext, config: TensorflowConfig) -> None:
        """Wait until no rank needs another one. Collective."""
        context.comm.barrier()

    def explain(self, error: Exception) -> Exception | None:
        """Say what to do where Keras 3 cannot train, or the strategy came late. Not collective."""
        if "Collective ops must be configured at program startup" in str(error):
            return ConfigError(
                "MultiWorkerMirroredStrategy() has to be the first thing of TensorFlow that the "
                "training function uses: make it before datasets, tensors and models."
            )
        frames = traceback.extract_tb(error.__traceback__)
        in_keras_3 = any("/keras/src/" in frame.filename for frame in frames)
        if not in_keras_3 or "values.PerReplica" not in str(error):
            return None
        return ConfigError(
            "fit(), evaluate() and predict() of Keras 3 fail under MultiWorkerMirroredStrategy: "
            "they take what is spread over ranks for a tensor. Train with Keras 2, which "
            "tensorflow.keras is by default (TensorflowConfig(legacy_keras=True)) if it is "
            "imported inside of the training function; 'import tf_keras' names it anywhere. Or "
            "keep the model of Keras 3, and write the loop with strategy.run(): "
            "docs/tensorflow.rst has one."
        )


def _reserve_port() -> int:
    """Return a port that no other process gets while this one lives. Not collective.

    TensorFlow listens on it later, when the training function makes the strategy. Both sockets say
    SO_REUSEADDR (gRPC always does), so both may be bound to it while this one does not listen.
    """
    global _port
    if _port is None:
        _port = socket.socket()
        _port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _port.bind(("", 0))
        atexit.register(_port.close)
    return int(_port.getsockname()[1])


def _check_keras(config: TensorflowConfig) -> None:
    """Hold that ``tf.keras`` is what the configuration says. Not collective."""
    import tensorflow

    if config.legacy_keras:
        try:
            import tf_keras  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                f"the workers cannot import tf_keras, which is Keras 2: {error}. pip install "
                f"tf_keras=={tensorflow.__version__}, or set TensorflowConfig(legacy_keras=False) "
                f"if the training function has a loop of its own."
            ) from error
    # TensorFlow looks at the variable when tf.keras is used first, and never again.
    if tensorflow.keras.Model.__module__.startswith("tf_keras") != config.legacy_keras:
        is_now, wanted = ("3", "2") if config.legacy_keras else ("2", "3")
        raise ConfigError(
            f"tensorflow.keras is Keras {is_now} in this process already, and "
            f"TensorflowConfig(legacy_keras={config.legacy_keras}) wants Keras {wanted}. Use it "
            f"inside of the training function only, or set "
            f"TF_USE_LEGACY_KERAS={int(config.legacy_keras)} where the script is started."
        )
