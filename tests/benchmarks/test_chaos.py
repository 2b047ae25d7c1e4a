"""A point that leaves no run is written down as all others are."""

from pathlib import Path

from hpctrain.testing.chaos.experiment import Comparison
from hpctrain.testing.chaos.fault import Fault, Point
from hpctrain.testing.chaos.trial import TrialResult

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_a_trial_without_a_run_directory_has_a_row(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import chaos

    fault = Fault(
        kind="kill-driver",
        point=Point(role="driver", op="mkdir", path="run", moment="before"),
        act="kill",
    )
    result = TrialResult(
        outcome={},
        trace=[],
        faults=(fault,),
        came_about=(True,),
        damaged={},
        starts=1,
        troubles=(),
        seconds=1.0,
        log=tmp_path / "script.out",
    )
    comparison = Comparison(result=result, problems=("no run",))
    row = chaos.describe(0, fault, comparison)
    assert (row["passed"], row["resumed_from"]) == (False, [])
