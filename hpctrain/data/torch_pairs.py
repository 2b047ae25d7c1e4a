"""Pairs of features and labels as torch's tensors, as Ray Data's ``to_torch`` gives them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpctrain.data.arguments import flag, list_of_names, one_name, one_or_more_names
from hpctrain.data.batch import Batch
from hpctrain.data.optional import require
from hpctrain.data.schema import check_columns
from hpctrain.data.tensors import to_torch


@dataclass(frozen=True, kw_only=True)
class TorchPairs:
    """Converts each batch to a pair of features and labels."""

    label: str | None
    """Column of the labels; None for features alone."""
    features: Sequence[str] | Mapping[str, Sequence[str]] | None
    """Columns of one tensor, or several such lists by name, a tensor each. None is all columns but
    the label."""
    unsqueeze_label: bool = True
    """Whether labels have shape ``[rows, 1]``."""

    def __call__(self, batch: Batch) -> tuple[Any, Any]:
        """Return features and labels. Not collective."""
        torch = require("torch", to="for to_torch()", extra="torch")
        tensors = to_torch(batch, dtypes=None, device="cpu")
        if self.label is not None:
            check_columns([self.label], list(tensors))
        label = None if self.label is None else tensors[self.label]
        if label is not None and self.unsqueeze_label and label.ndim == 1:
            label = label.unsqueeze(1)

        def joined(names: Iterable[str]) -> Any:
            names = one_or_more_names("feature_columns", names)
            check_columns(names, list(tensors))
            columns = [tensors[name] for name in names]
            return torch.cat([c.unsqueeze(1) if c.ndim == 1 else c for c in columns], dim=1)

        features = self.features or [name for name in tensors if name != self.label]
        if isinstance(features, Mapping):
            return {name: joined(names) for name, names in features.items()}, label
        return joined(features), label


def iterate_pairs(
    source: Any,
    *,
    label: str | None,
    features: Sequence[str] | Mapping[str, Sequence[str]] | None,
    unsqueeze_label: bool,
    batch_size: int | None,
    drop_last: bool,
    local_shuffle_buffer_size: int | None,
    local_shuffle_seed: int | None,
) -> Any:
    """Return an iterable dataset of torch, of pairs of a `Dataset` or a shard. Not collective."""
    require("torch", to="for to_torch()", extra="torch")
    from torch.utils.data import IterableDataset

    if label is not None:
        one_name("label_column", label)
    if features is not None and not isinstance(features, Mapping):
        features = list_of_names("feature_columns", features)
    collate = TorchPairs(
        label=label,
        features=features,
        unsqueeze_label=flag("unsqueeze_label_tensor", unsqueeze_label),
    )
    pairs = source.iter_torch_batches(
        batch_size=batch_size,
        collate_fn=collate,
        drop_last=drop_last,
        local_shuffle_buffer_size=local_shuffle_buffer_size,
        local_shuffle_seed=local_shuffle_seed,
    )

    class Pairs(IterableDataset[Any]):
        def __iter__(self) -> Iterator[tuple[Any, Any]]:
            return iter(pairs)

    return Pairs()
