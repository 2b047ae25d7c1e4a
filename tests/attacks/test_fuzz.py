"""Files of run directories are damaged at random: no verb shows a traceback, hangs or is misled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SHARES = 5


@pytest.fixture
def fuzz(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import fuzz

    return fuzz


@pytest.fixture
def runs(fuzz: Any, tmp_path: Path) -> Iterator[Any]:
    runs = fuzz.Runs(tmp_path)
    yield runs
    runs.close()


@pytest.mark.parametrize("seed", range(SHARES))
def test_damage_is_named_wherever_it_is(fuzz: Any, runs: Any, seed: int):
    findings = [str(finding) for finding in fuzz.fuzz(runs, cases=500 // SHARES, seed=seed)]
    assert findings == []
