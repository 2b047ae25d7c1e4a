"""Steps whose ranks are killed: ``python useful_steps.py FOLDER STEPS EVERY STATE_MIB STEP_S``.

Each of two ranks has half of an Adam's state, sharded as FSDP2 shards it. A step is a wait, as
a host waits for its GPU to go forward and backward, the real optimizer, and the rest of its length.
"""

import json
import sys

from hpctrain import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from hpctrain.torch import TorchTrainer


def train(config):
    import os
    import time
    from pathlib import Path

    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    import hpctrain
    import hpctrain.torch
    from hpctrain import CheckpointUploadMode

    entered = time.time()
    context = hpctrain.get_context()
    rank, folder = context.get_world_rank(), Path(config["folder"])
    mesh = init_device_mesh("cpu", (context.get_world_size(),))

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            # Parameter and Adam's two averages, each float32 of a MiB times 4. As of a model that
            # no rank could hold, each rank makes its own part.
            for i in range(config["state_mib"] // 12):
                mine = torch.full((1024 // mesh.size(), 1024), 1.0)
                part = DTensor.from_local(mine, mesh, [Shard(0)], run_check=False)
                self.register_parameter(f"w{i:03d}", torch.nn.Parameter(part))

    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    gradient = torch.full(model.w000.to_local().shape, 0.5)
    for parameter in model.parameters():
        parameter.grad = DTensor.from_local(gradient, mesh, [Shard(0)], run_check=False)
    first = 0
    checkpoint = hpctrain.get_checkpoint()
    begin = time.time()
    if checkpoint is not None:
        hpctrain.torch.load_state(checkpoint, model=model, optimizer=optimizer)
        first = int(next(iter(optimizer.state.values()))["step"])
    (folder / f"pid-{rank}").write_text(str(os.getpid()))

    def note(**event):
        with open(folder / f"steps-{rank}.jsonl", "a") as lines:
            print(json.dumps(event), file=lines)

    note(entered=entered, loaded=time.time() - begin)
    for step in range(first, config["steps"]):
        begin = time.time()
        # Forward and backward: there is no GPU.
        time.sleep(config["step_s"] * 2 / 3)
        optimizer.step()
        rest = config["step_s"] - (time.time() - begin)
        if rest > 0:
            time.sleep(rest)
        worked = time.time() - begin
        if (step + 1) % config["every"] == 0:
            hpctrain.torch.report_state(
                {"step": step + 1},
                model=model,
                optimizer=optimizer,
                mode=CheckpointUploadMode.ASYNC,
            )
        note(step=step, end=time.time(), worked=worked)


if __name__ == "__main__":
    folder, steps, every, state_mib, step_s = sys.argv[1:]
    TorchTrainer(
        train,
        train_loop_config={
            "folder": folder,
            "steps": int(steps),
            "every": int(every),
            "state_mib": int(state_mib),
            "step_s": float(step_s),
        },
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="run",
            storage_path=folder,
            verbose=0,
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            failure_config=FailureConfig(max_failures=-1),
        ),
    ).fit()
