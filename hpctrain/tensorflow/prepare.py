"""`prepare_dataset_shard`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpctrain.worker import context

if TYPE_CHECKING:
    import tensorflow


def prepare_dataset_shard(tf_dataset_shard: tensorflow.data.Dataset) -> tensorflow.data.Dataset:
    """Return a ``tf.data.Dataset`` that a strategy does not split over the ranks once more.

    Not collective. A strategy takes a batch for that of all ranks together, of which each computes
    its part in a step: this rank's batch of 64 rows is 4 steps of 16 rows, if there are 4 ranks.

    Parameters
    ----------
    tf_dataset_shard
        This rank's part, as `hpctrain.data.DataIterator.to_tf` gives it. Every rank must have the
        same number of batches.
    """
    import tensorflow

    # A batch of unknown length is always cut into as many pieces as there are ranks. One that
    # TensorFlow knows the length of may not be, if it is the last, and ranks would have unlike
    # numbers of steps.
    unknown = tf_dataset_shard.map(
        _same_tuple if isinstance(tf_dataset_shard.element_spec, tuple) else _same
    )
    options = tensorflow.data.Options()
    options.experimental_distribute.auto_shard_policy = (
        tensorflow.data.experimental.AutoShardPolicy.OFF
    )
    prepared = unknown.with_options(options)
    num_batches = tf_dataset_shard.cardinality()
    if num_batches >= 0 and context.is_active():
        # Keras asks this for the number of steps. Where it does not know, it finds the end of the
        # data in the middle of a step, of which the optimizer then has counted a part, on some
        # ranks and not on others.
        num_steps = num_batches * context.get_context().get_world_size()
        prepared.cardinality = lambda: num_steps
    return prepared


def _same(part: Any) -> Any:
    return part


def _same_tuple(*parts: Any) -> Any:
    return parts
