"""``hpctrain tune status --follow``: with a sweep that goes on, on a terminal and without one."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hpctrain import RunStoppedError
from hpctrain.cli import tune
from hpctrain.cli.tune_follow import crop
from hpctrain.tune import tuner_life
from hpctrain.tune.ledger import SweepLedger, SweepPaths
from tests.tune.test_tuner_life import PlayedTime, claim_from_elsewhere
from tests.waiting import wait_until

SCRIPT = """
    import sys, time
    from pathlib import Path
    import hpctrain
    from hpctrain import RunConfig, tune

    def train(config):
        hpctrain.report({"loss": config["x"]})
        deadline = time.monotonic() + 120
        while not Path(config["go"]).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        hpctrain.report({"loss": 2.5})

    if __name__ == "__main__":
        tune.Tuner(
            train,
            param_space={"x": tune.grid_search([7.5]), "go": sys.argv[1]},
            run_config=RunConfig(name="sweep", storage_path="runs", verbose=0),
        ).fit()
"""


@pytest.mark.parametrize("has_terminal", [False, True])
def test_what_changes_is_shown_until_the_sweep_has_ended(
    tmp_path: Path, has_terminal: bool
) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    go, shown = tmp_path / "go", tmp_path / "shown"
    sweep = subprocess.Popen([sys.executable, "script.py", str(go)], cwd=tmp_path)
    started = [sweep]
    try:
        reports = tmp_path / "runs/sweep/trial_00000/metrics.jsonl"
        wait_until(reports.exists, "the trial does not report")
        command = [sys.executable, "-m", "hpctrain.cli", "tune", "status", "runs/sweep", "--follow"]
        if has_terminal:
            ours, theirs = pty.openpty()
        else:
            ours, theirs = -1, os.open(shown, os.O_CREAT | os.O_WRONLY)
        environment = {**os.environ, "LINES": "30", "COLUMNS": "100"}
        following = subprocess.Popen(
            command, cwd=tmp_path, stdout=theirs, stderr=subprocess.PIPE, env=environment
        )
        started.append(following)
        os.close(theirs)
        text = b""

        def read() -> bytes:
            nonlocal text
            if not has_terminal:
                text = shown.read_bytes()
                return text
            os.set_blocking(ours, False)
            try:
                text += os.read(ours, 2**16)
            except OSError:
                # Nothing yet, or the end.
                pass
            return text

        wait_until(lambda: b"loss=7.5" in read(), "the first table does not come")
        go.touch()
        wait_until(lambda: b"loss=2.5" in read() and b"ended" in read(), "the last one does not")
        _, errors = following.communicate(timeout=60)
        assert (following.returncode, errors) == (0, b"")
        assert (b"\x1b[H" in text) == has_terminal
        assert text.index(b"running") < text.index(b"ended")
        assert sweep.wait(60) == 0
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_of_a_long_table_the_end_is_shown() -> None:
    rows = [f"trial_{number:05d}  PENDING" for number in range(10)]
    text = "\n".join(["sweep: running, 10 trials", "TRIAL        STATE", *rows])
    assert crop(text, 12) == text
    shown = crop(text, 6).splitlines()
    assert shown == [*text.splitlines()[:2], "(7 trials before)", *rows[7:]]
    assert len(shown) == 6


def test_it_ends_when_the_tuner_has_died_on_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = SweepLedger(paths=SweepPaths(root=tmp_path))
    ledger.append("sweep-started", seed=0)
    claim_from_elsewhere(tmp_path)
    clock = PlayedTime()
    monkeypatch.setattr(tuner_life.time, "monotonic", clock.monotonic)
    monkeypatch.setattr(tuner_life.time, "sleep", clock.sleep)
    with pytest.raises(RunStoppedError, match=r"node-that-is-gone.*no sign of life for 60 s"):
        tune.status(tmp_path, follow=True)
    assert 60 <= clock.now < 70
    assert capsys.readouterr().out.count("running, 0 trials") == 1


def test_of_a_long_table_trials_at_work_are_shown_first() -> None:
    states = ["RUNNING", "PAUSED", "PAUSED", "STOPPING", *5 * ["TERMINATED"], "PAUSED"]
    rows = [f"trial_{number:05d}  {state}" for number, state in enumerate(states)]
    text = "\n".join(["sweep: running, 10 trials", "TRIAL        STATE", *rows])
    shown = crop(text, 6).splitlines()
    assert shown[2:] == ["(7 trials more)", rows[0], rows[3], rows[9]]
    assert crop(text, 4).splitlines()[2:] == ["(9 trials more)", rows[3]]


def test_json_is_no_table_that_changes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hpctrain.cli", "tune", "status", ".", "--json", "--follow"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "give --json or --follow, not both" in done.stderr
