"""What a search algorithm of one's own learns of a sweep that is restored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpctrain
from hpctrain import RunConfig, tune
from hpctrain.tune.learners import Learners, _are_equal
from hpctrain.tune.ledger import SweepPaths, read_record
from hpctrain.tune.schedulers import FIFOScheduler
from hpctrain.tune.search import Searcher
from hpctrain.tune.search.optuna import OptunaSearch
from hpctrain.tune.search.searcher import has_restore
from hpctrain.tune.sweep import Sweep
from hpctrain.tune.trial import Trial
from tests.tune.played import FakeRunner, Script, make_sweep, states


class Listed:
    """Proposes one value after the other: with the three methods that are needed."""

    def __init__(self, values: Sequence[int]) -> None:
        self.values = list(values)
        self.results: list[tuple[str, float]] = []
        self.ends: list[tuple[str, bool]] = []

    def suggest(self, trial_id: str) -> Mapping[str, Any] | str:
        return {"x": self.values.pop(0)} if self.values else "FINISHED"

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        self.results.append((trial_id, result.get("m", result.get("loss"))))

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        self.ends.append((trial_id, error))


class ListedSearcher(Listed, Searcher):
    """Has no restore_trial of its own."""

    def __init__(self, values: Sequence[int]) -> None:
        Searcher.__init__(self, "m", "min")
        Listed.__init__(self, values)


def interrupted(root: Path, search: Any) -> FakeRunner:
    """Play a sweep of which one trial has ended, and one is at work when it is interrupted."""
    runner = FakeRunner({"trial_00001": Script([1.0], hangs=True)}, interrupt_at=4)
    sweep = make_sweep(runner, root, num_samples=4, search=search, slots=None)
    runner.capacity = 1
    with pytest.raises(KeyboardInterrupt):
        sweep.run()
    runner.scripts, runner.asked, runner.made = {}, [], {**runner.made}
    return runner


def restored(runner: FakeRunner, root: Path, search: Any) -> Sweep:
    sweep = make_sweep(runner, root, num_samples=4, search=search)
    sweep.adopt(read_record(SweepPaths(root=root)).trials)
    return sweep


@pytest.mark.parametrize("make", [Listed, ListedSearcher])
def test_a_search_without_restore_trial_is_asked_again_and_goes_on(
    make: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runner = interrupted(tmp_path, make([1, 2, 3, 4]))
    before = len(read_record(SweepPaths(root=tmp_path)).trials)
    search = make([1, 2, 3, 4])
    sweep = restored(runner, tmp_path, search)
    assert len(search.values) == 4 - before
    assert ("trial_00000", False) in search.ends
    sweep.run()
    assert states(sweep) == 4 * ["TERMINATED"]
    assert [trial.config["x"] for trial in sweep.trials.values()] == [1, 2, 3, 4]
    assert {name for name, _ in search.ends} == set(sweep.trials)
    assert "warning" not in capfd.readouterr().err


def test_a_search_that_proposes_something_else_learns_nothing_and_that_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runner = interrupted(tmp_path, Listed([1, 2, 3, 4]))
    search = Listed([1, 9, 5, 6])
    sweep = restored(runner, tmp_path, search)
    sweep.run()
    said = capfd.readouterr().err
    assert "Listed has no restore_trial(trial_id, config), and proposes something else" in said
    assert said.count("proposes something else for trial_00001") == 1
    assert ("trial_00000", False) in search.ends
    assert ("trial_00001", True) in search.ends, "what it proposed is not tried"
    assert "trial_00001" not in [name for name, _ in search.results]


class Capped(Listed):
    """Proposes nothing while two of its trials have not ended."""

    def suggest(self, trial_id: str) -> Any:
        self.open = getattr(self, "open", 0)
        if self.open == 2:
            return None
        self.open += bool(self.values)
        return super().suggest(trial_id)

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self.open -= 1
        super().on_trial_complete(trial_id, result, error)


def test_a_search_that_caps_its_open_trials_is_sent_ends_before_it_is_asked_for_more(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # One ends without a report.
    runner = FakeRunner({"trial_00002": Script([], fails="broken")})
    first = make_sweep(runner, tmp_path, num_samples=6, search=Capped(range(6)))
    first.run()
    assert states(first).count("TERMINATED") == 5
    search = Capped(range(6))
    sweep = make_sweep(runner, tmp_path, num_samples=6, search=search)
    sweep.adopt(read_record(SweepPaths(root=tmp_path)).trials)
    assert "warning" not in capfd.readouterr().err
    assert sorted(name for name, _ in search.ends) == list(sweep.trials)
    assert search.open == 0


def test_the_end_of_a_trial_without_a_report_is_sent_before_later_ones_are_asked_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # While the first one reports on, the second makes five reports, and the third breaks.
    runner = FakeRunner(
        {
            "trial_00000": Script([1.0] * 9),
            "trial_00001": Script([1.0] * 5),
            "trial_00002": Script([], fails="broken"),
        }
    )
    make_sweep(runner, tmp_path, num_samples=5, search=Capped(range(5))).run()
    search = Capped(range(5))
    sweep = make_sweep(runner, tmp_path, num_samples=5, search=search)
    sweep.adopt(read_record(SweepPaths(root=tmp_path)).trials)
    assert "warning" not in capfd.readouterr().err
    assert sorted(name for name, _ in search.ends) == list(sweep.trials)


def test_a_search_that_proposes_nothing_again_learns_nothing_and_that_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runner = interrupted(tmp_path, Listed([1, 2, 3, 4]))
    search = Listed([1])
    restored(runner, tmp_path, search)
    said = capfd.readouterr().err
    assert "and proposes nothing for trial_00001 now: it learns nothing" in said
    assert [name for name, _ in search.ends] == ["trial_00000"]


def test_a_search_that_knows_nothing_of_a_trial_is_not_asked_to_retry_it() -> None:
    retried = []

    class Retrying(ListedSearcher):
        def retry_trial(self, trial_id: str, config: Mapping[str, Any]) -> None:
            retried.append(trial_id)

    proposals = iter([{"x": 1}, {"x": 9}])
    learners = Learners(FIFOScheduler(), Retrying([]), lambda trial_id: next(proposals))
    trials = [Trial(trial_id=f"trial_0000{x}", config={"x": x}) for x in (1, 2)]
    for trial in trials:
        learners.note_restored(trial)
    learners.ask_again()
    for trial in trials:
        learners.note_retry(trial)
    assert retried == ["trial_00001"]


class Popping(Listed):
    """Forgets a trial at its end."""

    def __init__(self, values: Sequence[int]) -> None:
        super().__init__(values)
        self.open: dict[str, Any] = {}

    def suggest(self, trial_id: str) -> Mapping[str, Any] | str:
        self.open[trial_id] = super().suggest(trial_id)
        return self.open[trial_id]

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        super().on_trial_complete(trial_id, result, error)
        self.open.pop(trial_id)


class PoppingAgain(Popping):
    """Is told of trials that run again."""

    def retry_trial(self, trial_id: str, config: Mapping[str, Any]) -> None:
        self.open[trial_id] = config


@pytest.mark.parametrize(("make", "is_sent"), [(Popping, False), (PoppingAgain, True)])
def test_a_second_end_of_a_trial_is_sent_to_a_search_that_is_told_of_its_retry(
    make: Any, is_sent: bool, tmp_path: Path
) -> None:
    runner = FakeRunner({"trial_00000": Script([1.0], fails="broken")})
    make_sweep(runner, tmp_path, num_samples=2, search=make([1, 2])).run()
    runner.scripts, search = {"trial_00000": Script([1.0, 5.0])}, make([1, 2])
    sweep = make_sweep(runner, tmp_path, num_samples=2, search=search)
    sweep.adopt(read_record(SweepPaths(root=tmp_path)).trials)
    sweep.retry(sweep.trials["trial_00000"])
    sweep.run()
    assert states(sweep) == 2 * ["TERMINATED"]
    ends = [error for name, error in search.ends if name == "trial_00000"]
    assert ends == [True, False][: 1 + is_sent]
    assert (("trial_00000", 5.0) in search.results) == is_sent


def test_only_a_method_of_its_own_tells_a_search_of_earlier_trials() -> None:
    assert has_restore(OptunaSearch())
    assert not has_restore(ListedSearcher([]))
    assert not has_restore(Listed([]))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"x": 1}, {"x": 1}, True),
        ({"x": np.arange(3)}, {"x": np.arange(3)}, True),
        ({"x": np.arange(3)}, {"x": np.arange(4)}, False),
        (None, {}, False),
    ],
)
def test_what_is_proposed_again_is_compared_whatever_it_holds(
    one: Any, other: Any, expected: bool
) -> None:
    assert _are_equal(one, other) == expected


def _report(config: dict[str, Any]) -> None:
    if config["x"] == 2 and not Path(config["mended"]).exists():
        raise ValueError("not yet")
    hpctrain.report({"loss": config["x"]})


def test_a_finished_sweep_with_three_methods_is_restored(tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    tuner = tune.Tuner(
        _report,
        param_space={"mended": str(mended)},
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", search_alg=Listed([3, 2]), num_samples=2
        ),
        run_config=RunConfig(name="sweep", storage_path=str(tmp_path), verbose=0),
    )
    assert tuner.fit().num_errors == 1
    mended.touch()
    again = tune.Tuner.restore(tmp_path / "sweep", _report, resume_errored=True)
    assert again.get_results().num_errors == 1
    grid = again.fit()
    assert grid.num_errors == 0
    assert grid.get_best_result().metrics == {"loss": 2}
