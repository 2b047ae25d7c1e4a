"""The code blocks of the page on TensorFlow run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
BEFORE = """
import os
import numpy as np
from hpctrain.data import from_numpy
os.makedirs("scratch/events")
from_numpy({"x": np.ones((16, 1)), "y": np.ones(16)}).write_parquet("scratch/events/1.parquet")
"""
LOOP = """
def train_with_keras_3(config):
    import keras
    import tensorflow as tf
    from hpctrain.tensorflow import prepare_dataset_shard

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    shard = hpctrain.get_dataset_shard("train").to_tf("x", "y", batch_size=4)
"""
AFTER = """
from hpctrain import Result
from hpctrain.tensorflow import TensorflowConfig
TensorflowTrainer(
    train_with_keras_3,
    train_loop_config={"epochs": 2},
    tensorflow_config=TensorflowConfig(legacy_keras=False),
    datasets={"train": from_numpy({"x": np.ones((16, 4), "f4"), "y": np.ones(16, "f4")})},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name="loop"),
).fit()
result = Result.from_path("hpctrain_runs/events")
dataset = read_parquet("scratch/events")
"""


@pytest.mark.mpi
def test_the_blocks_of_the_page_run(tmp_path: Path) -> None:
    page = (CHECKOUT / "docs/tensorflow.rst").read_text()
    blocks = re.findall(
        r"^\.\. code-block:: python\n   :name: \S+\n\n((?:   .*\n|\n)+)", page, re.MULTILINE
    )
    train, loop, predict = map(textwrap.dedent, blocks)
    train = train.replace('"/scratch', '"scratch').replace("num_workers=4", "num_workers=2")
    train = train.replace('"epochs": 10', '"epochs": 2')
    parts = [BEFORE, train, LOOP, textwrap.indent(loop, "    "), AFTER, predict]
    (tmp_path / "page.py").write_text("\n".join(parts))
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "HPCTRAIN_LAUNCHER": "local"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert (tmp_path / "scores.h5").exists()
