"""Which GPUs TensorFlow sees."""

from __future__ import annotations

from collections.abc import Sequence

from hpctrain.backend import gpu_indices
from hpctrain.errors import ConfigError


def show_gpus(gpu_ids: Sequence[str], *, visible: Sequence[str]) -> None:
    """Let TensorFlow see these GPUs of the node and no other, nor take memory of them.

    Not collective.

    Parameters
    ----------
    gpu_ids
        Entries of ``CUDA_VISIBLE_DEVICES``; none leaves the CPU.
    visible
        All of its entries.

    Raises
    ------
    ConfigError
        If TensorFlow finds no GPU, or has been computing in this process with others.
    """
    import tensorflow

    found = tensorflow.config.list_physical_devices("GPU")
    if gpu_ids and len(found) != len(visible):
        raise ConfigError(
            f"CUDA_VISIBLE_DEVICES={','.join(visible)}, but TensorFlow {tensorflow.__version__} "
            f"finds {len(found)} GPUs. Install a build for this machine's GPUs and driver "
            f"(pip install 'tensorflow[and-cuda]'), or set use_gpu=False."
        )
    mine = [found[index] for index in gpu_indices(gpu_ids, visible)]
    if mine == tensorflow.config.get_visible_devices("GPU"):
        return
    try:
        tensorflow.config.set_visible_devices(mine, "GPU")
    except RuntimeError as error:
        raise ConfigError(
            f"TensorFlow has been computing in this process and cannot change its GPUs to "
            f"{', '.join(gpu_ids) or 'none'} any more: {error}. Use TensorFlow inside of the "
            f"training function only."
        ) from error
