"""Several runs, on this machine."""

import hpctrain
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig


def train(config):
    hpctrain.report({"rate": config["rate"]})


def make_trainer(rate):
    return DataParallelTrainer(
        train,
        train_loop_config={"rate": rate},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name=f"rate-{rate}", storage_path="runs"),
    )


# block: several-runs-of-a-script
assert len(done) == 1
assert {handle.result().metrics["rate"] for handle in done + running} == {0.1, 0.01}
