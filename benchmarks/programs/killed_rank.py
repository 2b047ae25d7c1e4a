"""A rank is killed, all start again: ``python killed_rank.py RANKS NODES FOLDER``."""

import sys

from hpctrain import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig, SlurmConfig


def train(config):
    import os
    import signal
    import time
    from pathlib import Path

    import hpctrain
    import hpctrain.collective

    context = hpctrain.get_context()
    rank, attempt = context.get_world_rank(), context.world.attempt
    stamps = Path(config["folder"])
    (stamps / f"step-{attempt}-{rank}").write_text(f"{time.time()} {time.process_time()}")
    saved = hpctrain.Checkpoint.from_dict({"step": 1}) if rank == 0 else None
    hpctrain.report({"step": 1}, saved)
    if attempt > 1:
        return
    if rank == context.get_world_size() - 1:
        (stamps / "killed").write_text(f"{time.time()}")
        os.kill(os.getpid(), signal.SIGKILL)
    # The others wait for it, as in any collective.
    hpctrain.collective.barrier(timeout_s=600)


if __name__ == "__main__":
    ranks, nodes, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    DataParallelTrainer(
        train,
        train_loop_config={"folder": folder},
        scaling_config=ScalingConfig(num_workers=ranks, slurm=SlurmConfig(nodes=nodes)),
        run_config=RunConfig(
            name="run",
            storage_path=folder,
            verbose=0,
            failure_config=FailureConfig(max_failures=1),
        ),
    ).fit()
