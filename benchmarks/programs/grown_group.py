"""A run loses a node, and grows when it is back: ``python grown_group.py FOLDER``.

Two ranks a node, with torch. Each writes down when it was in its first step of an attempt, and when
it has made its last one. With an attempt of full size that is the first, ``once``, it ends there.
"""

import sys
import time

from hpctrain import FailureConfig, RunConfig, ScalingConfig, SlurmConfig
from hpctrain.torch import TorchTrainer


def train(config):
    import time
    from pathlib import Path

    import torch

    import hpctrain
    import hpctrain.torch

    context = hpctrain.get_context()
    rank, attempt = context.get_world_rank(), context.world.attempt
    stamps = Path(config["folder"])
    model = hpctrain.torch.prepare_model(torch.nn.Linear(8, 1))
    for step in range(3000):
        model(torch.ones(2, 8)).sum().backward()
        if step == 0:
            text = f"{time.time()} {time.process_time()}"
            (stamps / f"step-{attempt}-{rank}").write_text(text)
        hpctrain.report(
            {"step": step}, hpctrain.Checkpoint.from_dict({"step": step}) if rank == 0 else None
        )
        if config["once"] or attempt == 3:
            return
        if hpctrain.should_stop():
            (stamps / f"left-{attempt}-{rank}").write_text(f"{time.time()}")
            return
        time.sleep(0.2)
    raise RuntimeError("the run did not grow")


if __name__ == "__main__":
    folder, once = sys.argv[1], sys.argv[2:] == ["once"]
    trainer = TorchTrainer(
        train,
        train_loop_config={"folder": folder, "once": once},
        scaling_config=ScalingConfig(
            num_workers=(2, 4),
            elastic_resize_monitor_interval_s=1.0,
            slurm=SlurmConfig(tasks_per_node=2),
        ),
        run_config=RunConfig(
            name="run",
            storage_path=folder,
            verbose=0,
            failure_config=FailureConfig(node_timeout_s=6.0),
        ),
    )
    with open(f"{folder}/fit", "w") as file:
        file.write(f"{time.time()}")
    trainer.fit()
