from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain import pickle_trust
from hpctrain.preprocessors import Preprocessor, SklearnPreprocessor
from hpctrain.preprocessors.batches import slices_of
from hpctrain.testing.thread_comm import ThreadComm, run_on_threads

FitOnRanks = Callable[[Callable[[], Preprocessor], Mapping[str, Any]], Preprocessor]
ROWS_OF_A_BATCH = 100


@pytest.fixture
def in_another_process(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Go on as a process that has pickled nothing, where others can write into directories."""

    def go_on(*shared: Path) -> None:
        monkeypatch.setattr(pickle_trust, "_made", set())
        for directory in shared:
            directory.chmod(0o775)

    return go_on


@pytest.fixture(params=[1, 2, 3, 4])
def fit_on_ranks(request: pytest.FixtureRequest) -> FitOnRanks:
    """Fit on 1 to 4 ranks that have unlike numbers of rows, the last of four none."""
    ranks = request.param

    def fit(make: Callable[[], Preprocessor], batch: Mapping[str, Any]) -> Preprocessor:
        total = len(next(iter(batch.values())))
        with_rows = min(ranks, 3)
        ends = [total * n * (n + 1) // (with_rows * (with_rows + 1)) for n in range(ranks)]
        starts = [min(end, total) for end in ends]

        def fit_one(comm: ThreadComm) -> Preprocessor:
            stop = total if comm.rank == ranks - 1 else starts[comm.rank + 1]
            mine = slice(starts[comm.rank], stop)
            shard = {name: np.asarray(column)[mine] for name, column in batch.items()}
            return make().fit_shard(slices_of(shard, ROWS_OF_A_BATCH), comm)

        fitted = run_on_threads(ranks, fit_one)
        texts = {one.serialize() for one in fitted}
        # skops writes the same object to other bytes each time.
        assert len(texts) == 1 or isinstance(fitted[0], SklearnPreprocessor), "to the last bit"
        return fitted[0]

    return fit


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(7)
