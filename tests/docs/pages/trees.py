"""Rows for the page on trees; then its blocks, in order."""

import os

import numpy as np
import pandas

numbers = np.random.default_rng(1)
table = pandas.DataFrame({"x": numbers.normal(size=400), "y": numbers.normal(size=400)})
table["target"] = (table["x"] + table["y"] > 0).astype(int)
os.makedirs("scratch/events")
table.to_parquet("scratch/events/1.parquet")

# block: trees-xgboost

assert booster.num_boosted_rounds() == 2

frame = table

# block: trees-lightgbm

train, valid = table[:300], table[300:]

# block: trees-sklearn
