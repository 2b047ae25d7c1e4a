from __future__ import annotations

from typing import Any


def test_the_log_of_rank_0_is_the_default(done: Any) -> None:
    ended = done("logs", "fine")
    assert ended.stdout == "rank 0 is here\nstep 0\nstep 1\nstep 2\n"


def test_rank_tail_and_attempt_choose_what_is_printed(done: Any) -> None:
    assert done("logs", "fine", "--rank", "1", "--tail", "1").stdout == "step 2\n"
    assert done("logs", "fine", "-r", "1", "-n", "9", "--attempt", "1").stdout.count("\n") == 4
    assert done("logs", "fine", "-n", "0").stdout == ""


def test_a_log_that_is_not_there_is_a_usage_error_that_names_those_that_are(done: Any) -> None:
    ended = done("logs", "fine", "--rank", "7")
    assert ended.returncode == 2
    assert "has no logs/1/rank-00007.out" in ended.stderr
    assert "logs/1/rank-00001.out" in ended.stderr


def test_the_launchers_own_log_can_be_seen(done: Any) -> None:
    ended = done("logs", "fine", "--launcher-log")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_following_a_run_that_is_over_prints_its_log_and_ends(done: Any) -> None:
    ended = done("logs", "-f", "fine", "--tail", "2")
    assert (ended.returncode, ended.stdout) == (0, "step 1\nstep 2\n")


def test_following_prints_to_the_end_of_the_run(workplace: Any) -> None:
    run = workplace.start("run", "train.py", "--steps", "20", "--pause", "0.05")
    log = workplace.run_dir() / "logs" / "1" / "rank-00000.out"
    workplace.wait_until(lambda: log.exists() and "step 0" in log.read_text(), "the first step")
    ended = workplace("logs", "-f", "tiny")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["rank 0 is here", *(f"step {n}" for n in range(20))]
    run.communicate(timeout=120)
    assert run.returncode == 0
