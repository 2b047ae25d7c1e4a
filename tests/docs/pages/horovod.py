"""A model for the page on Horovod; then its blocks, in order."""

import torch

import hpctrain
from hpctrain import ScalingConfig
from hpctrain.horovod import HorovodConfig, HorovodTrainer


def make_model():
    model = torch.nn.Linear(1, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


loss, checkpoint = 0.5, None

# block: horovod-train

assert len(trainer.fit().metrics_history) == 2

# block: horovod-elastic

elastic = HorovodTrainer(
    train_loop,
    train_loop_config={"epochs": 2},
    horovod_config=HorovodConfig(max_replacements=1),
    scaling_config=ScalingConfig(num_workers=2),
)
assert len(elastic.fit().metrics_history) == 2
