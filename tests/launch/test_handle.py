"""``submit()`` on this machine: runs in the background, and handles to wait for them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import hpctrain
from hpctrain import (
    ConfigError,
    DataParallelTrainer,
    RunConfig,
    RunHandle,
    RunStoppedError,
    ScalingConfig,
    WorkerError,
)
from tests.waiting import wait_until

TIMEOUT_S = 120.0


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")
    # The turns of this test are nobody else's.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def make_trainer(
    storage: Path, name: str, *, gate: Path | None = None, num_workers: int = 1, fail: bool = False
) -> DataParallelTrainer:
    def train() -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while gate is not None and not gate.exists() and not hpctrain.should_stop():
            assert time.monotonic() < deadline
            hpctrain.report({"waits": 1})
            time.sleep(0.05)
        if fail:
            raise ValueError("as wanted")
        hpctrain.report({"x": 3})

    return DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=num_workers),
        run_config=RunConfig(storage_path=storage, name=name, verbose=0),
    )


def test_submit_returns_before_the_run_is_over_and_the_handle_waits_for_it(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    trainer = make_trainer(tmp_path, "run", gate=gate)
    handle = trainer.submit()
    assert (handle.name, handle.path, handle.job_id) == ("run", tmp_path / "run", None)
    wait_until(lambda: handle.state == "running")
    assert not handle.wait(timeout_s=0)
    with pytest.raises(TimeoutError, match=r"run 'run' is not over after 0 s \(running\)"):
        handle.result(timeout_s=0)
    assert trainer.submit() == handle == RunHandle(tmp_path / "run")
    gate.touch()
    assert handle.wait(timeout_s=TIMEOUT_S)
    assert handle.result().metrics == {"x": 3}
    assert len(handle.result().attempts) == 1
    assert trainer.submit().result().metrics == {"x": 3}, "and nothing runs again"
    assert len(handle.result().attempts) == 1


def test_runs_in_the_background_go_one_after_another_and_are_waited_for_together(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    first = make_trainer(tmp_path, "first", gate=gate).submit()
    wait_until(lambda: first.state == "running")
    second = make_trainer(tmp_path, "second").submit()
    third = make_trainer(tmp_path, "third", fail=True).submit()
    handles = [third, second, first]
    assert hpctrain.wait(handles, timeout_s=1.5) == ([], handles)
    assert second.state == third.state == "starting", "one at a time"
    third.cancel()
    assert hpctrain.wait(handles, num_returns=1, timeout_s=TIMEOUT_S) == ([third], [second, first])
    with pytest.raises(RunStoppedError, match="asked to"):
        third.result()
    # Before they have even begun to wait for their turn.
    handles += [make_trainer(tmp_path, f"later-{n}").submit() for n in (1, 2, 3)]
    gate.touch()
    assert hpctrain.wait(handles, timeout_s=TIMEOUT_S) == (handles, [])
    assert second.result().metrics == {"x": 3}
    in_order = [first, second, *handles[3:]]
    starts = [handle.result().attempts[0].started_at for handle in in_order]
    assert starts == sorted(starts), "in the order of their submission"


def test_the_result_of_a_run_that_failed_is_its_error(tmp_path: Path) -> None:
    handle = make_trainer(tmp_path, "run", fail=True).submit()
    assert hpctrain.wait([handle]) == ([handle], [])
    with pytest.raises(WorkerError, match="ValueError: as wanted"):
        handle.result()


def test_a_run_outlives_the_script_that_submitted_it_and_is_cancelled_from_another(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import time, hpctrain, beside
        from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig

        def train():
            while True:
                hpctrain.report({{"x": 1}})
                time.sleep(0.05)

        config = RunConfig(storage_path={str(tmp_path)!r}, name="run", callbacks=[beside.Quiet()])
        print(DataParallelTrainer(train, run_config=config).submit())
        """)
    )
    (tmp_path / "beside.py").write_text(
        "import hpctrain\n\nclass Quiet(hpctrain.UserCallback):\n    pass\n"
    )
    ended = subprocess.run(
        [sys.executable, str(script)], env=dict(os.environ), capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    started, shown = ended.stdout.splitlines()
    assert started.startswith("hpctrain: started run as process ")
    assert shown.startswith("RunHandle(name='run', state='")
    handle = RunHandle(tmp_path / "run")
    wait_until(lambda: handle.state == "running")
    handle.cancel(now=True)
    assert handle.state == "stopped"
    with pytest.raises(RunStoppedError, match="cancel --now"):
        handle.result()


def test_what_cannot_go_on_without_this_process_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="num_workers=0 runs in this interpreter"):
        make_trainer(tmp_path, "run", num_workers=0).submit()
    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "spmd")
    with pytest.raises(ConfigError, match="Call fit\\(\\) on every rank; or start the script once"):
        make_trainer(tmp_path, "run").submit()
    assert not (tmp_path / "run").exists()


def test_what_is_no_run_has_no_handle_and_what_cannot_be_waited_for_is_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="is not a run of hpctrain"):
        RunHandle(tmp_path)
    (tmp_path / "plan.json").write_text("{}")
    handle = RunHandle(tmp_path)
    with pytest.raises(ConfigError, match="got a run twice"):
        hpctrain.wait([handle, handle])
    with pytest.raises(ConfigError, match=r"num_returns=2\) of 1 runs never returns"):
        hpctrain.wait([handle], num_returns=2)
    assert hpctrain.wait([]) == ([], [])


def test_the_example_submits_runs_that_a_second_call_finds(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "several_runs.py"
    argv = [sys.executable, str(example), "--rates", "0.01", "0.5", "--storage", "a %place"]

    def run() -> list[str]:
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        return [line for line in done.stdout.splitlines() if "loss" in line]

    first = run()
    assert [line.split()[0] for line in first] == ["rate-0.5", "rate-0.01"]
    metrics = tmp_path / "a %place" / "rate-0.5" / "metrics.jsonl"
    reports = metrics.read_bytes()
    assert run() == first
    assert metrics.read_bytes() == reports
