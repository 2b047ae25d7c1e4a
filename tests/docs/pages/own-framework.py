"""The page on backends: its trainer, with the training function of the example."""

import sys

sys.path.insert(0, "EXAMPLES")
from own_framework import train_digits as train_for

train_digits = lambda: train_for({"steps": 3, "lr": 0.5})  # noqa: E731

# block: own-framework-train
