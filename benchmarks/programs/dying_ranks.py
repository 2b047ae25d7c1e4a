"""A rank dies in each attempt: ``python dying_ranks.py RANKS NODES FOLDER DEATHS``.

Each attempt waits until there is a file, ``go-ATTEMPT``.
"""

import sys

from hpctrain import (
    BackendConfig,
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    SlurmConfig,
)


class Config(BackendConfig):
    preload = ("hpctrain.worker.main", "hpctrain.worker.train", "cloudpickle", "numpy")


def train(config):
    import os
    import signal
    import time
    from pathlib import Path

    import hpctrain
    import hpctrain.collective

    context, folder = hpctrain.get_context(), Path(config["folder"])
    rank, attempt = context.get_world_rank(), context.world.attempt
    with open(f"/proc/{os.getppid()}/cmdline") as file:
        is_forked = "hpctrain.worker.fork_server" in file.read()
    # A run that makes no progress is stopped.
    saved = hpctrain.Checkpoint.from_dict({"attempt": attempt}) if rank == 0 else None
    hpctrain.report({"attempt": attempt}, saved)
    (folder / f"here-{attempt}-{rank}-{is_forked}").touch()
    while not (folder / f"go-{attempt}").exists():
        time.sleep(0.01)
    if attempt > config["deaths"]:
        return
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    hpctrain.collective.barrier(timeout_s=600)


if __name__ == "__main__":
    ranks, nodes, folder, deaths = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    DataParallelTrainer(
        train,
        train_loop_config={"folder": folder, "deaths": deaths},
        backend_config=Config(),
        scaling_config=ScalingConfig(num_workers=ranks, slurm=SlurmConfig(nodes=nodes)),
        run_config=RunConfig(
            name="run",
            storage_path=folder,
            verbose=0,
            failure_config=FailureConfig(max_failures=deaths),
        ),
    ).fit()
