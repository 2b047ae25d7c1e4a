"""A scheduler's decision takes effect after the report that it was made on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import (
    Checkpoint,
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    tune,
)
from hpctrain.tune.schedulers import ASHAScheduler, PopulationBasedTraining, TrialScheduler
from tests.waiting import wait_until

TIMEOUT_S = 120.0
RECORDED = json.loads((Path(__file__).parent / "recorded/ray.json").read_text())["fast"]


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")


def quiet(storage: Path, **options: Any) -> RunConfig:
    return RunConfig(storage_path=storage, name="sweep", verbose=0, **options)


def events(storage: Path, kind: str) -> list[dict[str, Any]]:
    lines = (storage / "sweep/tune.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def gave_up(storage: Path) -> list[str]:
    """Return the logs of ranks that have waited in vain for a decision."""
    logs = storage.rglob("rank-*.out")
    return [str(log) for log in logs if "was not decided on" in log.read_text()]


def fast(config: dict[str, Any]) -> None:
    for i in range(100):
        hpctrain.report({"acc": config["q"] * i})


def saving(config: dict[str, Any]) -> None:
    checkpoint = hpctrain.get_checkpoint()
    for step in range(0 if checkpoint is None else checkpoint.to_dict()["step"] + 1, 12):
        saved = Checkpoint.from_dict({"step": step})
        hpctrain.report({"m": config["q"] * step, "step": step}, saved)


def test_asha_stops_fast_trials_at_the_reports_at_which_ray_tune_stopped_them(
    tmp_path: Path,
) -> None:
    grid = tune.Tuner(
        fast,
        param_space={"q": tune.grid_search(RECORDED["q"])},
        tune_config=tune.TuneConfig(
            metric="acc",
            mode="max",
            max_concurrent_trials=1,
            scheduler=ASHAScheduler(**RECORDED["options"]),
        ),
        run_config=quiet(tmp_path),
    ).fit()
    assert [len(result.metrics_history) for result in grid] == RECORDED["reports"]
    assert not gave_up(tmp_path)


def test_all_ranks_of_a_trial_stop_at_the_same_report(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        rank = hpctrain.get_context().get_world_rank()
        try:
            for i in range(30):
                hpctrain.report({"acc": config["q"] * i, "made": i + 1})
                (tmp_path / f"{config['q']}.{rank}").write_text(str(i + 1))
        finally:
            (tmp_path / f"{config['q']}.{rank}.left").touch()

    grid = tune.Tuner(
        DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=2)),
        param_space={"train_loop_config": {"q": tune.grid_search([3, 2, 1])}},
        tune_config=tune.TuneConfig(
            metric="acc",
            mode="max",
            max_concurrent_trials=1,
            scheduler=ASHAScheduler(max_t=30, grace_period=1, reduction_factor=4),
        ),
        run_config=quiet(tmp_path),
    ).fit()
    assert [len(result.metrics_history) for result in grid] == [30, 4, 4]
    made = {path.name: int(path.read_text()) for path in tmp_path.glob("[123].[01]")}
    assert made == {"3.0": 30, "3.1": 30, "2.0": 4, "2.1": 4, "1.0": 4, "1.1": 4}
    assert len(list(tmp_path.glob("*.left"))) == 6


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize(
    ("stop", "reports"),
    [
        ({"m": 3}, 4),
        (lambda report, metrics: metrics["m"] >= 3, 4),
        ({"time_total_s": 0}, 1),
    ],
)
def test_a_criterion_that_ranks_do_not_see_ends_a_trial_with_the_report_that_meets_it(
    tmp_path: Path, stop: Any, reports: int, num_workers: int
) -> None:
    def train(config: dict[str, Any]) -> None:
        rank = hpctrain.get_context().get_world_rank()
        for i in range(300):
            # That of rank 0 counts.
            hpctrain.report({"m": i if rank == 0 else 0})
            (tmp_path / f"{rank}.made").write_text(str(i + 1))

    (result,) = tune.Tuner(
        DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=num_workers)),
        run_config=quiet(tmp_path, stop=stop),
    ).fit()
    assert len(result.metrics_history) == reports
    assert [path.read_text() for path in tmp_path.glob("*.made")] == num_workers * [str(reports)]
    assert not gave_up(tmp_path)


class PausesAtFour(TrialScheduler):
    """Pauses each trial once."""

    def __init__(self) -> None:
        super().__init__()
        self._paused: set[str] = set()

    def on_result(self, trial_id: str, metrics: Any) -> Any:
        """Pause at the fourth report."""
        if metrics["training_iteration"] == 4 and trial_id not in self._paused:
            self._paused.add(trial_id)
            return self.PAUSE
        return self.CONTINUE


def test_a_pause_takes_effect_after_the_report_that_it_was_decided_on(tmp_path: Path) -> None:
    grid = tune.Tuner(
        saving,
        param_space={"q": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(metric="m", mode="max", scheduler=PausesAtFour()),
        run_config=quiet(tmp_path),
    ).fit()
    assert [event["reports"] for event in events(tmp_path, "trial-paused")] == [4, 4]
    assert not gave_up(tmp_path)
    for result in grid:
        assert [line["step"] for line in result.metrics_history] == [*range(12)]


def test_a_fast_population_is_perturbed_at_its_interval(tmp_path: Path) -> None:
    ledger = tmp_path / "sweep/tune.jsonl"

    def train(config: dict[str, Any]) -> None:
        checkpoint = hpctrain.get_checkpoint()
        begin = 0 if checkpoint is None else checkpoint.to_dict()["step"] + 1
        is_better = config["q"] == 4

        def await_that(condition: Callable[[], bool]) -> None:
            deadline = time.monotonic() + TIMEOUT_S
            while not condition():
                assert time.monotonic() < deadline
                time.sleep(0.01)

        for step in range(begin, 12):
            # It is compared at its first interval with the other one's, and that one at its second.
            if is_better and step == 0:
                await_that((tmp_path / "first").exists)
            if not is_better and step == 3:
                await_that((tmp_path / "ahead").exists)
            if is_better and step == 11:
                await_that(lambda: "perturbed" in ledger.read_text())
            saved = Checkpoint.from_dict({"step": step})
            hpctrain.report({"m": config["q"] * (step + 1)}, saved)
            if step == (5 if is_better else 2):
                (tmp_path / ("ahead" if is_better else "first")).touch()

    tune.Tuner(
        train,
        param_space={"q": tune.grid_search([4, 1])},
        tune_config=tune.TuneConfig(
            metric="m",
            mode="max",
            max_concurrent_trials=2,
            scheduler=PopulationBasedTraining(
                time_attr="training_iteration",
                perturbation_interval=3,
                quantile_fraction=0.5,
                hyperparam_mutations={"q": [2, 4]},
            ),
        ),
        run_config=quiet(tmp_path),
    ).fit()
    perturbed = events(tmp_path, "trial-perturbed")[0]
    assert (perturbed["trial"], perturbed["donor"]) == ("trial_00001", "trial_00000")
    assert 6 <= perturbed["iteration"] <= 11
    cloned = events(tmp_path, "trial-cloned")[0]
    assert (cloned["reports"], cloned["metrics"]["training_iteration"]) == (6, 6)
    assert not gave_up(tmp_path)


def test_the_reports_of_a_restarted_attempt_are_decided_on_too(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        checkpoint = hpctrain.get_checkpoint()
        for step in range(0 if checkpoint is None else checkpoint.to_dict()["step"] + 1, 8):
            if step == 5 and not (tmp_path / "failed").exists():
                (tmp_path / "failed").touch()
                raise RuntimeError("once")
            # Reports 4 and 5 are made twice.
            saved = Checkpoint.from_dict({"step": step}) if step == 2 else None
            hpctrain.report({"m": step}, saved)

    (result,) = tune.Tuner(
        train,
        tune_config=tune.TuneConfig(metric="m", mode="max", scheduler=ASHAScheduler(max_t=7)),
        run_config=quiet(tmp_path, failure_config=FailureConfig(max_failures=1)),
    ).fit()
    assert result.metrics["m"] == 6, "max_t is reached with the seventh report"
    assert (tmp_path / "failed").exists()
    assert not gave_up(tmp_path)


SCRIPT = """
    import sys, time
    from pathlib import Path
    import hpctrain
    from hpctrain import RunConfig, timeouts, tune
    from hpctrain.tune.schedulers import TrialScheduler

    FOLDER = Path(sys.argv[1])

    class Holds(TrialScheduler):
        "Takes its time for the third report, and lets no trial go beyond the fifth."

        def on_result(self, trial_id, metrics):
            if metrics["training_iteration"] == 3 and (FOLDER / "hold").exists():
                (FOLDER / "held").touch()
                deadline = time.monotonic() + 100
                while (FOLDER / "hold").exists() and time.monotonic() < deadline:
                    time.sleep(0.02)
            return self.STOP if metrics["training_iteration"] >= 5 else self.CONTINUE

    def train(config):
        timeouts.TUNER_DECISION_S = timeouts.Timeout(
            config["patience_s"], "tuner_decision", "a tuner", "it goes on"
        )
        for step in range(20):
            hpctrain.report({"m": step})
            (config["folder"] / "made").write_text(str(step + 1))

    if __name__ == "__main__":
        if tune.Tuner.can_restore(FOLDER / "s"):
            tuner = tune.Tuner.restore(FOLDER / "s", train)
        else:
            tuner = tune.Tuner(
                train,
                param_space={"folder": FOLDER, "patience_s": float(sys.argv[2])},
                run_config=RunConfig(storage_path=FOLDER, name="s"),
                tune_config=tune.TuneConfig(metric="m", mode="max", scheduler=Holds()),
            )
        (result,) = tuner.fit()
        print("ENDED", len(result.metrics_history), result.state)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[float], subprocess.Popen[str]]]:
    """Start the script above, whose tuner holds a report up, and end what it has left."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    (tmp_path / "hold").touch()
    started: list[subprocess.Popen[str]] = []

    def run(patience_s: float) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(script), str(tmp_path), str(patience_s)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
        )
        started.append(process)
        return process

    yield run
    (tmp_path / "hold").unlink(missing_ok=True)
    for process in started:
        process.kill()
        process.communicate()


def _made(folder: Path) -> int:
    path = folder / "made"
    return int(path.read_text() or 0) if path.exists() else 0


def test_a_trial_waits_for_a_decision_and_goes_on_when_its_tuner_is_killed(
    start: Callable[[float], subprocess.Popen[str]], tmp_path: Path
) -> None:
    tuner = start(3600.0)
    wait_until((tmp_path / "held").exists, process=tuner)
    wait_until(lambda: _made(tmp_path) == 3)
    os.kill(tuner.pid, signal.SIGKILL)
    # Nobody is there to stop it.
    wait_until(lambda: _made(tmp_path) == 20)
    (tmp_path / "hold").unlink()
    again = start(3600.0)
    said, _ = again.communicate(timeout=TIMEOUT_S)
    assert again.returncode == 0, said
    assert "ENDED 20 " in said


def test_a_trial_goes_on_if_its_tuner_does_not_answer_in_time(
    start: Callable[[float], subprocess.Popen[str]], tmp_path: Path
) -> None:
    tuner = start(0.5)
    wait_until(lambda: _made(tmp_path) == 20, process=tuner)
    assert (tmp_path / "held").exists()
    (tmp_path / "hold").unlink()
    said, _ = tuner.communicate(timeout=TIMEOUT_S)
    assert tuner.returncode == 0, said
    assert "ENDED 20 " in said
    (log,) = (tmp_path / "s/trial_00000/logs").rglob("rank-00000.*")
    assert log.read_text().count("report 3 was not decided on within") == 1
