"""Trees from a training function of the user's, on two nodes, with a rank that is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain import Result
from hpctrain.testing.slurm import VirtualCluster
from tests.processes import run_python

SCRIPT = """
import os, signal, sys
import hpctrain
from hpctrain import FailureConfig, RunConfig, ScalingConfig, SlurmConfig
from hpctrain.lightgbm import LightGBMTrainer
from hpctrain.xgboost import XGBoostTrainer

ROUNDS = 9

def die_in_round(round_number):
    world = hpctrain.get_context().world
    if (round_number, world.attempt, world.world_rank) == (5, 1, 3):
        os.kill(os.getpid(), signal.SIGKILL)

def newest_model(trainer):
    checkpoint = hpctrain.get_checkpoint()
    return None if checkpoint is None else trainer.get_model(checkpoint)

def boost_with_xgboost():
    import xgboost
    from xgboost.callback import TrainingCallback
    from hpctrain.xgboost import TrainReportCallback

    class Die(TrainingCallback):
        def after_iteration(self, model, epoch, evals_log):
            die_in_round(model.num_boosted_rounds())
            return False

    shard = hpctrain.get_dataset_shard("train")
    matrix = xgboost.QuantileDMatrix(shard.drop(columns="target"), label=shard["target"])
    before = newest_model(XGBoostTrainer)
    done = 0 if before is None else before.num_boosted_rounds()
    xgboost.train(
        {"objective": "binary:logistic", "max_depth": 3, "eval_metric": "logloss"},
        matrix,
        num_boost_round=ROUNDS - done,
        evals=[(matrix, "train")],
        xgb_model=before,
        callbacks=[Die(), TrainReportCallback(frequency=3)],
        verbose_eval=False,
    )
    return done, len(shard)

def boost_with_lightgbm():
    import lightgbm
    from hpctrain.lightgbm import TrainReportCallback, get_network_params

    shard = hpctrain.get_dataset_shard("train")
    params = {"objective": "binary", "num_leaves": 7, "verbose": -1, **get_network_params()}
    rows = lightgbm.Dataset(shard.drop(columns="target"), shard["target"], free_raw_data=False)
    before = newest_model(LightGBMTrainer)
    done = 0 if before is None else before.current_iteration()
    lightgbm.train(
        params,
        rows,
        num_boost_round=ROUNDS - done,
        valid_sets=[rows],
        valid_names=["train"],
        init_model=before,
        callbacks=[lambda env: die_in_round(env.iteration + 1), TrainReportCallback(frequency=3)],
    )
    return done, len(shard)

if __name__ == "__main__":
    from sklearn.datasets import load_breast_cancer
    storage, library = sys.argv[1:]
    trainer, loop = {
        "xgboost": (XGBoostTrainer, boost_with_xgboost),
        "lightgbm": (LightGBMTrainer, boost_with_lightgbm),
    }[library]
    trainer(
        loop,
        datasets={"train": load_breast_cancer(as_frame=True).frame},
        scaling_config=ScalingConfig(num_workers=4, slurm=SlurmConfig(nodes=2)),
        run_config=RunConfig(
            storage_path=storage, name="run", failure_config=FailureConfig(max_failures=1)
        ),
    ).fit()
"""


@pytest.mark.slurm
@pytest.mark.parametrize("library", [pytest.param("xgboost", marks=pytest.mark.long), "lightgbm"])
def test_a_killed_rank_costs_the_rounds_since_the_newest_checkpoint(
    virtual_slurm: VirtualCluster, tmp_path: Path, library: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run_python(
        script,
        tmp_path,
        library,
        environ={**virtual_slurm.environ, "HPCTRAIN_LAUNCHER": ""},
        timeout_s=150,
    )
    result = Result.from_path(tmp_path / "run")
    assert (len(result.nodes), len(result.attempts), len(result.job_ids)) == (2, 2, 1)
    assert result.return_value == (3, 143), "went on after 3 rounds, with a quarter of 569 rows"
    losses = [next(v for k, v in m.items() if "logloss" in k) for m in result.metrics_history]
    assert len(set(losses)) == 9
    assert losses == sorted(losses, reverse=True)
