"""A trainer of hpctrain on two ranks: [--network NETWORK] LIBRARY DATA OUTPUT."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

from boost_case import PARAMS, ROUNDS, cpu_s, say

import hpctrain
from hpctrain import RunConfig, ScalingConfig
from hpctrain.data import read_hdf5
from hpctrain.lightgbm import LightGBMConfig, LightGBMTrainer
from hpctrain.lightgbm.boost import LightGBMBoosting
from hpctrain.xgboost import XGBoostTrainer
from hpctrain.xgboost.boost import XGBoostBoosting


def enter() -> float:
    """Write down when this rank begins; return the CPU time that it had used by then."""
    Path(f"entered-{hpctrain.get_context().get_world_rank()}").write_text(f"{time.time():.6f}")
    return cpu_s()


def leave(used: float) -> None:
    rank = hpctrain.get_context().get_world_rank()
    Path(f"used-{rank}").write_text(str(cpu_s() - used))


@dataclass(frozen=True, kw_only=True)
class TimedXGBoost(XGBoostBoosting):
    def __call__(self) -> None:
        used = enter()
        super().__call__()
        leave(used)


@dataclass(frozen=True, kw_only=True)
class TimedLightGBM(LightGBMBoosting):
    def __call__(self) -> None:
        used = enter()
        super().__call__()
        leave(used)


class TimedXGBoostTrainer(XGBoostTrainer):
    _boosting_cls = TimedXGBoost


class TimedLightGBMTrainer(LightGBMTrainer):
    _boosting_cls = TimedLightGBM


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", default="auto")
    parser.add_argument("library")
    parser.add_argument("data")
    parser.add_argument("output")
    arguments = parser.parse_args()
    train = read_hdf5(arguments.data, group="train")
    common = {
        "datasets": {"train": train},
        "label_column": "y",
        "params": PARAMS[arguments.library],
        "num_boost_round": ROUNDS,
        "scaling_config": ScalingConfig(num_workers=2),
        "run_config": RunConfig(storage_path="runs", name="run", verbose=0),
    }
    if arguments.library == "xgboost":
        trainer: TimedXGBoostTrainer | TimedLightGBMTrainer = TimedXGBoostTrainer(**common)
    else:
        config = LightGBMConfig(network=arguments.network)
        trainer = TimedLightGBMTrainer(**common, lightgbm_config=config)
    result = trainer.fit()
    end = time.time()
    begin = min(float(path.read_text()) for path in Path().glob("entered-*"))
    used = sum(float(path.read_text()) for path in Path().glob("used-*"))
    say(
        arguments.output,
        type(trainer).get_model(result.checkpoint),
        library=arguments.library,
        data=arguments.data,
        wall_s=end - begin,
        cpu_s=used,
    )


if __name__ == "__main__":
    main()
