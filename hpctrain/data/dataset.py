"""`Dataset`: rows of files or of memory, and operations on them, which run when rows are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpctrain.data.arguments import flag, num_parts
from hpctrain.data.operations.aggregated import Aggregated
from hpctrain.data.operations.combined import Combined
from hpctrain.data.operations.consumed import Consumed
from hpctrain.data.operations.mapped import Mapped
from hpctrain.data.operations.refused import Refused
from hpctrain.data.operations.scheduling import say_no_meaning
from hpctrain.data.operations.whole import with_known_rows
from hpctrain.data.operations.written import Written

if TYPE_CHECKING:
    from hpctrain.data.iterator import DataIterator
    from hpctrain.data.split import Tail


class Dataset(Mapped, Combined, Aggregated, Written, Consumed, Refused):
    """Rows with named columns, read when they are asked for.

    It is a description: paths, row ranges and functions. It pickles to kilobytes, independently of
    the size of its files, and each rank of a run reads its own part. Made by the functions of
    `hpctrain.data`; its methods return other datasets and change nothing.
    """

    def shard(
        self, *, rank: int, world_size: int, tail: Tail = "uneven", device: str = "cpu"
    ) -> DataIterator:
        """Return one rank's part.

        Not collective.

        Parameters
        ----------
        rank, world_size
            Which part, of how many.
        tail
            What becomes of rows that do not fill a batch on every rank. ``"uneven"`` gives each
            rank the same number of batches, whose sizes differ by one row at most, so every row is
            there once; a rank without a row gets an empty batch. ``"drop"`` leaves the rest out.
            ``"pad"`` repeats rows until every batch is full.
        device
            Where torch's tensors go by default.
        """
        from hpctrain.data.iterator import DataIterator

        return DataIterator(self, rank=rank, world_size=world_size, tail=tail, device=device)

    def streaming_split(
        self, n: int, *, equal: bool = False, locality_hints: Any = None
    ) -> list[DataIterator]:
        """Return the parts that `n` ranks get.

        Not collective. A trainer does this with its datasets.

        Parameters
        ----------
        n, equal, locality_hints
            As in `split`.

        Raises
        ------
        ConfigError
            As in `split`.
        """
        parts = num_parts(n)
        say_no_meaning("streaming_split()", {"locality_hints": locality_hints})
        known = with_known_rows(self)
        rest = known.source.num_rows % parts if flag("equal", equal) else 0
        whole = known.limit(known.source.num_rows - rest) if rest else known
        return [whole.shard(rank=rank, world_size=parts) for rank in range(parts)]

    def iterator(self) -> DataIterator:
        """Return an iterator of the whole dataset, epoch after epoch. Not collective."""
        return self.shard(rank=0, world_size=1)

    def to_torch(
        self,
        *,
        label_column: str | None = None,
        feature_columns: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
        batch_size: int = 1,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        unsqueeze_label_tensor: bool = True,
    ) -> Any:
        """Return an iterable dataset of torch, of pairs of features and labels.

        Not collective. It gives the whole dataset. A training function uses
        `DataIterator.iter_torch_batches` of its shard.

        Parameters
        ----------
        label_column
            Column of the labels; None for features alone.
        feature_columns
            Columns of one tensor, or several such lists by name, a tensor each. None is all columns
            but the label.
        batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed
            As in `iter_batches`.
        unsqueeze_label_tensor
            Whether labels have shape ``[rows, 1]``.
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

    def to_tf(
        self,
        feature_columns: str | Sequence[str],
        label_columns: str | Sequence[str],
        *,
        batch_size: int = 1,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int = 0,
    ) -> Any:
        """Return a ``tf.data.Dataset`` of pairs of features and labels, of the whole dataset.

        Not collective. A training function uses `DataIterator.to_tf` of its shard.

        Parameters
        ----------
        feature_columns, label_columns
            One name gives a tensor, a list of names a dict of tensors.
        batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed
            As in `DataIterator.iter_batches`.
        """
        return self.iterator().to_tf(
            feature_columns,
            label_columns,
            batch_size=batch_size,
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
        )
