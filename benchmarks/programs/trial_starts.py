"""Trials of a sweep, one after the other: ``python trial_starts.py RANKS NODES FOLDER TRIALS``.

With 0 trials the same training once, by ``fit()``. Each rank writes down when it was in its first
step, and the CPU time that it took until then.
"""

import sys

from hpctrain import RunConfig, ScalingConfig, SlurmConfig, tune
from hpctrain.torch import TorchTrainer


def train(config):
    import time
    from pathlib import Path

    import torch

    import hpctrain
    import hpctrain.torch

    context = hpctrain.get_context()
    hpctrain.torch.prepare_model(torch.nn.Linear(8, 1))(torch.ones(2, 8)).sum().backward()
    name = f"step-{config['number']}-{context.get_world_rank()}"
    Path(config["folder"], name).write_text(f"{time.time()} {time.process_time()}")


if __name__ == "__main__":
    ranks, nodes, folder, trials = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
    trainer = TorchTrainer(
        train,
        train_loop_config={"folder": folder, "number": 0},
        scaling_config=ScalingConfig(num_workers=ranks, slurm=SlurmConfig(nodes=nodes)),
        run_config=RunConfig(name="run", storage_path=folder, verbose=0),
    )
    if trials == "0":
        trainer.fit()
    else:
        numbers = tune.grid_search(list(range(1, int(trials) + 1)))
        results = tune.Tuner(
            trainer,
            param_space={"train_loop_config": {"number": numbers}},
            tune_config=tune.TuneConfig(max_concurrent_trials=1),
            run_config=RunConfig(name="sweep", storage_path=folder, verbose=0),
        ).fit()
        assert not results.errors, results.errors
