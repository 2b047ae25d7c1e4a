"""The block for notebooks shows a run, which is over here."""

from IPython.core.interactiveshell import InteractiveShell

import hpctrain
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig


def train():
    for step in range(3):
        hpctrain.report({"loss": 1 / (step + 1)})


DataParallelTrainer(
    train,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name="resnet", storage_path="hpctrain_runs"),
).fit()
InteractiveShell.instance()
# block: top-notebook
