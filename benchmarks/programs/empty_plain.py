"""A run without a framework that does nothing: ``python empty_plain.py RANKS [STORAGE]``."""

import sys

from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig


def train():
    pass


if __name__ == "__main__":
    storage = sys.argv[2] if len(sys.argv) > 2 else "."
    trainer = DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=int(sys.argv[1])),
        run_config=RunConfig(name="run", storage_path=storage, verbose=0),
    )
    trainer.fit()
