"""Which ranks wait inside of XGBoost or LightGBM, by stacks of real ones."""

from __future__ import annotations

import pytest

from hpctrain.execute.tree_waits import place_in_trees, waits_in_trees

XGBOOST = """\
  File "/lib/site-packages/xgboost/core.py", line 2391 in update
  File "/lib/site-packages/xgboost/training.py", line 200 in train
  File "/lib/site-packages/hpctrain/xgboost/boost.py", line 150 in boost"""
LIGHTGBM = """\
  File "/lib/site-packages/hpctrain/worker/mpi.py", line 154 in allgather_bytes
  File "/lib/site-packages/hpctrain/lightgbm/network.py", line 194 in allgather
  File "/lib/site-packages/hpctrain/lightgbm/network.py", line 214 in call
  File "/lib/site-packages/lightgbm/basic.py", line 4266 in update"""
CALLBACK = """\
  File "/x/train.py", line 12 in after_iteration
  File "/lib/site-packages/xgboost/callback.py", line 268 in after_iteration
  File "/lib/site-packages/xgboost/core.py", line 751 in update"""
SEEN = """
with native frames, by py-spy:
Process 9740: python -m hpctrain.worker.main

Thread 9740 ({state}): "MainThread"
    0x7f56f311f829 (libc.so.6)
    Booster.update (xgboost/core.py:2391)
"""


@pytest.mark.parametrize(
    ("stack", "place"),
    [
        (XGBOOST, "xgboost/core.py:2391, in update"),
        (LIGHTGBM, "allgather of lightgbm/basic.py:4266, in update"),
        (CALLBACK, ""),
        ('  File "/lib/site-packages/hpctrain/xgboost/core.py", line 3 in update', ""),
        ('  File "/lib/site-packages/xgboost/core.py", line 2500 in inplace_predict', ""),
        ("", ""),
    ],
)
def test_a_call_of_the_library_is_named_where_it_is_the_innermost(stack: str, place: str) -> None:
    assert place_in_trees(stack) == place
    # Where nobody looked from outside, one in update() may as well grow a tree.
    assert waits_in_trees(stack, "") is place.startswith("allgather of ")


@pytest.mark.parametrize(
    ("state", "waits"), [("idle", True), ("active", False), ("active+gil", False)]
)
def test_one_that_computes_does_not_wait(state: str, waits: bool) -> None:
    assert waits_in_trees(XGBOOST, SEEN.format(state=state)) is waits
