from __future__ import annotations

import signal
from typing import Any


def test_a_script_runs_with_real_ranks_as_python_runs_it(workplace: Any) -> None:
    ended = workplace("run", "train.py", "--steps", "4")
    assert ended.returncode == 0, ended.stderr
    assert "the script begins" in ended.stdout
    assert "rank 0 is here" in ended.stdout
    # `double` of __main__ and `beside` beside the script reached the ranks.
    assert ended.stdout.splitlines()[-1] == "the script has a result: 6"
    assert workplace.status()["state"] == "finished"


def test_options_after_the_script_belong_to_the_script(workplace: Any) -> None:
    (workplace.path / "echo.py").write_text("import sys; print(sys.argv, __name__, sys.path[0])")
    ended = workplace("run", "echo.py", "--launcher", "x", "--help", "--", "-f")
    argv = "['echo.py', '--launcher', 'x', '--help', '--', '-f']"
    assert ended.stdout == f"{argv} __main__ {workplace.path}\n"


def test_a_dry_run_prints_the_ranks_and_starts_nothing(workplace: Any) -> None:
    ended = workplace("run", "--dry-run", "train.py")
    assert ended.returncode == 0, ended.stderr
    assert "launcher   local" in ended.stdout
    assert "mpiexec" in ended.stdout
    assert "hpctrain.worker" in ended.stdout
    assert not workplace.run_dir().exists()


def test_an_option_for_the_launcher_wins_over_the_environment(workplace: Any) -> None:
    ended = workplace("run", "--dry-run", "--launcher", "allocation", "train.py")
    assert ended.returncode == 3
    said = "hpctrain.errors.LaunchError: launcher='allocation' needs a Slurm allocation"
    assert ended.stderr.splitlines()[-1].startswith(said)


def test_an_unknown_launcher_is_refused_before_the_script_begins(workplace: Any) -> None:
    ended = workplace("run", "--launcher", "kubernetes", "train.py")
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr == (
        "hpctrain: --launcher=kubernetes: one of auto, local, allocation, slurm, mpiexec, spmd, "
        "inline is needed.\n"
    )


def test_a_missing_script_is_a_usage_error(workplace: Any) -> None:
    ended = workplace("run", "tarin.py")
    assert ended.returncode == 2
    assert ended.stderr.startswith("hpctrain: there is no script tarin.py")


def test_an_exception_of_the_script_shows_its_own_traceback(workplace: Any) -> None:
    (workplace.path / "broken.py").write_text("def inner():\n    1 / 0\n\n\ninner()\n")
    ended = workplace("run", "broken.py")
    assert ended.returncode == 1
    assert ended.stderr.startswith('Traceback (most recent call last):\n  File "broken.py", line 5')
    assert ended.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert "hpctrain" not in ended.stderr


def test_a_syntax_error_of_the_script_is_shown_as_python_shows_it(workplace: Any) -> None:
    (workplace.path / "broken.py").write_text("def f(:\n")
    ended = workplace("run", "broken.py")
    assert ended.returncode == 1
    assert ended.stderr.lstrip().startswith('File "broken.py", line 1')
    assert "Traceback" not in ended.stderr


def test_the_exit_code_of_the_script_is_kept(workplace: Any) -> None:
    (workplace.path / "leave.py").write_text("raise SystemExit(17)")
    assert workplace("run", "leave.py").returncode == 17
    (workplace.path / "leave.py").write_text("raise SystemExit('no data')")
    ended = workplace("run", "leave.py")
    assert (ended.returncode, ended.stderr) == (1, "no data\n")


def test_an_impossible_configuration_ends_with_2_and_shows_the_script_only(workplace: Any) -> None:
    ended = workplace("run", "train.py", "--workers", "-1")
    assert ended.returncode == 2
    said = "hpctrain.errors.ConfigError: ScalingConfig(num_workers=...)"
    assert ended.stderr.splitlines()[-1].startswith(said)
    assert 'train.py", line' in ended.stderr
    assert "/hpctrain/" not in ended.stderr
    assert "runpy" not in ended.stderr


def test_a_failed_rank_ends_with_4_and_shows_the_users_traceback_only(done: Any) -> None:
    ended = done.failed
    assert ended.returncode == 4
    assert ended.stderr.startswith("hpctrain.errors.WorkerError: rank 1 of 2")
    assert "ValueError: the loss is gone" in ended.stderr
    assert "run_script" not in ended.stderr
    assert "executor.py" not in ended.stderr


def test_ctrl_c_stops_the_run_and_its_ranks_and_it_can_be_resumed(workplace: Any) -> None:
    run = workplace.start_run()
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 130, output
    assert "Traceback" not in output
    assert workplace.status()["state"] == "stopped"
    resumed = workplace("run", "train.py", "--steps", "2")
    assert resumed.returncode == 0, resumed.stderr
