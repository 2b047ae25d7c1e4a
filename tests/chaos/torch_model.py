"""The torch model of the suite: DDP with dropout, saved in the middle of epochs.

``python torch_model.py --workers 2`` saves with torch.save; with ``--states`` it reports its state,
by turns SYNC and ASYNC.
"""

import argparse

from hpctrain import FailureConfig, RunConfig, ScalingConfig
from hpctrain.torch import TorchTrainer


def train(config):
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    import hpctrain.torch
    from hpctrain import Checkpoint, CheckpointUploadMode

    hpctrain.torch.enable_reproducibility(7)
    features = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    rows = TensorDataset(features, features.sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 1))
    checkpoint = hpctrain.get_checkpoint()
    if checkpoint is not None and not config["states"]:
        with checkpoint.as_directory() as folder:
            model.load_state_dict(torch.load(f"{folder}/model.pt", weights_only=True))
    parallel = hpctrain.torch.prepare_model(model)
    optimizer = torch.optim.AdamW(parallel.parameters())
    if checkpoint is not None and config["states"]:
        hpctrain.torch.load_state(checkpoint, model=parallel, optimizer=optimizer)
    loader = hpctrain.torch.prepare_data_loader(DataLoader(rows, batch_size=8, shuffle=True))
    loop = hpctrain.torch.loop_state(
        loader=loader, optimizer=None if config["states"] else optimizer
    )
    loop.restore(checkpoint)
    for epoch in loop.epochs(2):
        for batch, target in loop.batches():
            loss = nn.functional.mse_loss(parallel(batch), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            metrics = {"epoch": epoch, "step": loop.step, "loss": loss.item()}
            # Four batches an epoch: mostly in the middle of one.
            if loop.step % 3:
                hpctrain.report(metrics)
                continue
            if config["states"]:
                hpctrain.torch.report_state(
                    metrics,
                    model=parallel,
                    optimizer=optimizer,
                    loop=loop,
                    mode=CheckpointUploadMode.SYNC if loop.step % 2 else CheckpointUploadMode.ASYNC,
                )
                continue
            with hpctrain.checkpoint_dir() as folder:
                loop.save(folder)
                if hpctrain.get_context().get_world_rank() == 0:
                    torch.save(model.state_dict(), f"{folder}/model.pt")
                hpctrain.report(metrics, Checkpoint.from_directory(folder))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--states", action="store_true", help="save with report_state")
    options = parser.parse_args()
    TorchTrainer(
        train,
        train_loop_config={"states": options.states},
        scaling_config=ScalingConfig(num_workers=options.workers),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=3)),
    ).fit()
