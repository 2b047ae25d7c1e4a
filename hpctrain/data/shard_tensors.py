"""A shard as TensorFlow's tensors, or as pairs of torch's, as in Ray Data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from hpctrain.data.batch import Batch
from hpctrain.data.optional import require
from hpctrain.data.passes import SizedPasses
from hpctrain.data.tensors import to_tensorflow_batch

if TYPE_CHECKING:
    import tensorflow


class _GivesTensors(Protocol):
    def iter_torch_batches(
        self,
        *,
        batch_size: int | None,
        collate_fn: Callable[[Batch], Any],
        drop_last: bool,
        local_shuffle_buffer_size: int | None,
        local_shuffle_seed: int,
        prefetch_batches: int = 1,
    ) -> SizedPasses[Any]: ...


class ShardTensors:
    """Tensors of TensorFlow, and pairs of torch's."""

    def iter_tf_batches(
        self: _GivesTensors,
        *,
        batch_size: int | None = 256,
        dtypes: tensorflow.DType | Mapping[str, tensorflow.DType] | None = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int = 0,
        prefetch_batches: int = 1,
    ) -> SizedPasses[Any]:
        """Return the batches of the next epoch as dicts of TensorFlow's tensors.

        Not collective, but every rank must give the same arguments.

        Parameters
        ----------
        batch_size
            As in `iter_batches`.
        dtypes
            Type of the tensors, or types by column; None is that of the batches.
        drop_last, local_shuffle_buffer_size, local_shuffle_seed, prefetch_batches
            As in `iter_batches`.
        """
        require("tensorflow", to="for iter_tf_batches()", extra="tensorflow")
        return self.iter_torch_batches(
            batch_size=batch_size,
            collate_fn=partial(to_tensorflow_batch, dtypes=dtypes),
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
            prefetch_batches=prefetch_batches,
        )

    def to_torch(
        self: _GivesTensors,
        *,
        label_column: str | None = None,
        feature_columns: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
        batch_size: int = 1,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int = 0,
        unsqueeze_label_tensor: bool = True,
    ) -> Any:
        """Return an iterable dataset of torch, of pairs of features and labels of this rank.

        Not collective, but every rank must give the same arguments. Each pass is an epoch. See
        `Dataset.to_torch`.
        """
        from hpctrain.data.torch_pairs import iterate_pairs

        return iterate_pairs(
            self,
            label=label_column,
            features=feature_columns,
            unsqueeze_label=unsqueeze_label_tensor,
            batch_size=batch_size,
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
        )
