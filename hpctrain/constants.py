"""Values that scripts and trainers agree on."""

from __future__ import annotations

from typing import Final

TRAIN_DATASET_KEY: Final = "train"
"""Name of the dataset that preprocessors learn from, and that tree trainers train on."""

PREPROCESSOR_KEY: Final = "_preprocessor"
"""Key of a preprocessor in what `Checkpoint.from_dict` is given."""
FS_CHECKPOINT_KEY: Final = "fs_checkpoint"
"""Key of the files, as bytes, in what `Checkpoint.to_dict` makes of a directory."""
MODEL_KEY: Final = "model"
"""Key of the model in what `Checkpoint.from_dict` is given."""
ARCHITECTURE_NAME: Final = "model.architecture"
"""File of the module beside the weights of a model of torch. Equal modules give other bytes in
other processes, so ranks may differ in it."""
MAX_REPR_LENGTH: Final = 120
"""Ray Train's limit for the length of ``repr()`` of trainers, predictors and configurations."""
