"""What rank 0 writes by itself."""

import hpctrain
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig

# block: tracking-loggers

# block: tracking-prometheus

# block: tracking-setup


def train():
    step, loss = 1, 0.5

    # block: tracking-rank-0


result = DataParallelTrainer(
    train,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name="by-hand", storage_path="runs"),
).fit()
(table,) = (result.path / "artifacts").rglob("metrics.csv")
assert "0.5" in table.read_text()
