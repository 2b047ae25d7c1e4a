"""Sharing a dataset out over the ranks."""

from __future__ import annotations

from hpctrain.data.shard import shard_dataset as shard_dataset

__all__ = ["shard_dataset"]
