"""Damaged models of XGBoost and LightGBM: a clear error, no crash, no wrong prediction."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain import Checkpoint, CheckpointError
from hpctrain.bulk.digest import digest_file
from hpctrain.checkpoint_files import MANIFEST_NAME
from hpctrain.lightgbm import LightGBMCheckpoint, LightGBMPredictor, LightGBMTrainer
from hpctrain.lightgbm import TrainReportCallback as LightGBMCallback
from hpctrain.predict.features import FEATURES_NAME
from hpctrain.rundir.manifest import Manifest, encode_manifest
from hpctrain.rundir.staging import StagedFile
from hpctrain.xgboost import TrainReportCallback as XGBoostCallback
from hpctrain.xgboost import XGBoostCheckpoint, XGBoostPredictor, XGBoostTrainer

MUTATIONS = 100
X = np.random.default_rng(0).random((120, 4))
NAMES = ["a", "b", "c", "d"]


class Library:
    """One of both libraries, and all that reads a model of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        is_xgboost = name == "xgboost"
        self.checkpoint_cls: Any = XGBoostCheckpoint if is_xgboost else LightGBMCheckpoint
        self.predictor_cls: Any = XGBoostPredictor if is_xgboost else LightGBMPredictor
        self.trainer_cls: Any = XGBoostTrainer if is_xgboost else LightGBMTrainer
        self.callback_cls: Any = XGBoostCallback if is_xgboost else LightGBMCallback

    def train(self) -> Any:
        target = X @ [1.0, 2.0, 3.0, 4.0] > 5
        if self.name == "xgboost":
            import xgboost

            matrix = xgboost.DMatrix(X, target, feature_names=NAMES)
            return xgboost.train({"objective": "binary:logistic", "max_depth": 3}, matrix, 4)
        import lightgbm

        params = {"objective": "binary", "verbosity": -1, "num_leaves": 5, "min_data_in_leaf": 3}
        rows = np.column_stack([X[:, :3], (X[:, 3] * 6).astype(int)])
        return lightgbm.train(
            params,
            lightgbm.Dataset(rows, target, feature_name=NAMES, categorical_feature=["d"]),
            4,
        )

    def ways_to_read(self, checkpoint: Checkpoint) -> list[Callable[[], Any]]:
        """Return all that the library's file is read by: predictors, resuming, ``get_model``."""
        return [
            lambda: self.predictor_cls.from_checkpoint(checkpoint),
            lambda: self.checkpoint_cls.load_to_resume(checkpoint.path),
            lambda: self.checkpoint_cls(checkpoint.path).get_model(),
            lambda: self.trainer_cls.get_model(checkpoint),
            lambda: self.callback_cls.get_model(checkpoint),
        ]


@pytest.fixture(params=["xgboost", "lightgbm"])
def library(request: pytest.FixtureRequest) -> Library:
    return Library(request.param)


@pytest.fixture
def model(library: Library, tmp_path: Path) -> Path:
    """Return the path of a model's file, with its digest beside it."""
    library.checkpoint_cls.from_model(library.train(), path=tmp_path / "c")
    return tmp_path / "c" / library.checkpoint_cls.model_file


def commit(directory: Path) -> None:
    """Make a directory a committed checkpoint."""
    files = tuple(StagedFile(p.name, *digest_file(p)) for p in sorted(directory.iterdir()))
    manifest = Manifest(
        name=directory.name,
        report=0,
        attempt=1,
        world_size=1,
        metrics={},
        files=files,
        created_at=0.0,
        versions={},
    )
    (directory / MANIFEST_NAME).write_bytes(encode_manifest(manifest))


def without_digest(directory: Path) -> None:
    """Leave of ``features.json`` what a program without digests writes."""
    path = directory / FEATURES_NAME
    content = json.loads(path.read_bytes())
    del content["digests"]
    path.write_text(json.dumps(content))


def mutations(content: bytes, seed: int, count: int = MUTATIONS) -> Iterator[bytes]:
    """Give `count` damaged copies."""
    rng = random.Random(seed)
    made = 0
    while made < count:
        damaged = bytearray(content)
        at = rng.randrange(len(content))
        kind = rng.choice(["flip", "byte", "cut", "drop", "twice", "digit", "number", "zeros"])
        numbers = list(re.finditer(rb"-?\d+", content))
        if kind == "flip":
            damaged[at] ^= 1 << rng.randrange(8)
        elif kind == "byte":
            damaged[at] = rng.randrange(256)
        elif kind == "cut":
            del damaged[at:]
        elif kind == "drop":
            del damaged[at : at + rng.randrange(1, 40)]
        elif kind == "twice":
            damaged[at:at] = content[at : at + rng.randrange(1, 40)]
        elif kind == "zeros":
            damaged[at : at + 8] = bytes(8)
        else:
            number = rng.choice(numbers)
            other = str(rng.randrange(10) if kind == "digit" else rng.choice([-99, 2**31, 10**9]))
            damaged[number.start() : number.end()] = other.encode()
        if damaged != content:
            made += 1
            yield bytes(damaged)


@pytest.mark.parametrize("has_manifest", [True, False], ids=["committed", "saved"])
def test_a_damaged_model_with_a_digest_is_refused_before_its_library_sees_it(
    library: Library, model: Path, has_manifest: bool
) -> None:
    checkpoint, sound = Checkpoint(model.parent), model.read_bytes()
    if has_manifest:
        without_digest(model.parent)
        commit(model.parent)
    for read in library.ways_to_read(checkpoint):
        read()
    for damaged in mutations(sound, seed=1):
        model.write_bytes(damaged)
        for read in library.ways_to_read(checkpoint):
            with pytest.raises(CheckpointError, match=r"damaged: .* have the digest .*Use another"):
                read()


# In a process that has imported the library and used none of its threads, so that it can be forked.
_HARNESS = """
import json, os, sys
from importlib import import_module
from pathlib import Path
import numpy as np
from hpctrain.gbdt import model_check

framework, folder = sys.argv[1], Path(sys.argv[2])
library = import_module(framework)

def forked(do, path):
    if (pid := os.fork()) == 0:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1), os.dup2(nowhere, 2)
        status = 1
        try:
            do(path)
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def check(path):
    model_check.limit(path.stat().st_size)
    model_check._CHECKS[framework](path)

def use(path):
    model = library.Booster(model_file=str(path))
    rows = np.random.default_rng(1).normal(size=(500, 4)) * 10
    for given in (rows, rows[:1], rows * np.nan):
        if framework == "xgboost":
            model.inplace_predict(given, validate_features=False)
        else:
            model.predict(given)

verdicts = {}
for path in sorted(folder.iterdir()):
    verdict = forked(check, path)
    verdicts[path.name] = verdict, forked(use, path) if verdict == 0 else None
json.dump(verdicts, sys.stdout)
"""


def test_a_damaged_model_without_a_digest_does_not_end_the_process(
    library: Library, model: Path, tmp_path: Path
) -> None:
    without_digest(model.parent)
    checkpoint, sound = Checkpoint(model.parent), model.read_bytes()
    expected = library.predictor_cls.from_checkpoint(checkpoint).predict(X)
    folder = tmp_path / "damaged"
    folder.mkdir()
    for number, damaged in enumerate(mutations(sound, seed=2)):
        (folder / f"{number:03}{model.suffix}").write_bytes(damaged)
    tried = subprocess.run(
        [sys.executable, "-c", _HARNESS, library.name, str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=True,
        timeout=120,
    )
    verdicts: dict[str, list[Any]] = json.loads(tried.stdout)
    assert len(verdicts) == MUTATIONS
    # What passes is read and predicts, as far as one can tell without a digest.
    assert {use for verdict, use in verdicts.values() if verdict == 0} == {0}
    by_verdict: dict[int, list[str]] = {}
    for name, (verdict, _) in verdicts.items():
        by_verdict.setdefault(verdict, []).append(name)
    assert len(by_verdict[1]) > MUTATIONS // 4
    for verdict, names in by_verdict.items():
        model.write_bytes((folder / names[0]).read_bytes())
        if verdict == 0:
            predictor = library.predictor_cls.from_checkpoint(checkpoint)
            assert predictor.predict(X).shape == expected.shape
            continue
        how = "cannot read it: " if verdict == 1 else "ended with SIG"
        with pytest.raises(CheckpointError, match=rf"damaged: {library.name} {how}.*Use another"):
            library.predictor_cls.from_checkpoint(checkpoint)
