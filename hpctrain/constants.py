"""Values that scripts and trainers agree on."""

from __future__ import annotations

from typing import Final

TRAIN_DATASET_KEY: Final = "train"
"""Name of the dataset on which preprocessors are fitted, and tree trainers train."""

PREPROCESSOR_KEY: Final = "_preprocessor"
"""Key of a preprocessor in the argument of `Checkpoint.from_dict`."""
FS_CHECKPOINT_KEY: Final = "fs_checkpoint"
"""Key of the files, as bytes, in the result of `Checkpoint.to_dict` for a directory."""
MODEL_KEY: Final = "model"
"""Key of the model in the argument of `Checkpoint.from_dict`."""
ARCHITECTURE_NAME: Final = "model.architecture"
"""File of the pickled module next to the weights of a torch model. Equal modules pickle to
different bytes in different processes, so ranks may differ in it."""
MAX_REPR_LENGTH: Final = 120
"""Ray Train's limit for the length of ``repr()`` of trainers, predictors and configurations."""
