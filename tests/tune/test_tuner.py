"""Sweeps of real runs on this machine."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import (
    Checkpoint,
    ConfigError,
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    WorkerError,
    tune,
)
from hpctrain.cli.tune import to_json
from hpctrain.errors import DamagedFileError, LaunchError
from hpctrain.execute.process import process_start_time
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import read_status, write_status
from hpctrain.tune.ledger import SweepLedger, SweepPaths, read_record
from hpctrain.tune.overview import read_overview
from hpctrain.tune.schedulers import ASHAScheduler
from hpctrain.tune.search import Searcher
from hpctrain.tune.trainable import make_trial_trainer
from hpctrain.tune.trial import TrialState
from tests.waiting import wait_until

TIMEOUT_S = 120.0


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")


def quiet(storage: Path, **options: Any) -> RunConfig:
    return RunConfig(**{"storage_path": storage, "name": "sweep", "verbose": 0, **options})


def test_a_sweep_of_a_function_has_a_run_and_a_result_for_each_trial(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        if config["x"] == 3:
            raise ValueError("three is too many")
        for epoch in range(2):
            hpctrain.report({"loss": config["x"] - epoch})

    tuner = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([1, 2, 3])},
        tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=3),
        run_config=quiet(tmp_path),
    )
    grid = tuner.fit()
    assert len(grid) == 3
    assert (grid.num_errors, grid.num_terminated) == (1, 2)
    assert [result.config for result in grid] == [{"x": 1}, {"x": 2}, {"x": 3}]
    assert isinstance(grid.errors[0], WorkerError)
    assert "three is too many" in str(grid.errors[0])
    best = grid.get_best_result()
    assert best.config == {"x": 1}
    assert best.metrics == {"loss": 0}
    assert Path(best.path) == tmp_path / "sweep/trial_00000"
    assert grid.get_best_result("loss", "max", scope="all").config == {"x": 2}
    frame = grid.get_dataframe(filter_metric="loss", filter_mode="max")
    assert frame["loss"].tolist()[:2] == [1, 2]
    assert frame["config/x"].tolist() == [1, 2, 3]
    with pytest.raises(ConfigError, match="has a value of 'los'") as caught:
        grid.get_best_result("los", "min")
    assert isinstance(caught.value, RuntimeError), "as Ray Tune's"
    assert grid.filesystem == grid[0].filesystem
    assert [result.config for result in tuner.get_results()] == [{"x": 1}, {"x": 2}, {"x": 3}]
    with pytest.raises(ConfigError, match=r"filter_metric='los'.*Did you mean 'loss'"):
        grid.get_dataframe(filter_metric="los", filter_mode="min")
    by_number = grid.get_dataframe(filter_metric="training_iteration", filter_mode="min")
    assert by_number["training_iteration"].tolist() == [1, 1, 0]
    assert by_number["loss"].tolist()[:2] == [1, 2]
    with pytest.raises(ConfigError, match="is a sweep already"):
        tuner.fit()
    again = tune.Tuner.restore(tmp_path / "sweep", train)
    assert len(again.get_results()) == 3
    assert again.fit().num_errors == 1, "nothing runs again"
    assert len(grid[2].attempts) == 1
    assert tune.Tuner.restore(tmp_path / "sweep", train, resume_errored=True).fit().num_errors == 1
    assert len(hpctrain.Result.from_path(grid[2].path).attempts) == 2


def test_trials_that_failed_stay_so_once_the_time_budget_is_spent(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        deadline = time.monotonic() + 3
        while config["x"] == 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        raise ValueError("as it is meant to")

    tune.Tuner(
        train,
        param_space={"x": tune.grid_search([1, 0])},
        tune_config=tune.TuneConfig(time_budget_s=2, max_concurrent_trials=2),
        run_config=RunConfig(name="sweep", storage_path=str(tmp_path), verbose=0),
    ).fit()
    again = tune.Tuner.restore(tmp_path / "sweep", train, resume_errored=True).fit()
    assert len(again.errors) >= 1
    lines = (tmp_path / "sweep/tune.jsonl").read_text().splitlines()
    restored = next(i for i, line in enumerate(lines) if "sweep-restored" in line)
    assert not any("trial-" in line for line in lines[restored:])


def test_a_trainer_is_tried_with_other_arguments_and_asha_stops_the_worse(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        size = hpctrain.get_context().get_world_size()
        assert config["kept"] == "yes"
        deadline = time.monotonic() + TIMEOUT_S
        for step in range(10_000):
            hpctrain.report({"loss": config["lr"], "size": size})
            if config["lr"] < 1 and step == 2:
                return
            assert time.monotonic() < deadline
            time.sleep(0.02)

    trainer = DataParallelTrainer(
        train, train_loop_config={"kept": "yes", "lr": 5}, run_config=quiet(tmp_path)
    )
    grid = tune.Tuner(
        trainer,
        param_space={
            "train_loop_config": {"lr": tune.grid_search([0.5, 2.0])},
            "scaling_config": ScalingConfig(num_workers=tune.choice([2])),
        },
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            max_concurrent_trials=1,
            scheduler=ASHAScheduler(max_t=100_000, reduction_factor=2),
        ),
    ).fit()
    assert grid.num_terminated == 2
    assert not grid.errors
    assert [result.state for result in grid] == ["finished", "stopped"]
    assert [result.metrics["size"] for result in grid] == [2, 2]
    config = grid[1].config
    assert config["scaling_config"].num_workers == 2
    assert config["train_loop_config"] == {"lr": 2.0}


SCRIPT = """
    import sys, time
    from pathlib import Path
    import hpctrain
    from hpctrain import Checkpoint, RunConfig, tune

    def train(config):
        gate, begun = Path(config["gate"]), 0
        if (checkpoint := hpctrain.get_checkpoint()) is not None:
            begun = checkpoint.to_dict()["step"]
        for step in range(begun + 1, begun + 4000):
            hpctrain.report({"step": step, "begun": begun}, Checkpoint.from_dict({"step": step}))
            if gate.exists() and step >= 4:
                return
            time.sleep(0.02)

    if __name__ == "__main__":
        root = Path(sys.argv[1])
        if tune.Tuner.can_restore(root):
            tuner = tune.Tuner.restore(root, train)
        else:
            tuner = tune.Tuner(
                train,
                param_space={"x": tune.grid_search([1, 2]), "gate": sys.argv[2]},
                run_config=RunConfig(storage_path=root.parent, name=root.name),
                tune_config=tune.TuneConfig(max_concurrent_trials=2),
            )
        grid = tuner.fit()
        print("BEGUN", [result.metrics["begun"] for result in grid], grid.num_errors)
"""


@pytest.fixture
def start(tmp_path: Path) -> Any:
    """Start the script above, and end what it has left."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    started: list[subprocess.Popen[str]] = []

    def run(name: str = "s") -> subprocess.Popen[str]:
        words = [sys.executable, str(script), str(tmp_path / name), str(tmp_path / "gate")]
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path
        )
        started.append(process)
        return process

    yield run
    (tmp_path / "gate").touch()
    for process in started:
        process.kill()
        process.communicate()


def _reports(root: Path) -> list[int]:
    statuses = [read_status(RunPaths(root / f"trial_0000{i}")) for i in range(2)]
    return [0 if status is None else status.reports for status in statuses]


def test_a_killed_tuner_is_restored_attaches_to_one_trial_and_resumes_the_other(
    start: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    root = tmp_path / "s"
    tuner = start()
    wait_until(lambda: min(_reports(root)) > 4)
    tuner.kill()
    tuner.wait()
    killed = read_status(RunPaths(root / "trial_00001"))
    kept = read_status(RunPaths(root / "trial_00000"))
    assert killed is not None
    assert kept is not None
    os.kill(killed.owner_pid, signal.SIGKILL)
    again = start()
    wait_until(lambda: len(read_record(SweepPaths(root=root)).trials) == 2)
    (tmp_path / "gate").touch()
    said, _ = again.communicate(timeout=TIMEOUT_S)
    assert again.returncode == 0, said
    assert "trial_00000 goes on" in said
    assert "trial_00001 goes on" in said
    (begun,) = [line for line in said.splitlines() if line.startswith("BEGUN")]
    assert begun.startswith("BEGUN [0, ")
    assert not begun.startswith("BEGUN [0, 0]")
    after = read_status(RunPaths(root / "trial_00000"))
    assert after is not None
    assert after.owner_pid == kept.owner_pid, "it was never ended"


def test_a_trial_whose_executor_is_killed_goes_on_and_a_second_tuner_is_refused(
    start: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    root = tmp_path / "s"
    tuner = start()
    wait_until(lambda: min(_reports(root)) > 4)
    second = start()
    said, _ = second.communicate(timeout=TIMEOUT_S)
    assert second.returncode == 2
    assert f"process {tuner.pid} on" in said
    killed = read_status(RunPaths(root / "trial_00001"))
    assert killed is not None
    os.kill(killed.owner_pid, signal.SIGKILL)
    (tmp_path / "gate").touch()
    said, _ = tuner.communicate(timeout=TIMEOUT_S)
    assert tuner.returncode == 0, said
    assert "trial_00001 is to go on: its executor was killed" in said
    assert said.rstrip().endswith("] 0")


def test_ctrl_c_stops_the_trials_and_says_how_to_go_on(
    start: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    root = tmp_path / "s"
    tuner = start()
    wait_until(lambda: min(_reports(root)) > 4)
    tuner.send_signal(signal.SIGINT)
    said, _ = tuner.communicate(timeout=TIMEOUT_S)
    # As of a program that Ctrl-C ends.
    assert tuner.returncode == -signal.SIGINT, said
    assert f"Tuner.restore('{root}', trainable).fit() goes on" in said
    assert "Traceback" not in said
    states = {read_status(RunPaths(root / f"trial_0000{i}")).state.value for i in range(2)}  # type: ignore[union-attr]
    assert states == {"stopped"}
    (tmp_path / "gate").touch()
    said, _ = start().communicate(timeout=TIMEOUT_S)
    assert "BEGUN [" in said
    assert "BEGUN [0" not in said, "they resume from their checkpoints"


def test_configurations_that_json_cannot_hold_are_restored_as_they_were(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        hpctrain.report({"y": config["function"](2)})

    space = {"function": tune.choice([lambda x: x + 1])}
    grid = tune.Tuner(train, param_space=space, run_config=quiet(tmp_path)).fit()
    assert grid[0].metrics == {"y": 3}
    assert grid.get_best_result().config["function"](1) == 2
    restored = tune.Tuner.restore(tmp_path / "sweep", train).get_results()
    assert restored[0].config["function"](1) == 2
    pickle = tmp_path / "sweep/configs/trial_00000.pkl"
    assert pickle.stat().st_mode & 0o777 == 0o600
    pickle.unlink()
    with pytest.raises(ConfigError, match="is gone, which has the configuration of trial_00000"):
        tune.Tuner.restore(tmp_path / "sweep", train).fit()


def test_a_trial_restarts_from_its_checkpoint_within_its_budget(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        checkpoint = hpctrain.get_checkpoint()
        step = 0 if checkpoint is None else checkpoint.to_dict()["step"]
        hpctrain.report({"step": step + 1}, Checkpoint.from_dict({"step": step + 1}))
        if step == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    run_config = quiet(tmp_path, failure_config=FailureConfig(max_failures=1))
    grid = tune.Tuner(train, param_space={}, run_config=run_config).fit()
    assert not grid.errors
    assert grid[0].metrics == {"step": 2}


def test_a_metric_that_is_not_reported_is_said_with_those_that_are(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        for _ in range(2000):
            hpctrain.report({"loss": 1.0})
            time.sleep(0.05)

    tuner = tune.Tuner(
        train,
        tune_config=tune.TuneConfig(metric="los", mode="min"),
        run_config=quiet(tmp_path),
    )
    with pytest.raises(ConfigError, match=r"no 'los'.*The metrics are loss.*mean 'loss'") as error:
        tuner.fit()
    assert "existing='restart'" in str(error.value)
    assert "restart_errored=True).fit()" in str(error.value)
    paths = SweepPaths(root=tmp_path / "sweep")
    assert read_record(paths).trials["trial_00000"].state is TrialState.ERROR
    status = read_status(RunPaths(tmp_path / "sweep/trial_00000"))
    assert status is not None
    assert status.state.is_final


def _diverges(config: dict[str, Any]) -> None:
    if config["x"] == 2 and not Path(config["mended"]).exists():
        hpctrain.report({"diverged": True})
        return
    for step in range(3):
        hpctrain.report({"loss": config["x"] / (step + 1)})


def test_a_trial_without_the_metric_costs_no_other_and_begins_anew(tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    config = tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=1)
    grid = tune.Tuner(
        _diverges,
        param_space={"x": tune.grid_search([1, 2, 3]), "mended": str(mended)},
        tune_config=config,
        run_config=quiet(tmp_path),
    ).fit()
    assert (grid.num_errors, grid.num_terminated) == (1, 2)
    assert "trial_00001 reported no 'loss'" in str(grid.errors[0])
    mended.touch()
    again = tune.Tuner.restore(tmp_path / "sweep", _diverges, restart_errored=True).fit()
    assert (again.num_errors, again.num_terminated) == (0, 3)


def noop(config: dict[str, Any]) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda **o: tune.Tuner(
                DataParallelTrainer(noop), param_space={"run_config": RunConfig(name="x")}, **o
            ),
            "all trials have that of the sweep",
        ),
        (lambda **o: tune.Tuner(3, **o), "a function of a config, or a trainer"),
        (lambda **o: tune.Tuner(noop, param_space=[1], **o), "A dict is needed"),
        (lambda **o: tune.Tuner(noop, param_space={"a": tune.grid_search([])}, **o), "no values"),
        (
            lambda **o: tune.Tuner(noop, tune_config=tune.TuneConfig(mode="maximum"), **o),
            "One of 'min', 'max'",
        ),
        (
            lambda **o: tune.Tuner(noop, tune_config=tune.TuneConfig(metric="a"), **o),
            "needs mode='min' or mode='max'",
        ),
        (
            lambda **o: tune.Tuner(noop, tune_config=tune.TuneConfig(num_samples=0), **o),
            "must be 1 or more",
        ),
        (
            lambda **o: tune.Tuner(noop, tune_config=tune.TuneConfig(num_samples=-1), **o),
            "a sweep without an end",
        ),
        (
            lambda **o: tune.Tuner(noop, tune_config=tune.TuneConfig(num_sample=1), **o),
            "Did you mean 'num_samples'",
        ),
        (
            lambda **o: tune.Tuner(noop, tune_config=tune.TuneConfig(reuse_actors=True), **o),
            "each trial is a run of its own",
        ),
        (
            lambda **o: tune.Tuner(noop, tune_config=tune.TuneConfig(search_alg=3), **o),
            "suggest, on_trial_result, on_trial_complete",
        ),
        (
            lambda **o: tune.Tuner(
                noop, tune_config=tune.TuneConfig(scheduler=ASHAScheduler()), **o
            ),
            "needs a metric and a mode",
        ),
        (
            lambda **o: tune.Tuner(DataParallelTrainer(noop), param_space={"lr": 1}, **o),
            r"no argument of DataParallelTrainer.*'train_loop_config'",
        ),
        (
            lambda **o: tune.Tuner(
                DataParallelTrainer(noop, scaling_config=ScalingConfig(num_workers=0)), **o
            ),
            "Use num_workers=1",
        ),
        (
            lambda **o: tune.Tuner(tune.with_resources(noop, {"gpu": 64}), **o),
            "needs 64 GPUs, and this machine shows",
        ),
        (
            lambda **o: tune.Tuner(tune.with_resources(noop, {"cpus": 2}), **o),
            "Did you mean 'cpu'",
        ),
        (
            lambda **o: tune.Tuner(tune.with_resources(noop, {"CPU": 2}), **o),
            "Did you mean 'cpu'",
        ),
        (
            lambda **o: tune.Tuner(lambda config, data: None, **o),
            r"takes 2 arguments.*tune\.with_parameters\(<lambda>, data=\.\.\.\)",
        ),
        (
            lambda **o: tune.Tuner(lambda config, *, data: None, **o),
            r"<lambda>\(\*, data\): .*tune\.with_parameters\(<lambda>, data=\.\.\.\)",
        ),
        (
            lambda **o: tune.Tuner(noop, param_space={"a": tune.sample_from(lambda: 1 / 0)}, **o),
            "ZeroDivisionError",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_starts(
    make: Callable[..., Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        make(run_config=quiet(tmp_path)).fit()
    assert not (tmp_path / "sweep").exists()


def test_a_sweep_whose_settings_are_damaged_or_writable_by_others_is_not_restored(
    tmp_path: Path,
) -> None:
    tune.Tuner(noop, param_space={}, run_config=quiet(tmp_path)).fit()
    settings = tmp_path / "sweep/tuner.pkl"
    settings.chmod(0o620)
    with pytest.raises(ConfigError, match="can be written by others"):
        tune.Tuner.restore(tmp_path / "sweep", noop)
    settings.chmod(0o600)
    settings.write_bytes(settings.read_bytes()[:40])
    with pytest.raises(DamagedFileError, match=r"tuner\.pkl"):
        tune.Tuner.restore(tmp_path / "sweep", noop)
    settings.unlink()
    with pytest.raises(ConfigError, match="is gone, which has the settings"):
        tune.Tuner.restore(tmp_path / "sweep", noop)


def test_two_sweeps_in_one_storage_do_not_wait_for_each_other(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    roots = [tmp_path / "s", tmp_path / "t"]
    tuners = [start(root.name) for root in roots]
    # None has ended: all four run at the same time.
    wait_until(lambda: min(*_reports(roots[0]), *_reports(roots[1])) > 4)
    (tmp_path / "gate").touch()
    for tuner in tuners:
        said, _ = tuner.communicate(timeout=TIMEOUT_S)
        assert tuner.returncode == 0, said
        assert said.rstrip().endswith("BEGUN [0, 0] 0")


def test_a_directory_that_is_no_sweep_is_not_restored(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        assert not tune.Tuner.can_restore(path)
        with pytest.raises(ConfigError, match="it is not a sweep"):
            tune.Tuner.restore(path, noop)


def test_values_that_cannot_be_compared_are_said_to_be_none(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        hpctrain.report({"loss": float("nan"), "trial_id": "mine", "state": "own"})

    grid = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=quiet(tmp_path),
    ).fit()
    with pytest.raises(ConfigError, match=r"'loss' to compare. What was reported is NaN"):
        grid.get_best_result()
    frame = grid.get_dataframe()
    assert frame["trial_id"].tolist() == ["trial_00000", "trial_00001"]
    assert frame["state"].tolist() == 2 * ["TERMINATED"]
    assert frame["metrics/trial_id"].tolist() == 2 * ["mine"]


def test_the_metric_of_the_scheduler_is_that_of_the_sweep(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        hpctrain.report({"loss": config["x"]})

    tuner = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([2, 1])},
        tune_config=tune.TuneConfig(scheduler=ASHAScheduler(metric="loss", mode="min")),
        run_config=quiet(tmp_path),
    )
    first = tuner.fit()
    again = tune.Tuner.restore(tmp_path / "sweep", train)
    for grid in (first, tuner.get_results(), again.get_results(), again.fit()):
        assert grid.get_best_result().config == {"x": 1}
    overview = read_overview(tmp_path / "sweep")
    assert (overview.metric, overview.mode, overview.best) == ("loss", "min", "trial_00001")


def test_a_path_in_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(config: dict[str, Any]) -> None:
        hpctrain.report({"loss": config["x"]})

    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(home))
    grid = tune.Tuner(train, param_space={"x": 1}, run_config=quiet(Path("~/runs"))).fit()
    assert grid.experiment_path == str(home / "runs/sweep")
    assert tune.Tuner.can_restore("~/runs/sweep")
    (result,) = tune.Tuner.restore("~/runs/sweep", train).get_results()
    assert hpctrain.Result.from_path(f"~/runs/sweep/{Path(result.path).name}").path == result.path
    DataParallelTrainer(noop, run_config=RunConfig(name="run", storage_path="~/runs")).fit()
    assert DataParallelTrainer.can_restore("~/runs/run")
    assert DataParallelTrainer.restore("~/runs/run").run_config.name == "run"
    (home / "saved").mkdir()
    assert Checkpoint.from_directory("~/saved").path == home / "saved"
    copy = Checkpoint("~/saved").to_directory("~/copied")
    assert Path(copy) == home / "copied"
    assert (home / "copied").is_dir()
    grid.write_parquet("~/table.parquet")
    assert (home / "table.parquet").is_file()
    assert not list(here.iterdir())


def test_results_of_a_sweep_that_has_not_begun_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has not begun\. Call fit"):
        tune.Tuner(noop, run_config=quiet(tmp_path)).get_results()


@pytest.mark.parametrize("metric", ["training_iteration", "time_total_s"])
def test_the_best_trial_by_what_each_report_gets(tmp_path: Path, metric: str) -> None:
    def train(config: dict[str, Any]) -> None:
        for _ in range(config["reports"]):
            hpctrain.report({"loss": 1.0})

    grid = tune.Tuner(
        train,
        param_space={"reports": tune.grid_search([1, 3, 2])},
        tune_config=tune.TuneConfig(metric=metric, mode="max"),
        run_config=quiet(tmp_path),
    ).fit()
    scores = {
        path.name: read_record(SweepPaths(root=tmp_path / "sweep")).trials[path.name]
        for path in (Path(result.path) for result in grid)
    }
    best = max(scores, key=lambda name: scores[name].metrics[metric])
    assert Path(grid.get_best_result().path).name == best


def test_an_integer_that_no_float_holds_ends_no_sweep(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        for _ in range(2):
            hpctrain.report({"loss": config["loss"]})

    grid = tune.Tuner(
        train,
        param_space={"loss": tune.grid_search([10**400, 1, -(10**400), 2.5])},
        tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=ASHAScheduler(max_t=2)),
        run_config=quiet(tmp_path),
    ).fit()
    assert grid.num_errors == 0
    assert grid.get_best_result().config == {"loss": 1}
    assert grid.get_best_result(filter_nan_and_inf=False).config == {"loss": -(10**400)}


def test_a_sweep_of_which_all_trials_fail_says_why_there_is_no_best_one(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        raise RuntimeError("no such data")

    grid = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=quiet(tmp_path),
    ).fit()
    with pytest.raises(
        ConfigError,
        match=r"2 of 2 failed before they reported anything: .*RuntimeError: no such data   "
        r"ResultGrid\.errors .*restart_errored=True",
    ):
        grid.get_best_result()


def test_more_memory_than_there_is_is_refused_before_the_start(tmp_path: Path) -> None:
    needy = tune.with_resources(noop, {"memory": 2**50})
    with pytest.raises(ConfigError, match=r"needs 1\.05e\+06 GiB of memory, and this machine has"):
        tune.Tuner(needy, run_config=quiet(tmp_path)).fit()
    assert not (tmp_path / "sweep").exists()


def test_a_sweep_that_an_error_ends_keeps_its_reason(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        hpctrain.report({"accuracy": 1.0})

    config = tune.TuneConfig(metric="loss", mode="min")
    with pytest.raises(ConfigError, match="reported no 'loss'"):
        tune.Tuner(train, tune_config=config, run_config=quiet(tmp_path)).fit()
    paths = SweepPaths(root=tmp_path / "sweep")
    found = to_json(paths, read_record(paths))
    assert found["state"] == "interrupted"
    assert found["reason"].startswith("trial_00000 reported no 'loss'")
    assert read_overview(paths.root).reason == found["reason"]
    SweepLedger(paths=paths).append("sweep-restored")
    assert read_record(paths).reason is None


def test_restore_takes_the_arguments_of_ray_tune_in_their_order(tmp_path: Path) -> None:
    tune.Tuner(noop, param_space={}, run_config=quiet(tmp_path)).fit()
    assert tune.Tuner.restore(tmp_path / "sweep", noop, True, True, False, None, None)
    for call in (
        lambda: tune.Tuner.restore(tmp_path / "sweep", noop, storage_filesystem=object()),
        lambda: tune.Tuner.can_restore(tmp_path / "sweep", object()),
    ):
        with pytest.raises(ConfigError, match="a directory that all nodes see"):
            call()


def test_parameters_and_resources_of_a_function_reach_its_trials(tmp_path: Path) -> None:
    def train(config: dict[str, Any], data: list[int]) -> None:
        hpctrain.report({"sum": sum(data), "threads": int(os.environ["OMP_NUM_THREADS"])})

    function = tune.with_parameters(train, data=[1, 2, 3])
    grid = tune.Tuner(
        tune.with_resources(function, {"cpu": 2}), param_space={}, run_config=quiet(tmp_path)
    ).fit()
    assert grid[0].metrics == {"sum": 6, "threads": 2}


def test_a_sweep_begins_anew_if_it_is_to(tmp_path: Path) -> None:
    grids = [
        tune.Tuner(noop, param_space={"x": x}, run_config=quiet(tmp_path, existing="restart")).fit()
        for x in (1, 2)
    ]
    assert grids[1][0].config == {"x": 2}
    (aside,) = [path for path in tmp_path.iterdir() if path.name != "sweep"]
    assert read_record(SweepPaths(root=aside)).trials["trial_00000"].config == {"x": 1}


def test_a_sweep_whose_trials_still_run_does_not_begin_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit() -> None:
        config = quiet(tmp_path, existing="restart")
        tune.Tuner(noop, param_space={"x": tune.grid_search([1, 2])}, run_config=config).fit()

    fit()
    run = RunPaths(tmp_path / "sweep/trial_00001")
    status = read_status(run)
    assert status is not None
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as executor:
        host = socket.gethostname()
        started = process_start_time(executor.pid)
        dead = replace(
            status,
            state=RunState.RUNNING,
            owner_host=host,
            owner_pid=executor.pid,
            owner_start=started or 0,
        )
        write_status(run, dead)
        with pytest.raises(ConfigError, match=r"trials that still run: trial_00001\..*tune stop"):
            fit()
        assert [path.name for path in tmp_path.iterdir()] == ["sweep"]
    # Where Slurm does not answer, a job of it may run.
    write_status(run, replace(status, state=RunState.RUNNING, launcher="slurm", job_id="77"))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LaunchError, match=r"not known whether one still runs\. Begin it anew"):
        fit()
    monkeypatch.undo()
    # It has died, and its sweep is moved aside as any other.
    write_status(run, dead)
    fit()
    assert len([*tmp_path.iterdir()]) == 2


def test_importing_tune_loads_nothing_heavy() -> None:
    code = "import sys, hpctrain.tune as t; t.Tuner; t.uniform; print(*sorted(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    loaded = set(found.stdout.split())
    assert "hpctrain.tune.tuner" in loaded, found.stderr
    assert not loaded & {"numpy", "pandas", "optuna", "torch", "mpi4py", "rich", "submitit"}


class _Unshown:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def test_a_config_that_json_and_text_cannot_hold_reaches_its_trial(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        assert isinstance(config["unshown"], _Unshown)
        hpctrain.report({"loss": config["by_size"][1, 2]})

    space = {"by_size": {(1, 2): 3}, "unshown": _Unshown()}
    grid = tune.Tuner(train, param_space=space, run_config=quiet(tmp_path)).fit()
    assert grid.errors == []
    assert grid[0].metrics == {"loss": 3}
    record = read_record(SweepPaths(root=tmp_path / "sweep"))
    assert record.trials["trial_00000"].config["by_size"] == {"(1, 2)": 3}
    (result,) = tune.Tuner.restore(tmp_path / "sweep", train).get_results()
    assert result.config["by_size"] == {(1, 2): 3}


@pytest.mark.parametrize("make", [lambda itself: itself, lambda itself: tune.choice([itself])])
def test_a_config_that_holds_itself_is_refused_before_anything_starts(
    make: Callable[[Any], Any], tmp_path: Path
) -> None:
    itself: dict[str, Any] = {}
    itself["again"] = [itself]
    with pytest.raises(ConfigError, match=r"holds itself.* at a/again/0/again/\.\.\."):
        tune.Tuner(noop, param_space={"a": make(itself)}, run_config=quiet(tmp_path)).fit()
    assert not (tmp_path / "sweep").exists()


def test_settings_of_something_else_are_not_restored(tmp_path: Path) -> None:
    tune.Tuner(noop, param_space={}, run_config=quiet(tmp_path)).fit()
    (tmp_path / "sweep/tuner.pkl").write_bytes(pickle.dumps({"not": "a sweep"}))
    with pytest.raises(DamagedFileError, match="holds a dict, and no sweep"):
        tune.Tuner.restore(tmp_path / "sweep", noop)


def test_resources_may_depend_on_the_config(tmp_path: Path) -> None:
    trainable = tune.with_resources(noop, lambda config: {"cpu": config["threads"]})
    for threads in (1, 2):
        trainer = make_trial_trainer(trainable, {"threads": threads}, RunConfig())
        assert trainer.scaling_config == ScalingConfig(resources_per_worker={"CPU": threads})
    with pytest.raises(ConfigError, match=r"function of with_resources.* failed: KeyError"):
        tune.Tuner(trainable, run_config=quiet(tmp_path)).fit()
    taking = tune.with_resources(noop, lambda config: {"cpu": config["cpus"].pop()})
    given = {"cpus": [2, 1]}
    make_trial_trainer(taking, given, RunConfig())
    assert given == {"cpus": [2, 1]}, "it is the configuration of the trial"
    wrong = tune.with_resources(noop, lambda config: 3)
    with pytest.raises(ConfigError, match="has the resources 3"):
        tune.Tuner(wrong, run_config=quiet(tmp_path)).fit()
    with pytest.raises(ConfigError, match="has the resources 3"):
        tune.with_resources(noop, 3)  # type: ignore[arg-type]


def _yields(config: dict[str, Any]) -> Any:
    yield hpctrain.report({"loss": 1})


async def _waits(config: dict[str, Any]) -> None:
    hpctrain.report({"loss": 1})


async def _waits_and_yields(config: dict[str, Any]) -> Any:
    yield hpctrain.report({"loss": 1})


class _Called:
    async def __call__(self, config: dict[str, Any]) -> None:
        hpctrain.report({"loss": 1})


@pytest.mark.parametrize(
    "trainable",
    [
        _yields,
        _waits,
        _waits_and_yields,
        _Called(),
        tune.with_parameters(_yields, more=1),
        tune.with_resources(_waits, {"cpu": 1}),
    ],
)
def test_a_function_that_a_call_does_not_run_is_refused(trainable: Any) -> None:
    with pytest.raises(ConfigError, match="of which a call runs nothing"):
        tune.Tuner(trainable)


class _Middle(Searcher):
    def suggest(self, trial_id: str) -> Any:
        return {"x": 0.5}

    def on_trial_complete(self, *result: Any, **more: Any) -> None:
        """Learn nothing."""


class _Odd(_Middle):
    """Proposes what no trial can be made of."""

    def __init__(self, suggestion: Any) -> None:
        super().__init__(metric="loss", mode="min")
        self.suggestion = suggestion

    def suggest(self, trial_id: str) -> Any:
        return self.suggestion


@pytest.mark.parametrize(
    ("trainable", "suggestion", "message"),
    [
        (DataParallelTrainer(noop), {"x": 0.5}, "has the key 'x', which is no argument"),
        (
            DataParallelTrainer(noop),
            {"scaling_config": {"num_wokers": 2}},
            "Did you mean 'num_workers'",
        ),
        (tune.with_resources(noop, {"gpu": 1}), {}, "needs 1 GPUs, and this machine shows 0"),
        (noop, [0.5], "A dict of parameters"),
    ],
    ids=["argument", "field", "gpu", "list"],
)
def test_what_a_search_proposes_is_refused_before_anything_starts(
    trainable: Any, suggestion: Any, message: str, tmp_path: Path
) -> None:
    def make(trainable: Any, search: Searcher) -> tune.Tuner:
        config = tune.TuneConfig(search_alg=search)
        return tune.Tuner(trainable, tune_config=config, run_config=quiet(tmp_path))

    with pytest.raises(ConfigError, match=message):
        make(trainable, _Odd(suggestion)).fit()
    assert not (tmp_path / "sweep").exists()
    # The script that is put right runs under the same name.
    found = make(_report_x, _Middle(metric="loss", mode="min")).fit()
    assert [result.metrics["loss"] for result in found if result.metrics] == [0.5]


def _report_x(config: dict[str, Any]) -> None:
    hpctrain.report({"loss": config["x"]})


@pytest.mark.parametrize(
    ("config", "owner"),
    [
        ({"scheduler": ASHAScheduler(metric="los", mode="min")}, "AsyncHyperBandScheduler"),
        ({"search_alg": _Middle(metric="los", mode="min")}, "_Middle"),
        ({"metric": "los", "mode": "min", "scheduler": ASHAScheduler()}, "TuneConfig"),
    ],
    ids=["scheduler", "search", "config"],
)
def test_the_metric_of_a_scheduler_or_a_search_has_to_be_reported(
    config: dict[str, Any], owner: str, tmp_path: Path
) -> None:
    def train(config: dict[str, Any]) -> None:
        for _ in range(2000):
            hpctrain.report({"loss": 1.0})
            time.sleep(0.05)

    tuner = tune.Tuner(
        train,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(**config),
        run_config=quiet(tmp_path),
    )
    with pytest.raises(ConfigError, match=rf"no 'los', which {owner}\(metric=\.\.\.\).*'loss'"):
        tuner.fit()


def test_the_time_of_a_scheduler_has_to_be_reported(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        for epoch in range(2000):
            hpctrain.report({"loss": 1.0, "epoch": epoch})
            time.sleep(0.05)

    tuner = tune.Tuner(
        train,
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", scheduler=ASHAScheduler(time_attr="epochs", max_t=10)
        ),
        run_config=quiet(tmp_path),
    )
    message = (
        r"no 'epochs', which AsyncHyperBandScheduler\(time_attr=\.\.\.\) names\. The metrics are "
        r"epoch, loss, .*training_iteration.*Did you mean 'epoch'"
    )
    with pytest.raises(ConfigError, match=message):
        tuner.fit()


def _begun(root: Path) -> list[str]:
    """Return the trials that were begun, in all sweeps that are in a directory."""
    return [
        line
        for ledger in root.glob("*/tune.jsonl")
        for line in ledger.read_text().splitlines()
        if '"trial-started"' in line
    ]


def test_the_variable_for_runs_that_exist_is_of_the_sweep_and_never_of_its_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(config: dict[str, Any]) -> None:
        checkpoint = hpctrain.get_checkpoint()
        hpctrain.report({"resumed": checkpoint is not None}, Checkpoint.from_dict({"x": 1}))
        if checkpoint is None:
            raise ValueError("the first time")

    def new() -> tune.Tuner:
        return tune.Tuner(train, param_space={}, run_config=quiet(tmp_path))

    assert new().fit().num_errors == 1
    for policy in ("auto", "resume", "error"):
        monkeypatch.setenv("HPCTRAIN_EXISTING", policy)
        with pytest.raises(ConfigError, match="is a sweep already"):
            new().fit()
    with pytest.raises(ConfigError, match="HPCTRAIN_EXISTING=error accepts none"):
        tune.Tuner.restore(tmp_path / "sweep", train).fit()
    monkeypatch.setenv("HPCTRAIN_EXISTING", "anew")
    with pytest.raises(ConfigError, match="HPCTRAIN_EXISTING='anew'"):
        new().fit()
    assert len(_begun(tmp_path)) == 1
    # A job that Slurm has started again goes on with what it had begun.
    monkeypatch.setenv("HPCTRAIN_EXISTING", "restart")
    ledger = SweepLedger(paths=SweepPaths(root=tmp_path / "sweep"))
    ledger.append("sweep-restored", job_id="77")
    with monkeypatch.context() as job:
        job.setenv("SLURM_JOB_ID", "77")
        job.setenv("SLURM_RESTART_COUNT", "1")
        job.setenv("HPCTRAIN_LAUNCHER", "local")
        restored = tune.Tuner.restore(tmp_path / "sweep", train, resume_errored=True)
        assert restored.fit()[0].metrics == {"resumed": True}
    assert len(list(tmp_path.iterdir())) == 1, "nothing was moved aside"
    assert tune.Tuner.restore(tmp_path / "sweep", train).fit().num_errors == 1
    assert len(list(tmp_path.iterdir())) == 2
    assert new().fit().num_errors == 1
    assert len(list(tmp_path.iterdir())) == 3


def test_a_search_space_that_is_given_again_has_to_be_the_same(tmp_path: Path) -> None:
    def space(high: float) -> dict[str, Any]:
        return {"x": tune.uniform(0, high), "y": tune.sample_from(lambda config: config["x"] * 2)}

    tune.Tuner(noop, param_space=space(1), run_config=quiet(tmp_path)).fit()
    restored = tune.Tuner.restore(tmp_path / "sweep", noop, param_space=space(1))
    assert len(restored.get_results()) == 1
    with pytest.raises(ConfigError, match="it is not the search space of"):
        tune.Tuner.restore(tmp_path / "sweep", noop, param_space=space(2))
    with pytest.raises(ConfigError, match="trials that have not ended always go on"):
        tune.Tuner.restore(tmp_path / "sweep", noop, resume_unfinished=False)
