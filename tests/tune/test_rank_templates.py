"""Ranks of trials are forked from a process that has imported once for the whole sweep."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import hpctrain
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig, tune
from hpctrain.control import local_socket
from hpctrain.errors import ConfigError
from hpctrain.launch.fit import prepare
from hpctrain.launch.request import Submission
from hpctrain.tune.rank_templates import RankTemplates
from tests.waiting import wait_until
from tests.worker.programs import is_alive


@pytest.fixture
def templates() -> Iterator[RankTemplates]:
    with closing(RankTemplates()) as made:
        yield made


def prepared(storage: Path, num_cpus: int = 1) -> Submission:
    trainer = DataParallelTrainer(
        lambda: None,
        scaling_config=ScalingConfig(resources_per_worker={"CPU": num_cpus}),
        run_config=RunConfig(storage_path=storage, name="run"),
    )
    return prepare(trainer._request().named(), "local")


def parent_of_rank(config: dict[str, object]) -> None:
    parent = os.getppid()
    words = Path(f"/proc/{parent}/cmdline").read_text().split("\0")
    if config.get("kills") and config["number"] == 0:
        os.kill(parent, signal.SIGKILL)
    hpctrain.report({"parent": parent, "is_forked": "hpctrain.worker.fork_server" in words})


def sweep(storage: Path, **config: object) -> list[dict[str, object]]:
    tuner = tune.Tuner(
        parent_of_rank,
        param_space={"number": tune.grid_search([0, 1, 2, 3]), **config},
        tune_config=tune.TuneConfig(max_concurrent_trials=1),
        run_config=RunConfig(storage_path=storage, name="sweep", verbose=0),
    )
    results = tuner.fit()
    assert not results.errors
    return [dict(result.metrics or {}) for result in results]


def test_all_trials_have_ranks_of_one_process(tmp_path: Path) -> None:
    found = sweep(tmp_path)
    assert [metrics["is_forked"] for metrics in found] == 4 * [True]
    (server,) = {metrics["parent"] for metrics in found}
    assert not is_alive(int(str(server))), "it outlives the sweep"


def test_ranks_import_for_themselves_where_a_site_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCTRAIN_FORK_SERVER", "0")
    assert [metrics["is_forked"] for metrics in sweep(tmp_path)] == 4 * [False]


@pytest.mark.parametrize("name", ["HPCTRAIN_FORK_SERVER", "HPCTRAIN_HUB_FANOUT"])
def test_a_variable_without_a_sense_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "yes")
    with pytest.raises(ConfigError, match=f"{name}='yes'"):
        prepared(tmp_path)
    with pytest.raises(ConfigError, match=f"{name}='yes'") as caught:
        sweep(tmp_path)
    assert "stopped" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_costs_no_trial_and_the_next_ones_have_another(tmp_path: Path) -> None:
    found = sweep(tmp_path, kills=True)
    assert [metrics["is_forked"] for metrics in found] == 4 * [True]
    first, *later = (metrics["parent"] for metrics in found)
    assert first not in later
    assert len(set(later)) == 1


def test_trials_with_other_variables_or_threads_have_a_process_of_their_own(
    tmp_path: Path, templates: RankTemplates
) -> None:
    run = prepared(tmp_path)
    names = [
        templates.offer(run, {}),
        templates.offer(run, {"CUDA_VISIBLE_DEVICES": "1"}),
        templates.offer(run, {"CUDA_VISIBLE_DEVICES": "0"}),
        templates.offer(prepared(tmp_path, num_cpus=2), {}),
    ]
    assert len(set(names)) == 4
    assert all(names)
    again = [templates.offer(run, {"CUDA_VISIBLE_DEVICES": "1"}), templates.offer(run, {})]
    assert again == [names[1], names[0]]


def test_the_process_that_was_not_used_for_longest_ends_when_there_are_too_many(
    tmp_path: Path, templates: RankTemplates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpctrain.tune.rank_templates._MOST", 2)
    run = prepared(tmp_path)
    first, second = (templates.offer(run, {"SEED": seed}) for seed in "12")
    assert templates.offer(run, {"SEED": "1"}) == first
    templates.offer(run, {"SEED": "3"})
    assert templates.offer(run, {"SEED": "1"}) == first
    assert templates.offer(run, {"SEED": "2"}) != second


def test_a_module_for_trials_that_starts_a_thread_is_left_out(
    tmp_path: Path, templates: RankTemplates
) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "library.py").write_text(
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    paths = [str(packages), os.environ.get("PYTHONPATH", "")]
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    run = prepared(tmp_path)
    settings = replace(run.spec.settings, preload_for_trials=("library",))
    run = replace(run, spec=replace(run.spec, settings=settings))
    first = templates.offer(run, variables)

    def another() -> list[str]:
        name = templates.offer(run, variables)
        return [] if name == first else [name]

    (name,) = wait_until(another)
    assert name, "trials are without a server"
    with local_socket.connect(name, timeout_s=0) as client:
        client.settimeout(60)
        # One that cannot serve closes the connection.
        assert client.recv(1) == b"R"
