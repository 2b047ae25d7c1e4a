"""A rank with torch is killed, and all start again: ``python killed_torch.py RANKS FOLDER``."""

import sys
import time

from hpctrain import FailureConfig, RunConfig, ScalingConfig
from hpctrain.torch import TorchTrainer


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
    # Otherwise a rank may be ended with the one that is killed before it is here.
    hpctrain.collective.barrier(timeout_s=600)
    if attempt > 1:
        return
    if rank == context.get_world_size() - 1:
        (stamps / "killed").write_text(f"{time.time()}")
        os.kill(os.getpid(), signal.SIGKILL)
    hpctrain.collective.barrier(timeout_s=600)


if __name__ == "__main__":
    ranks, folder = int(sys.argv[1]), sys.argv[2]
    trainer = TorchTrainer(
        train,
        train_loop_config={"folder": folder},
        scaling_config=ScalingConfig(num_workers=ranks),
        run_config=RunConfig(
            name="run",
            storage_path=folder,
            verbose=0,
            failure_config=FailureConfig(max_failures=1),
        ),
    )
    with open(f"{folder}/fit", "w") as file:
        file.write(f"{time.time()}")
    trainer.fit()
