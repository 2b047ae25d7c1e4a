"""Optuna's storage, pruner and known values in a sweep."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import ConfigError, HpctrainError, RunConfig, tune
from hpctrain.tune.learners import Learners
from hpctrain.tune.runner import Report
from hpctrain.tune.schedulers.scheduler import FIFOScheduler
from hpctrain.tune.search.optuna import OptunaSearch
from hpctrain.tune.trial import Trial

optuna = pytest.importorskip("optuna")
SPACE = {"x": tune.uniform(-3, 3), "n": tune.randint(1, 4)}


def make(mode: str = "min", **options: Any) -> OptunaSearch:
    search = OptunaSearch(**options)
    search.set_search_properties("loss", mode, SPACE)
    return search


def go_on(pickled: bytes) -> OptunaSearch:
    """Return what a restored sweep has of a search."""
    stored: OptunaSearch = pickle.loads(pickled)
    stored.set_search_properties("loss", "min", SPACE)
    return stored


def states(storage: str, name: str = "optuna") -> list[str]:
    study = optuna.load_study(study_name=name, storage=storage)
    return [trial.state.name for trial in study.trials]


def test_a_study_in_a_storage_has_each_trial_of_a_restored_sweep_once(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    first = OptunaSearch(storage=storage, seed=1)
    pickled = pickle.dumps(first)
    first.set_search_properties("loss", "min", SPACE)
    configs = {name: first.suggest(name) for name in ("t0", "t1", "t2")}
    first.on_trial_result("t0", {"loss": 3.0, "training_iteration": 1})
    first.on_trial_complete("t0", {"loss": 2.0})
    first.on_trial_result("t1", {"loss": 5.0, "training_iteration": 1})
    restored = go_on(pickled)
    for name, config in configs.items():
        assert config is not None
        restored.restore_trial(name, config)
    # The tuner tells all again.
    restored.on_trial_result("t0", {"loss": 3.0, "training_iteration": 1})
    restored.on_trial_complete("t0", {"loss": 2.0})
    with warnings.catch_warnings():
        # Optuna's, of a step that was reported.
        warnings.simplefilter("error")
        restored.on_trial_result("t1", {"loss": 5.0, "training_iteration": 1})
    restored.on_trial_result("t1", {"loss": 4.0, "training_iteration": 2})
    restored.on_trial_complete("t1", {"loss": 4.0})
    restored.on_trial_complete("t2", None, error=True)
    assert states(storage) == ["COMPLETE", "COMPLETE", "FAIL"]
    study = optuna.load_study(study_name="optuna", storage=storage)
    assert study.trials[1].intermediate_values == {1: 5.0, 2: 4.0}
    assert [trial.params["x"] for trial in study.trials] == [c["x"] for c in configs.values() if c]


def test_a_restored_study_knows_trials_whose_values_are_rounded(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    space = {"lr": tune.qloguniform(0.1, 0.7, 0.1), "n": tune.qlograndint(8, 64, 8)}
    first = OptunaSearch(storage=storage, seed=1)
    pickled = pickle.dumps(first)
    first.set_search_properties("loss", "min", space)
    configs = {name: first.suggest(name) for name in ("t0", "t1", "t2")}
    restored: OptunaSearch = pickle.loads(pickled)
    restored.set_search_properties("loss", "min", space)
    for name, config in configs.items():
        restored.restore_trial(name, config)
        restored.on_trial_complete(name, {"loss": 2.0})
    assert states(storage) == 3 * ["COMPLETE"]


def test_a_restored_study_decides_on_no_old_report_by_the_newest_one(tmp_path: Path) -> None:
    pruner = optuna.pruners.MedianPruner(n_startup_trials=1)
    first = OptunaSearch(storage=f"sqlite:///{tmp_path}/study.db", pruner=pruner, seed=1)
    pickled = pickle.dumps(first)
    first.set_search_properties("loss", "min", SPACE)
    configs = {name: first.suggest(name) or {} for name in ("t0", "t1")}
    reports = {"t1": [5.0, 4.0, 3.0], "t0": [9.0, 2.0, 1.0, 0.5]}
    for name, losses in reports.items():
        for step, loss in enumerate(losses, start=1):
            assert first.on_trial_result(name, {"loss": loss, "training_iteration": step}) is None
    first.on_trial_complete("t0", {"loss": 1.0})
    restored = go_on(pickled)
    for name, config in configs.items():
        restored.restore_trial(name, config)
    for step, loss in enumerate(reports["t1"], start=1):
        assert restored.on_trial_result("t1", {"loss": loss, "training_iteration": step}) is None
    assert restored.on_trial_result("t1", {"loss": 8.0, "training_iteration": 4}) == "STOP"


def test_a_trial_of_another_sweep_with_the_same_search_is_not_taken_back(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    search = OptunaSearch(storage=storage, seed=1)
    pickled = pickle.dumps(search)
    search.set_search_properties("loss", "min", SPACE)
    first = search.suggest("t0") or {}
    # The same object in another sweep, whose trial has the same name.
    search.suggest("t0")
    restored = go_on(pickled)
    restored.restore_trial("t0", first)
    restored.on_trial_complete("t0", {"loss": 2.0})
    study = optuna.load_study(study_name="optuna", storage=storage)
    (told,) = [trial for trial in study.trials if trial.value is not None]
    assert told.params["x"] == first["x"]


def test_another_sweep_goes_on_with_the_study_and_has_trials_of_its_own(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    for _ in range(2):
        search = make(storage=storage, study_name="mine", seed=1)
        search.suggest("t0")
        search.on_trial_complete("t0", {"loss": 1.0})
    assert states(storage, "mine") == ["COMPLETE", "COMPLETE"]


def test_a_study_that_is_another_one_is_refused(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    make(storage=storage)
    with pytest.raises(ConfigError, match=r"'optuna' .* is to minimize, .* to maximize"):
        make("max", storage=storage)
    with pytest.raises(ConfigError, match="cannot be opened"):
        make(storage=f"sqlite:///{tmp_path}/no/such/directory/study.db")
    with pytest.raises(ConfigError, match="Give a storage too"):
        OptunaSearch(study_name="mine")


def test_points_whose_value_is_known_are_learned_from_and_not_run() -> None:
    points = [{"x": 1.0, "n": 2}, {"x": -2.0, "n": 3}]
    search = make(points_to_evaluate=points, evaluated_rewards=[1.0, 4.0], seed=1)
    assert search._study is not None
    assert search._study.study.best_value == 1.0
    assert search._study.study.best_params == {"x": 1.0, "n": 2}
    first = search.suggest("t0")
    assert first is not None
    assert first["x"] not in (1.0, -2.0)
    with pytest.raises(ConfigError, match="has no n"):
        make(points_to_evaluate=[{"x": 1.0}], evaluated_rewards=[1.0])
    with pytest.raises(ConfigError, match="2 values for 1 points_to_evaluate"):
        OptunaSearch(points_to_evaluate=[{"x": 1.0}], evaluated_rewards=[1.0, 2.0])


def test_a_pruner_stops_a_trial_after_the_report_that_optuna_would() -> None:
    def losses(number: int) -> list[float]:
        return [10.0 / step + (3.0 if number in (2, 4) else 0.0) for step in range(1, 6)]

    pruner = optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=2)
    study = optuna.create_study(pruner=pruner)
    search = make(pruner=pruner, seed=1)
    learners = Learners(FIFOScheduler(), search)
    expected, stopped = [], []
    for number in range(6):
        plain = study.ask()
        last = None
        for step, loss in enumerate(losses(number), start=1):
            plain.report(loss, step)
            if plain.should_prune():
                last = step
                break
        study.tell(
            plain, **({"state": optuna.trial.TrialState.PRUNED} if last else {"values": loss})
        )
        expected.append(last)
        trial = Trial(trial_id=f"t{number}", config=search.suggest(f"t{number}") or {})
        after = None
        for step, loss in enumerate(losses(number), start=1):
            metrics = {"loss": loss, "training_iteration": step}
            report = Report(number=step, metrics=metrics, time=float(step), attempt=1)
            if learners.note_report(trial, report) == "STOP":
                after = step
                break
        search.on_trial_complete(trial.trial_id, metrics)
        stopped.append(after)
    assert stopped == expected
    assert any(stopped)
    assert search._study is not None
    assert [t.state for t in search._study.study.trials] == [t.state for t in study.trials]


def _train(config: dict[str, Any]) -> None:
    for step in range(1, 30):
        hpctrain.report({"loss": abs(config["x"]) + 1 / step})


def test_a_sweep_with_storage_and_pruner(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    pruner = optuna.pruners.ThresholdPruner(upper=1.5, n_warmup_steps=3)
    results = tune.Tuner(
        _train,
        param_space={"x": tune.uniform(-3, 3)},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=6,
            search_alg=OptunaSearch(storage=storage, pruner=pruner, seed=1),
        ),
        run_config=RunConfig(name="sweep", storage_path=str(tmp_path / "runs"), verbose=0),
    ).fit()
    assert not results.errors
    found = optuna.load_study(study_name="optuna", storage=storage).trials
    assert {trial.state.name for trial in found} == {"COMPLETE", "PRUNED"}
    for trial, result in zip(found, results, strict=True):
        assert trial.params["x"] == result.config["x"]
        told = trial.intermediate_values
        assert (trial.state.name == "PRUNED") == (told[max(told)] > 1.5)


def test_a_study_that_cannot_be_opened_is_named_with_a_next_step(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    (tmp_path / "study.db").write_bytes(b"no database" * 1000)
    with pytest.raises(ConfigError, match="Give the address of a database") as caught:
        make(storage=storage)
    assert storage in str(caught.value)
    assert "not a database. Give" in str(caught.value), "the statement of SQL is left out"


def test_the_password_of_a_storage_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        make(storage="nothing://me:secret@host/studies")
    assert "nothing://me:***@host/studies" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_study_with_other_choices_asks_for_another_name(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    make(storage=storage).suggest("t0")
    for other in (tune.choice([1, 2]), tune.choice(["a", "b"])):
        search = make(storage=storage, space={"x": other})
        with pytest.raises(ConfigError, match=r"with another search space: .*another study_name"):
            search.suggest("t0")


def test_a_storage_that_fails_later_is_named_with_a_next_step(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    search = make(storage=f"sqlite:///{path}")
    search.suggest("t0")
    path.write_bytes(b"")
    message = rf"the storage 'sqlite:///{path}' of OptunaSearch .*Tuner\.restore\(\)"
    with pytest.raises(HpctrainError, match=message):
        search.suggest("t1")
    with pytest.raises(HpctrainError, match=message):
        search.on_trial_complete("t0", {"loss": 1.0})


@pytest.mark.parametrize("damage", [b'{"op_code": ', b"\xff\xfe"])
def test_a_damaged_journal_is_named_and_no_search_space_is_blamed(
    tmp_path: Path, damage: bytes
) -> None:
    path = tmp_path / "journal.log"
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    search = make(storage=optuna.storages.JournalStorage(backend))
    config = dict(search.suggest("t0"))
    with path.open("ab") as file:
        file.write(damage + b"\n{}\n")
    message = rf"storage JournalStorage of {path} of OptunaSearch cannot be used any more: .*Once"
    with pytest.raises(HpctrainError, match=message) as caught:
        search.suggest("t1")
    assert not isinstance(caught.value, ConfigError)
    with pytest.raises(HpctrainError, match=message):
        search.restore_trial("t0", config)


def test_a_trial_that_failed_and_runs_again_is_learned_from_once(tmp_path: Path) -> None:
    for given in ({}, {"storage": f"sqlite:///{tmp_path}/study.db"}):
        first = OptunaSearch(seed=1, **given)
        pickled = pickle.dumps(first)
        first.set_search_properties("loss", "min", SPACE)
        config = first.suggest("t0") or {}
        first.on_trial_complete("t0", None, error=True)
        restored = go_on(pickled)
        restored.restore_trial("t0", config)
        # The tuner tells all again, then lets it run once more.
        restored.on_trial_complete("t0", None, error=True)
        restored.retry_trial("t0", config)
        if given:
            # Killed, and restored without a further retry.
            restored = go_on(pickled)
            restored.restore_trial("t0", config)
        restored.on_trial_result("t0", {"loss": 3.0, "training_iteration": 1})
        restored.on_trial_complete("t0", {"loss": 2.0})
        assert restored._study is not None
        study = restored._study.study
        assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE"]
        assert study.best_params["x"] == config["x"]
        assert study.best_value == 2.0


def _train_if(config: dict[str, Any]) -> None:
    hpctrain.report({"loss": abs(config["x"])})
    if not Path(config["go"]).exists():
        raise RuntimeError("not yet")


def test_constants_that_a_storage_cannot_hold_hinder_no_trial_that_runs_again(
    tmp_path: Path,
) -> None:
    def ask(trial: Any) -> dict[str, Any]:
        trial.suggest_float("x", -3, 3)
        return {"kind": Path, "many": [Path]}

    search = OptunaSearch(space=ask, storage=f"sqlite:///{tmp_path}/study.db", seed=1)
    search.set_search_properties("loss", "min", {})
    config = dict(search.suggest("t0") or {})
    assert config["kind"] is Path
    search.on_trial_complete("t0", None, error=True)
    search.retry_trial("t0", config)
    search.on_trial_complete("t0", {"loss": 2.0})
    assert search._study is not None
    assert search._study.study.best_params == {"x": config["x"]}


def test_a_sweep_that_resumes_what_failed_tells_optuna_of_it(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    tune.Tuner(
        _train_if,
        param_space={"x": tune.uniform(-3, 3), "go": str(tmp_path / "go")},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=2,
            search_alg=OptunaSearch(storage=storage, seed=1),
        ),
        run_config=RunConfig(name="sweep", storage_path=str(tmp_path / "runs"), verbose=0),
    ).fit()
    assert states(storage) == ["FAIL", "FAIL"]
    (tmp_path / "go").touch()
    results = tune.Tuner.restore(tmp_path / "runs/sweep", _train_if, resume_errored=True).fit()
    assert not results.errors
    assert states(storage) == ["FAIL", "FAIL", "COMPLETE", "COMPLETE"]
    # Nothing is left to resume.
    tune.Tuner.restore(tmp_path / "runs/sweep", _train_if, resume_errored=True).fit()
    assert states(storage) == ["FAIL", "FAIL", "COMPLETE", "COMPLETE"]
