"""Train while checkpoints are written, and print how long steps take meanwhile.

Every ten steps the whole state is reported. With ``--mode async`` the next steps run while it is
copied and written: only the optimizer waits until its parameters are copied, longest at the first
save, when the memory of the copy is new. With ``--mode sync`` each report returns when its
checkpoint is on disk.
"""

from __future__ import annotations

import argparse
from statistics import median
from typing import Any

from hpctrain import CheckpointConfig, CheckpointUploadMode, RunConfig, ScalingConfig, SlurmConfig
from hpctrain.torch import TorchTrainer


def train(config: dict[str, Any]) -> list[tuple[float, bool]]:
    """Train; return how many seconds each step took, and whether a save was under way."""
    import time

    import torch
    from torch import nn

    import hpctrain.torch

    hpctrain.torch.enable_reproducibility(7)
    width = config["width"]
    layers = [
        part for _ in range(config["layers"]) for part in (nn.Linear(width, width), nn.GELU())
    ]
    model = hpctrain.torch.prepare_model(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    device, first, saved = hpctrain.torch.get_device(), 0, ""
    checkpoint = hpctrain.get_checkpoint()
    progress = {"step": 0}
    if checkpoint:
        hpctrain.torch.load_state(checkpoint, model=model, optimizer=optimizer, progress=progress)
        first, saved = progress["step"], checkpoint.path.name
    taken = []
    for step in range(first + 1, config["steps"] + 1):
        newest = hpctrain.get_checkpoint()
        under_way = saved != ("" if newest is None else newest.path.name)
        begin = time.perf_counter()
        inputs = torch.randn(config["batch_size"], width, device=device)
        loss = (model(inputs) - inputs.roll(1, dims=1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metrics = {"step": step, "loss": loss.item()}
        if step % config["steps_between"] == 0:
            progress["step"], saved = step, f"step-{step}"
            hpctrain.torch.report_state(
                metrics,
                model=model,
                optimizer=optimizer,
                progress=progress,
                checkpoint_dir_name=saved,
                mode=CheckpointUploadMode[config["mode"]],
            )
        else:
            hpctrain.report(metrics)
        taken.append((time.perf_counter() - begin, under_way))
        if hpctrain.should_stop():
            break
    return taken


def main() -> None:
    """Run the training and print its result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1, help="MPI ranks")
    parser.add_argument("--mode", choices=["async", "sync"], default="async")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, default=1024, help="of each layer")
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--nodes", type=int, help="nodes to spread them over, on a cluster")
    parser.add_argument("--storage", default="hpctrain_runs", help="directory of runs")
    parser.add_argument("--name", help="name of the run; the same name resumes it")
    arguments = parser.parse_args()
    result = TorchTrainer(
        train,
        train_loop_config={
            "mode": arguments.mode.upper(),
            "steps": arguments.steps,
            "steps_between": 10,
            "width": arguments.width,
            "layers": arguments.layers,
            "batch_size": 32,
        },
        scaling_config=ScalingConfig(
            num_workers=arguments.workers, slurm=SlurmConfig(nodes=arguments.nodes)
        ),
        run_config=RunConfig(
            name=arguments.name,
            storage_path=arguments.storage,
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    ).fit()
    taken = result.return_value
    during = [seconds for seconds, under_way in taken if under_way]
    usual = median(seconds for seconds, under_way in taken if not under_way)
    print(f"steps           {len(taken)}, {len(during)} of them while a checkpoint was written")
    print(f"a step          {usual * 1e3:.0f} ms", end="")
    print(f", {median(during) * 1e3:.0f} ms while one was written" if during else "")
    longest, step = max((seconds, step) for step, (seconds, _) in enumerate(taken, 1))
    print(f"the longest     {longest * 1e3:.0f} ms, of step {step}")
    print(f"run directory   {result.path}")


if __name__ == "__main__":
    main()
