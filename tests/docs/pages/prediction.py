"""A model and events for the page on prediction; then its blocks, in order."""

import os

import h5py
import numpy as np

import hpctrain

from hpctrain.data import from_numpy
from hpctrain.xgboost import XGBoostTrainer

columns = {"a": np.arange(64.0), "b": np.arange(64.0)[::-1].copy()}
rows = {**columns, "label": (columns["a"] > 30).astype(int)}
XGBoostTrainer(
    datasets={"train": from_numpy(rows)},
    label_column="label",
    params={"objective": "binary:logistic"},
    num_boost_round=2,
    scaling_config=hpctrain.ScalingConfig(num_workers=2),
    run_config=hpctrain.RunConfig(name="higgs"),
).fit()
frame = columns

# block: prediction-load

assert len(next(iter(scores.values()))) == 64

# block: prediction-own

same = Sums(preprocessor=None).predict(columns)["sum"]
assert (same == 63).all()

os.makedirs("events")
with h5py.File("events/1.h5", "w") as file:
    file.update({**columns, "event_id": np.arange(64)})

# block: prediction-batch

assert scores.count() == 64
