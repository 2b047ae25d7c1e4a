"""Values that scripts and trainers agree on."""

from __future__ import annotations

from typing import Final

TRAIN_DATASET_KEY: Final = "train"
"""Name of the dataset that preprocessors learn from, and that tree trainers train on."""
