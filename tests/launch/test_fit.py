"""Which launcher `fit()` and `submit()` call, and what they return or refuse."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpctrain import environ
from hpctrain.config import RunConfig, ScalingConfig
from hpctrain.errors import ConfigError
from hpctrain.launch import fit
from hpctrain.launch.existing import Existing
from hpctrain.launch.fit import _begin_or_find
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.run_record import RunRecord
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus
from tests.closed import closed_directory

BEGINS = next(one for one in Existing if one.begins)


class Launchers:
    """Takes the place of the launchers, and keeps which of them was called."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.called: list[str] = []
        self.paths = RunPaths(root / "run")
        self.paths.root.mkdir()
        self.paths.plan.write_text('{"format": 2}')
        RunRecord(self.paths).write(RunStatus(name="run", state=RunState.FINISHED, launcher=""))
        self.existing = BEGINS
        request: Any = SimpleNamespace(
            paths=self.paths,
            scaling_config=ScalingConfig(),
            run_config=RunConfig(name="run", verbose=0),
        )
        request.named = lambda: request
        self.request = request
        self._monkeypatch = monkeypatch
        for name in ("spmd.fit_spmd", "inline.run_inline", "here.run_here", "follow.follow_to_end"):
            call = partial(self._call, name.split(".")[1])
            monkeypatch.setattr(f"hpctrain.launch.{name}", call)
        monkeypatch.setattr("hpctrain.execute.fork_server.fork_server_for", lambda *_: None)
        monkeypatch.setattr(fit, "prepare", self._prepare)
        monkeypatch.setattr(fit, "_begin_or_find", lambda *_, **__: self.existing)
        monkeypatch.setattr(environ, "in_rank", lambda: False)
        monkeypatch.setattr("hpctrain.slurm.job.refuse_ended_allocation", lambda: None)

    def choose(self, launcher: str) -> None:
        self._monkeypatch.setattr(fit, "choose_launcher", lambda *_: launcher)

    def _call(self, name: str, *_: Any, **__: Any) -> str:
        self.called.append(name)
        return f"result of {name}"

    def _prepare(self, request: Any, launcher: str, *, in_background: bool = False) -> Any:
        self.called.append(f"prepare {launcher}{' in background' if in_background else ''}")
        plan, spec = SimpleNamespace(launcher=launcher), SimpleNamespace(settings=None)
        return SimpleNamespace(request=self.request, plan=plan, spec=spec)


@pytest.fixture
def launchers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launchers:
    return Launchers(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("launcher", "called"),
    [
        ("inline", "run_inline"),
        ("local", "run_here"),
        ("allocation", "run_here"),
        ("mpiexec", "run_here"),
        ("slurm", "follow_to_end"),
    ],
)
def test_a_run_that_begins_is_given_to_its_launcher(
    launchers: Launchers, launcher: str, called: str
):
    launchers.choose(launcher)
    assert fit.fit(launchers.request).state == "finished"
    assert launchers.called == [f"prepare {launcher}", called]


def test_existing_ranks_prepare_the_run_themselves(launchers: Launchers):
    launchers.choose("spmd")
    assert fit.fit(launchers.request) == "result of fit_spmd"
    assert launchers.called == ["fit_spmd"]


@pytest.mark.parametrize("launcher", ["inline", "local", "slurm"])
def test_a_run_that_is_finished_is_returned(launchers: Launchers, launcher: str):
    launchers.choose(launcher)
    launchers.existing = Existing.FINISHED
    assert fit.fit(launchers.request).state == "finished"
    assert launchers.called == [f"prepare {launcher}"]


@pytest.mark.parametrize("launcher", ["local", "slurm"])
def test_a_run_that_another_process_runs_is_followed(launchers: Launchers, launcher: str):
    launchers.choose(launcher)
    launchers.existing = Existing.FOLLOW
    assert fit.fit(launchers.request).state == "finished"
    assert launchers.called == [f"prepare {launcher}", "follow_to_end"]


@pytest.mark.parametrize(
    ("launcher", "message"),
    [("inline", "num_workers=0 runs in this interpreter"), ("spmd", "one of several ranks")],
)
def test_a_run_without_a_process_of_its_own_cannot_be_submitted(
    launchers: Launchers, launcher: str, message: str
):
    launchers.choose(launcher)
    with pytest.raises(ConfigError, match=message):
        fit.submit(launchers.request)
    assert launchers.called == []


@pytest.mark.parametrize(
    ("launcher", "prepared"), [("slurm", "slurm"), ("local", "local in background")]
)
def test_a_submitted_run_that_is_no_job_is_prepared_for_the_background(
    launchers: Launchers, launcher: str, prepared: str
):
    launchers.choose(launcher)
    handle = fit.submit(launchers.request)
    assert launchers.called == [f"prepare {prepared}"]
    assert handle.path == launchers.paths.root


@pytest.mark.parametrize("launcher", ["slurm", "allocation", "mpiexec"])
def test_a_child_of_a_rank_starts_its_ranks_on_its_machine(
    launchers: Launchers, monkeypatch: pytest.MonkeyPatch, launcher: str
):
    launchers.choose(launcher)
    monkeypatch.setattr(environ, "in_rank", lambda: True)
    fit.fit(launchers.request)
    assert launchers.called == ["prepare local", "run_here"]


def test_a_job_does_not_wait_for_warnings_of_its_limits(
    launchers: Launchers, monkeypatch: pytest.MonkeyPatch
):
    order: list[str] = []

    def begin_or_find(submission: Any, begin: Any, policy: Any) -> Existing:
        begin([])
        order.append("other processes may go on")
        return Existing.NEW

    monkeypatch.setattr("hpctrain.launch.begin.begin_or_find", begin_or_find)
    monkeypatch.setattr(fit, "check_run_directory", lambda root: None)
    for module, name in (
        ("record", "write_plan_and_spec"),
        ("slurm", "submit_job"),
        ("precheck", "warn_of_limits"),
    ):
        # Of its arguments none is looked at.
        monkeypatch.setattr(
            f"hpctrain.launch.{module}.{name}", lambda *_, name=name, **__: order.append(name)
        )
    submission: Any = SimpleNamespace(
        request=SimpleNamespace(paths=launchers.paths, run_config=RunConfig(name="run", verbose=0)),
        plan=SimpleNamespace(launcher="slurm"),
    )
    expected = ["write_plan_and_spec", "submit_job", "other processes may go on"]
    _begin_or_find(submission)
    assert order == [*expected, "warn_of_limits"]
    order.clear()
    _begin_or_find(submission, warns=False)
    assert order == expected


@pytest.mark.parametrize("is_replay", [False, True])
def test_git_looks_at_the_tree_of_a_new_run_before_the_run_is_claimed(
    launchers: Launchers, monkeypatch: pytest.MonkeyPatch, is_replay: bool
) -> None:
    order: list[Any] = []

    def look_at_script() -> str:
        order.append("git")
        return "look"

    def begin_or_find(request: Any, begin: Any, policy: Any) -> Existing:
        order.append("claim")
        begin([])
        return BEGINS

    launchers.paths.status.unlink()
    monkeypatch.setattr("hpctrain.launch.code_record.look_at_script", look_at_script)
    monkeypatch.setattr("hpctrain.launch.begin.begin_or_find", begin_or_find)
    monkeypatch.setattr(
        "hpctrain.launch.record.write_plan_and_spec", lambda _, look: order.append(look)
    )
    monkeypatch.setattr("hpctrain.launch.slurm.submit_job", lambda _: order.append("submitted"))
    submission: Any = SimpleNamespace(
        request=SimpleNamespace(paths=launchers.paths, run_config=RunConfig(name="run", verbose=0)),
        plan=SimpleNamespace(launcher="slurm"),
        replay_of="another run" if is_replay else None,
    )
    _begin_or_find(submission, warns=False)
    begun = [] if is_replay else ["git"]
    assert order == [*begun, "claim", None if is_replay else "look", "submitted"]


@pytest.mark.parametrize("closed", ["storage", "run"])
def test_a_directory_that_is_closed_to_this_user_is_named(closed: str) -> None:
    with closed_directory(closed) as storage:
        request = SimpleNamespace(
            paths=RunPaths(storage / "run"), run_config=RunConfig(name="run", verbose=0)
        )
        submission: Any = SimpleNamespace(
            request=request, plan=SimpleNamespace(launcher="slurm"), replay_of=None
        )
        with pytest.raises(ConfigError, match=rf"may not write into {storage}.*that is yours"):
            _begin_or_find(submission)


def test_a_run_of_another_user_is_refused_before_anything_else_is_done(
    launchers: Launchers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(root: Path) -> None:
        raise ConfigError("it belongs to another user")

    looked: list[str] = []
    launchers.paths.status.unlink()
    monkeypatch.setattr(fit, "check_run_directory", refuse)
    monkeypatch.setattr(
        "hpctrain.launch.code_record.look_at_script", lambda: looked.append("at the tree")
    )
    submission: Any = SimpleNamespace(
        request=SimpleNamespace(paths=launchers.paths, run_config=RunConfig(name="run", verbose=0)),
        plan=SimpleNamespace(launcher="slurm"),
        replay_of=None,
    )
    with pytest.raises(ConfigError, match="it belongs to another user"):
        _begin_or_find(submission)
    assert not looked
