"""A job that never starts, a job that hangs, and a job that is queued again: see "Three acts".

Both mistakes are in it on purpose: the account is misspelt, and ranks leave out a collective.
"""

from hpctrain import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, SlurmConfig
from hpctrain.torch import TorchTrainer


def average(value, epoch, rank):
    import torch
    from torch import distributed

    total = torch.tensor([value])
    if epoch < 2 or rank == 0:  # for the printed line of rank 0, somebody thought
        distributed.all_reduce(total)
    return total.item() / distributed.get_world_size()


def train(config):
    import time

    import torch

    import hpctrain
    from hpctrain import torch as ht

    rank = hpctrain.get_context().get_world_rank()
    torch.manual_seed(rank)
    x = torch.randn(256, 8)
    model = ht.prepare_model(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    progress = {"epoch": 0}
    if checkpoint := hpctrain.get_checkpoint():
        ht.load_state(checkpoint.path, model=model, optimizer=optimizer, progress=progress)
    while progress["epoch"] < config["epochs"]:
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.1)
        mean = average(loss.item(), progress["epoch"], rank)
        progress["epoch"] += 1
        ht.report_state({"loss": mean}, model=model, optimizer=optimizer, progress=progress)


trainer = TorchTrainer(
    train,
    train_loop_config={"lr": 0.05, "epochs": 60},
    scaling_config=ScalingConfig(
        num_workers=3, slurm=SlurmConfig(account="physiks", time="00:10:00")
    ),
    run_config=RunConfig(
        name="acts",
        checkpoint_config=CheckpointConfig(num_to_keep=2),
        failure_config=FailureConfig(hang_timeout_s=20),
    ),
)

if __name__ == "__main__":
    trainer.fit()
