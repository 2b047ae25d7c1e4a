"""A rank is killed: ``python killed_rank.py RANKS NODES FOLDER [SETTLE_S [torch]]``.

All start again. It is killed SETTLE_S seconds after all were in their first step. With ``torch``,
that is a step of a model that they share.
"""

import sys

from hpctrain import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig, SlurmConfig


def train(config):
    import os
    import signal
    import time
    from pathlib import Path

    import hpctrain
    import hpctrain.collective

    if config["torch"]:
        import torch

        import hpctrain.torch

        hpctrain.torch.prepare_model(torch.nn.Linear(8, 1))(torch.ones(2, 8)).sum().backward()
    context = hpctrain.get_context()
    rank, attempt = context.get_world_rank(), context.world.attempt
    stamps = Path(config["folder"])
    (stamps / f"step-{attempt}-{rank}").write_text(f"{time.time()} {time.process_time()}")
    saved = hpctrain.Checkpoint.from_dict({"step": 1}) if rank == 0 else None
    hpctrain.report({"step": 1}, saved)
    if attempt > 1:
        return
    if config["settle_s"]:
        hpctrain.collective.barrier(timeout_s=600)
        # What a run does by itself, once its ranks are at work, has an end by then.
        time.sleep(config["settle_s"])
    if rank == context.get_world_size() - 1:
        (stamps / "killed").write_text(f"{time.time()}")
        os.kill(os.getpid(), signal.SIGKILL)
    # The others wait for it, as in any collective.
    hpctrain.collective.barrier(timeout_s=600)


if __name__ == "__main__":
    ranks, nodes, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    settle_s = float(sys.argv[4]) if len(sys.argv) > 4 else 0.0
    if has_torch := sys.argv[5:] == ["torch"]:
        from hpctrain.torch import TorchTrainer as Trainer
    else:
        Trainer = DataParallelTrainer
    Trainer(
        train,
        train_loop_config={"folder": folder, "settle_s": settle_s, "torch": has_torch},
        scaling_config=ScalingConfig(num_workers=ranks, slurm=SlurmConfig(nodes=nodes)),
        run_config=RunConfig(
            name="run",
            storage_path=folder,
            verbose=0,
            failure_config=FailureConfig(max_failures=1),
        ),
    ).fit()
