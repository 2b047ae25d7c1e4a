from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpctrain import report
from hpctrain.config import RunConfig
from hpctrain.errors import ConfigError, RunStoppedError
from hpctrain.tune import grid_search
from hpctrain.tune.existing_sweep import find_paths, has_job_ended, is_to_go_on
from hpctrain.tune.ledger import SweepLedger, SweepPaths, read_record
from hpctrain.tune.person_stops import request_stop
from hpctrain.tune.sweep import Sweep
from hpctrain.tune.tune_config import TuneConfig
from hpctrain.tune.tuner import Tuner
from tests.closed import closed_directory


def train() -> None:
    pass


def begun(root: Path, *, job_id: str | None = None) -> SweepPaths:
    """Return a sweep that another tuner has begun."""
    root.mkdir(parents=True, exist_ok=True)
    paths = SweepPaths(root=root)
    SweepLedger(paths=paths).append("sweep-started", path=str(root), job_id=job_id)
    return paths


def config(folder: Path, name: str | None = "sweep", **options: Any) -> RunConfig:
    return RunConfig(storage_path=str(folder), name=name, **options)


def test_a_sweep_without_a_name_is_called_after_its_function(tmp_path: Path):
    paths = find_paths(config(tmp_path, None), train, "auto")
    assert paths.root.parent == tmp_path
    assert paths.root.name.startswith("train_")


def test_a_sweep_that_is_there_is_refused_unless_it_is_moved_aside(tmp_path: Path):
    begun(tmp_path / "sweep")
    with pytest.raises(ConfigError, match=r"is a sweep already\. Go on with it: Tuner\.restore"):
        find_paths(config(tmp_path), train, "auto")
    assert find_paths(config(tmp_path), train, "restart").root == tmp_path / "sweep"


@pytest.mark.parametrize("ledger", [None, "", '{"event": "sweep-st'], ids=["gone", "empty", "torn"])
def test_trials_whose_ledger_is_gone_are_not_taken_for_those_of_a_new_sweep(
    tmp_path: Path, ledger: str | None
):
    calls = tmp_path / "calls"

    def train(settings: Mapping[str, Any]) -> None:
        with calls.open("a") as file:
            file.write("x")
        report({"loss": 1.0})

    def sweep(**options: Any) -> Tuner:
        space = {"lr": grid_search([1, 2])}
        return Tuner(train, param_space=space, run_config=config(tmp_path, **options))

    sweep().fit()
    events = tmp_path / "sweep/tune.jsonl"
    events.unlink()
    if ledger is not None:
        events.write_text(ledger)
    with pytest.raises(ConfigError, match=r"has trials of a sweep, but its tune\.jsonl is gone"):
        sweep().fit()
    results = sweep(existing="restart").fit()
    assert (len(results), results.num_errors, calls.read_text()) == (2, 0, "xxxx")
    assert [path for path in tmp_path.glob("sweep.*/trial_00001") if path.is_dir()]


def test_a_sweep_that_others_may_look_at_is_not_restored_by_them(tmp_path: Path):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        paths = begun(Path(folder, "sweep"))
        paths.tuner.write_bytes(b"")
        for path, mode in ((paths.root, 0o755), (paths.events, 0o644), (paths.tuner, 0)):
            path.chmod(mode)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            with pytest.raises(ConfigError, match=r"may not read \S+/tuner\.pkl .* that is yours"):
                Tuner.restore(paths.root, train)
        finally:
            os.seteuid(user)


def test_a_run_is_not_taken_for_a_sweep(tmp_path: Path):
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep/plan.json").write_text("{}")
    with pytest.raises(ConfigError, match="is a run, and not a sweep"):
        find_paths(config(tmp_path), train, "restart")


@pytest.mark.parametrize("closed", ["storage", "run"])
def test_a_directory_that_is_closed_to_this_user_is_named(closed: str):
    with (
        closed_directory(closed) as storage,
        pytest.raises(ConfigError, match=rf"may not write into {storage}.*that is yours"),
    ):
        find_paths(config(storage, "run"), train, "auto")


@pytest.mark.parametrize("closed", ["storage", "run"])
def test_a_sweep_that_is_closed_to_this_user_is_not_restored(closed: str):
    message = r"/run/t\w+\.\w+ \(Permission denied\): .* and has mode 0000\. .* that is yours"
    with closed_directory(closed) as storage:
        with pytest.raises(ConfigError, match=message):
            Tuner.restore(storage / "run", train)
        with pytest.raises(ConfigError, match=message):
            Tuner.can_restore(storage / "run")


@pytest.mark.parametrize(("existing", "goes_on"), [("", True), ("auto", True), ("restart", False)])
def test_the_variable_wins_over_what_a_script_restores(
    existing: str, goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    monkeypatch.setenv("HPCTRAIN_EXISTING", existing)
    assert is_to_go_on(begun(tmp_path)) is goes_on
    monkeypatch.setenv("HPCTRAIN_EXISTING", "error")
    with pytest.raises(ConfigError, match="Unset it to go on"):
        is_to_go_on(begun(tmp_path))


def test_a_job_that_slurm_starts_again_goes_on_whatever_the_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("HPCTRAIN_EXISTING", "restart")
    assert is_to_go_on(begun(tmp_path / "mine", job_id="7"))
    assert not is_to_go_on(begun(tmp_path / "another", job_id="6"))


@pytest.mark.parametrize(
    ("job_id", "restarts", "has_ended"),
    [("7", "1", False), ("7", "2", True), ("8", "1", True), (None, None, True)],
)
def test_another_job_or_another_start_of_it_says_that_that_of_the_last_tuner_is_over(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    job_id: str | None,
    restarts: str | None,
    has_ended: bool,
):
    for name, value in (("SLURM_JOB_ID", job_id), ("SLURM_RESTART_COUNT", restarts)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    paths = begun(tmp_path, job_id="7")
    # That of a version that does not write how often the job was started again.
    assert has_job_ended(read_record(paths))
    SweepLedger(paths=paths).append("sweep-restored", job_id="7", restarts=1)
    assert has_job_ended(read_record(paths)) is has_ended
    SweepLedger(paths=paths).append("sweep-restored", job_id=None, restarts=0)
    assert not has_job_ended(read_record(paths))


def test_a_job_of_the_tuner_is_not_that_of_trials_that_have_their_own(tmp_path: Path):
    paths = SweepPaths(root=tmp_path)
    SweepLedger(paths=paths).append("sweep-started", job_id="7", launcher="slurm")
    assert not has_job_ended(read_record(paths))


def test_a_tuner_counts_an_end_of_its_trials_only_in_another_start_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen = []

    def adopt(self: Sweep, trials: object, *, was_in_job: bool) -> None:
        seen.append(was_in_job)

    monkeypatch.setattr(Sweep, "adopt", adopt)
    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    tuner = Tuner(train, run_config=config(tmp_path), tune_config=TuneConfig(time_budget_s=1e-9))
    for restarts in ("0", "0", "1", "1", "2"):
        monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
        tuner.fit()
        record = read_record(SweepPaths(root=tmp_path / "sweep"))
        assert (record.job_id, record.restarts) == ("7", int(restarts))
        tuner = Tuner.restore(tmp_path / "sweep", train)
    assert seen == [False, True, False, True]


@pytest.mark.parametrize(
    ("job_id", "restarts", "runs"), [("7", "1", False), ("7", "0", True), ("8", "1", True)]
)
def test_slurm_does_not_start_again_what_a_person_has_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job_id: str, restarts: str, runs: bool
):
    calls = tmp_path / "calls"

    def train(settings: Mapping[str, Any]) -> None:
        with calls.open("a") as file:
            file.write("x")
        report({"loss": 1.0})

    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    Tuner(train, run_config=config(tmp_path)).fit()
    paths = SweepPaths(root=tmp_path / "sweep")
    # Its tuner died before the first trial had begun.
    begun_so_far = paths.events.read_text().splitlines(keepends=True)[:2]
    paths.events.write_text("".join(begun_so_far))
    shutil.rmtree(paths.run("trial_00000"))
    calls.unlink()
    request_stop(paths, now=False)
    monkeypatch.setenv("SLURM_JOB_ID", job_id)
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    if runs:
        assert len(Tuner.restore(paths.root, train).fit()) == 1
    else:
        with pytest.raises(RunStoppedError, match="Slurm has started its job 7 again") as caught:
            Tuner.restore(paths.root, train).fit()
        assert f"remove {paths.stop_request}" in str(caught.value)
        assert paths.events.read_text() == "".join(begun_so_far)
    assert calls.exists() is paths.run("trial_00000").exists() is runs
    assert paths.stop_request.exists() is not runs
