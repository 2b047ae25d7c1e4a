"""A run whose submission Slurm refused, or that a killed process left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slurm

REFUSED = ("submit", "-A", "nobody", "train.py")


def put_sbatch_on_path(login: Any, script: str) -> None:
    """Let this be run in place of sbatch; it finds the real one in ``$SBATCH``."""
    folder = login.path / "bin"
    folder.mkdir(exist_ok=True)
    program = folder / "sbatch"
    program.write_text(f"#!/bin/bash\nPATH=${{PATH#*:}}\nSBATCH=$(command -v sbatch)\n{script}\n")
    program.chmod(0o755)
    path = next(word for word in reversed(login.prefix) if word.startswith("PATH="))
    login.prefix.append(path.replace("PATH=", f"PATH={folder}:", 1))


def take_sbatch_from_path(login: Any) -> None:
    login.prefix.pop()


@pytest.fixture
def refused(login: Any) -> Any:
    """A login node with a run whose constraint no node fulfils."""
    login.ended = login("submit", "-C", "nosuch", "train.py")
    assert login.ended.returncode == 3, login.ended.stderr
    return login


def test_every_verb_knows_that_slurm_refused_a_run(refused: Any) -> None:
    login = refused
    words = "Slurm refused the job: sbatch: error: Batch job submission failed: "
    words += "Invalid feature specification."
    assert words in login.ended.stderr
    for verb in ("attach", "wait"):
        ended = login(verb, "tiny")
        assert ended.returncode == 3, ended.stderr
        assert words in ended.stderr
        assert "'sinfo -o %f' lists what nodes have" in ended.stderr
    view = login.status()
    assert (view["state"], view["live"], view["job_id"]) == ("refused", False, None)
    assert view["error"].startswith(words)
    shown = login("status", "tiny").stdout
    assert shown.startswith("tiny: refused\n")
    assert words in " ".join(shown.split())
    assert "process 0" not in shown
    assert "begins it again" in shown
    assert login("list").stdout.splitlines()[1].split()[:2] == ["tiny", "refused"]
    cancelled = login("cancel", "tiny")
    assert (cancelled.returncode, cancelled.stdout) == (0, "")
    assert cancelled.stderr == "hpctrain: tiny is refused; there is nothing to cancel.\n"
    for options in ((), ("--follow",)):
        logs = login("logs", *options, "tiny")
        assert logs.returncode == 2
        assert f"has no log, since no rank was started: {words}" in logs.stderr
    events = (login.run_dir() / "ledger.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in events] == ["fit", "refused"]


def test_fit_of_the_same_name_submits_a_refused_run_anew(refused: Any) -> None:
    again = refused("submit", "--wait", "train.py")
    assert again.returncode == 0, again.stderr
    assert "hpctrain: beginning run tiny" in again.stderr
    assert again.stdout.splitlines()[-1] == "the script has a result: 4"


def test_a_process_that_is_killed_before_sbatch_leaves_a_run_that_is_stopped(login: Any) -> None:
    put_sbatch_on_path(login, 'kill -9 "$PPID"')
    killed = login("submit", "train.py")
    assert killed.returncode not in (0, 2, 3), killed.stderr
    for verb in ("attach", "wait"):
        ended = login(verb, "tiny")
        assert ended.returncode == 5, ended.stderr
        assert "fit() ended before the run was submitted or begun" in ended.stderr
    assert login.status()["state"] == "stopped"
    take_sbatch_from_path(login)
    again = login("submit", "--wait", "train.py")
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param('"$SBATCH" "$@" >&2; kill -9 "$PPID"', id="killed"),
        pytest.param(
            '"$SBATCH" "$@" >&2\necho "sbatch: error: Batch job submission failed: '
            'Socket timed out on send/recv operation" >&2\nexit 1',
            id="timed out",
        ),
    ],
)
def test_a_job_whose_submission_nobody_wrote_down_is_found_and_not_submitted_twice(
    login: Any, answer: str
) -> None:
    put_sbatch_on_path(login, answer)
    first = login("submit", "train.py", "--steps", "3", "--sbatch=--hold")
    assert (first.returncode == 0) == ("timed out" in answer), first.stderr
    view = login.status()
    assert (view["state"], view["live"], view["job_state"]) == ("submitted", True, "PENDING")
    take_sbatch_from_path(login)
    again = login("submit", "train.py", "--steps", "3", "--sbatch=--hold")
    assert again.stdout == f"{view['job_id']}\n", again.stderr
    assert login("cancel", "tiny").returncode == 0
    assert login("wait", "tiny").returncode == 5


def test_a_job_is_followed_although_the_status_could_not_be_written(login: Any) -> None:
    status: Path = login.run_dir() / "status.json"
    # A directory in its place: what os.replace() cannot overwrite, as on a disk that is full.
    put_sbatch_on_path(
        login,
        f'mv "{status}" "{status}.aside"; mkdir "{status}"; "$SBATCH" "$@"; answer=$?\n'
        f'(sleep 1; rmdir "{status}"; mv "{status}.aside" "{status}") > /dev/null 2>&1 &\n'
        f"exit $answer",
    )
    ended = login("submit", "--wait", "train.py", "--steps", "3")
    assert "is submitted, but" in ended.stderr
    assert ended.returncode == 0, ended.stderr
