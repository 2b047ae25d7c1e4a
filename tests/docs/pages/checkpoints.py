"""The blocks on checkpoints, in the order of the page, in runs of two ranks."""

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.utils.data import DataLoader, TensorDataset

import hpctrain
import hpctrain.torch
from hpctrain import (
    Checkpoint,
    CheckpointConfig,
    CheckpointUploadMode,
    DataParallelTrainer,
    RunConfig,
    ScalingConfig,
    SlurmConfig,
    ValidationConfig,
    ValidationTaskConfig,
)
from hpctrain.torch import TorchTrainer


def make_model():
    torch.manual_seed(1)
    return torch.nn.Linear(1, 1)


def prepare():
    model = hpctrain.torch.prepare_model(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    rows = TensorDataset(torch.ones(200, 1), torch.ones(200, 1))
    loader = hpctrain.torch.prepare_data_loader(DataLoader(rows, batch_size=1))
    return model, optimizer, scheduler, loader


def train(config):
    model, optimizer, scheduler, loader = prepare()
    loss = model(torch.ones(1, 1)).sum()
    rank, plain = hpctrain.get_context().get_world_rank(), model.module

    # block: checkpoints-loop


def train_with_state(config):
    model, optimizer, scheduler, loader = prepare()
    loss = model(torch.ones(1, 1)).sum()

    # block: checkpoints-state


def write_states(config):
    model, optimizer, _, _ = prepare()
    loss = model(torch.ones(1, 1)).sum()

    # block: checkpoints-save

    loss.backward()
    optimizer.step()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    directory = config["directory"]

    # block: checkpoints-dcp

    ema = torch.nn.Linear(1, 1)
    directory = f"{config['directory']}-2"
    hpctrain.torch.save_state(directory, model=model, optimizer=optimizer, ema=ema)

    # block: checkpoints-load


def fit(function, name):
    return TorchTrainer(
        function,
        train_loop_config={"epochs": 2, "directory": "state"},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name=name, storage_path="runs"),
    ).fit()


whole = fit(train, "run")
assert len(whole.metrics_history) == 2
checkpoint = whole.checkpoint
model = make_model()

# block: checkpoints-read

result = fit(train_with_state, "state-run")
assert len(result.metrics_history) == 2
states = fit(write_states, "states")
assert (states.checkpoint.path / "model.pt").exists()

# block: checkpoints-export-state

assert set(weights) == {"weight", "bias"}

# block: checkpoints-elsewhere

assert set(safetensors.torch.load_file("model.safetensors")) == {"weight", "bias"}


def train_epoch(epoch):
    return {"epoch": epoch}


def accuracy(model, folds):
    return [0.5, 0.9, 0.7][model["epoch"]] * folds / 4


# block: checkpoints-validate

assert [metrics["accuracy"] for metrics in result.metrics_history] == [0.5, 0.9, 0.7]
assert [metrics["accuracy"] for _, metrics in result.best_checkpoints] == [0.7, 0.9]

# block: checkpoints-validate-in-jobs

assert validation_config.slurm_config.partition == "gpu"
