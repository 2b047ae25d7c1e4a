"""One error, once: the same text and exit code in scripts, notebooks, SPMD and ``hpctrain run``."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from hpctrain import ConfigError, DataParallelTrainer, RunConfig, ScalingConfig, WorkerError
from hpctrain.frames import format_user_traceback
from hpctrain.testing.slurm import VirtualCluster

pytestmark = pytest.mark.mpi

SCRIPT = """\
def train(config):
    if hpctrain.get_context().get_world_rank() == config["rank"]:
        print(config["learning_rate"])
    hpctrain.report({"loss": 1.0})

fit(train, workers=WORKERS, config={"rank": RANK})
"""
TRACEBACK = """\

Traceback (most recent call last):
  File "DIR/train.py", line 13, in train
    print(config["learning_rate"])
KeyError: 'learning_rate'
"""
RUN = "  Run: DIR/runs/run   Next: fix the cause, then fit() again.\n"


def script(*, workers: int, rank: int = 0) -> str:
    return SCRIPT.replace("WORKERS", str(workers)).replace("RANK", str(rank))


def test_hpctrain_run_shows_what_python_shows(run_script: Any) -> None:
    outcome = run_script(
        script(workers=2, rank=1), command=[sys.executable, "-m", "hpctrain.cli", "run"]
    )
    assert outcome.err == (
        "hpctrain.errors.WorkerError: rank 1 of 2 on HOST failed in phase training: KeyError: "
        "'learning_rate'\n"
        "  Log: DIR/runs/run/logs/1/rank-00001.out   Last complete checkpoint: none\n"
        + RUN
        + TRACEBACK.replace("DIR/train.py", "train.py")
    )
    assert outcome.status == WorkerError.exit_code == 4


IN_JOB = ("--quiet", "--nodes=1", "--ntasks=2")
SUBMIT = f"""\
sbatch {" ".join(IN_JOB)} --wait --error=job.err job.sh "$@"
status=$?
cat job.err >&2
exit $status
"""


@pytest.mark.slurm
@pytest.mark.parametrize(
    "command",
    [
        pytest.param([sys.executable], id="login node"),
        pytest.param(["salloc", *IN_JOB, sys.executable], id="salloc"),
        pytest.param(["salloc", *IN_JOB, sys.executable, "-m", "hpctrain.cli", "run"], id="run"),
        pytest.param(["sh", "submit.sh"], id="sbatch"),
    ],
)
def test_a_login_node_and_an_allocation_show_it_once(
    run_script: Any, command: list[str], virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    (tmp_path / "job.sh").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "submit.sh").write_text(SUBMIT)
    outcome = run_script(
        script(workers=2, rank=1), command=command, environment=dict(virtual_slurm.environ)
    )
    shown = outcome.err
    node = re.search(r"on (node\d) failed", shown)
    assert node is not None, shown
    assert shown == (
        f"hpctrain.errors.WorkerError: rank 1 of 2 on {node[1]} failed in phase training: "
        "KeyError: 'learning_rate'\n"
        "  Log: DIR/runs/run/logs/1/rank-00001.out   Last complete checkpoint: none\n"
        + RUN
        + (TRACEBACK.replace("DIR/", "") if "run" in command else TRACEBACK)
    )
    assert outcome.status == WorkerError.exit_code


@pytest.mark.parametrize("command", [[], ["-m", "hpctrain.cli", "run"]])
def test_in_this_interpreter(run_script: Any, command: list[str]) -> None:
    outcome = run_script(script(workers=0), command=[sys.executable, *command])
    assert outcome.err == (
        "hpctrain: rank 0 of 1 on HOST failed in phase training: KeyError: 'learning_rate'\n"
        "  Last complete checkpoint: none\n"
        + RUN
        + (TRACEBACK.replace("DIR/", "") if command else TRACEBACK)
    )
    assert outcome.status == WorkerError.exit_code


@pytest.mark.parametrize("rank", [0, 2])
def test_ranks_that_somebody_else_started_show_it_once(
    run_script: Any, rank: int, tmp_path: Path
) -> None:
    mpiexec = Path(sys.executable).with_name("mpiexec")
    if not mpiexec.exists():
        pytest.skip("no MPI wheel here")
    # All come to a collective in which those that did not fail wait.
    waits = "    from hpctrain import collective\n    collective.barrier()\n"
    waits += '    open("went on", "w").close()\n'
    body = script(workers=4, rank=rank).replace('    hpctrain.report({"loss": 1.0})\n', waits)
    outcome = run_script(body, command=[str(mpiexec), "-n", "4", sys.executable])
    # MPICH's own word of an abort.
    said = [line for line in outcome.err.splitlines(True) if not line.startswith("Abort(")]
    short = "hpctrain: the run has failed elsewhere; rank "
    assert "".join(line for line in said if not line.startswith(short)) == (
        f"hpctrain.errors.WorkerError: rank {rank} of 4 on HOST failed in phase training: "
        f"KeyError: 'learning_rate'\n"
        "  Log: the output of the ranks   Last complete checkpoint: none\n" + RUN + TRACEBACK
    )
    assert outcome.status == WorkerError.exit_code
    assert not (tmp_path / "went on").exists(), "a barrier that one rank never came to was left"


def test_a_mistake_in_the_script_of_many_ranks_is_shown_once(run_script: Any) -> None:
    mpiexec = Path(sys.executable).with_name("mpiexec")
    if not mpiexec.exists():
        pytest.skip("no MPI wheel here")
    outcome = run_script(
        "hpctrain.SlurmConfig(partiton='gpu')\n",
        command=[str(mpiexec), "-n", "4", sys.executable],
    )
    assert outcome.err.count("Did you mean 'partition'?") == 1
    assert outcome.status == ConfigError.exit_code == 2


INTERRUPTED = """\
import sys, time
sys.argv = ["train.py"]

def train():
    hpctrain.report({"loss": 1.0})
    open("training", "w").close()
    time.sleep(600)

fit(train, workers=WORKERS, verbose=0)
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c_in_a_terminal(script_in_terminal: Any, workers: int) -> None:
    ended = script_in_terminal(
        INTERRUPTED.replace("WORKERS", str(workers)), key=b"\x03", once="training"
    )
    # By the signal, as shells want it of what Ctrl-C has ended: $? is 130.
    ended.assert_is(
        "^C\nhpctrain: interrupted; fit() with name='run' and the same storage_path resumes from "
        "its beginning\n",
        status=-signal.SIGINT,
    )


def test_the_exception_keeps_its_frames_and_its_cause_for_who_catches_it() -> None:
    def call_user_code() -> None:
        raise ConfigError("no") from KeyError("why")

    with pytest.raises(ConfigError) as caught:
        call_user_code()
    error = caught.value
    assert error.__traceback__ is not None
    assert isinstance(error.__cause__, KeyError)
    text = format_user_traceback(error, ConfigError)
    assert "call_user_code" in text
    assert "KeyError: 'why'" not in text


def test_a_hook_of_somebody_else_stays(tmp_path: Path) -> None:
    code = """
        import sys
        sys.excepthook = lambda kind, error, trace: print("mine:", error)
        import hpctrain
        hpctrain.ScalingConfig(num_workers=-1)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.startswith("mine: ScalingConfig(num_workers=...) is -1.")
    assert done.returncode == 1


def test_an_exception_that_is_not_ours_is_shown_by_python(tmp_path: Path) -> None:
    code = "import hpctrain\n{}['a']\n"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stderr.startswith("Traceback (most recent call last):")
    assert done.stderr.endswith("KeyError: 'a'\n")
    assert done.returncode == 1


CELLS = """\
def train(config):
    print(config["learning_rate"])

def make(workers):
    return DataParallelTrainer(
        train,
        train_loop_config={},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(name="run", storage_path="runs", verbose=0),
    )
# %%
make(workers=1).fit()
# %%
make(workers=0).fit()
# %%
RunConfig(nmae="run")
"""
NOTEBOOK = """
import sys
from IPython.core.interactiveshell import InteractiveShell
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig

shell = InteractiveShell.instance(colors="NoColor", user_ns=globals())
for cell in sys.stdin.read().split("# %%\\n"):
    print(f"[{shell.execution_count}]")
    shell.run_cell(cell, store_history=True)
"""


def test_a_notebook_shows_it_once(run_notebook: Any) -> None:
    frame = """\
Traceback (most recent call last):
  File "CELL", line 2, in train
"""
    assert run_notebook(CELLS, NOTEBOOK) == (
        "[1]\n"
        "[2]\n"
        "hpctrain.errors.WorkerError: rank 0 of 1 on HOST failed in phase training: KeyError: "
        "'learning_rate'\n"
        "  Log: DIR/runs/run/logs/1/rank-00000.out   Last complete checkpoint: none\n"
        + RUN
        + f"""
{frame}KeyError: 'learning_rate'
[3]
hpctrain: rank 0 of 1 on HOST failed in phase training: KeyError: 'learning_rate'
  Last complete checkpoint: none
{RUN}
{frame}    print(config["learning_rate"])
KeyError: 'learning_rate'
[4]
Traceback (most recent call last):
  File "CELL", line 1, in <module>
    RunConfig(nmae="run")
hpctrain.errors.UnknownFieldError: RunConfig has no field 'nmae'. Did you mean 'name'?
"""
    )


def test_ipython_is_given_the_same_lines() -> None:
    # IPython and Jupyter print what this method returns, instead of a traceback of their own.
    with pytest.raises(ConfigError) as caught:
        ScalingConfig(num_workers=-1)
    first, *_, last = caught.value._render_traceback_()
    assert first == "Traceback (most recent call last):"
    assert last.startswith("hpctrain.errors.ConfigError: ScalingConfig(num_workers=...) is -1.")
    assert not any("/hpctrain/config.py" in line for line in caught.value._render_traceback_())


def test_ipython_is_given_the_same_lines_of_an_exception_of_the_user(tmp_path: Path) -> None:
    def train() -> None:
        raise KeyError("mine")

    trainer = DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=tmp_path, name="run"),
    )
    with pytest.raises(KeyError) as caught:
        trainer.fit()
    lines = vars(caught.value)["_render_traceback_"]()
    assert lines[0].startswith("hpctrain: rank 0 of 1 on ")
    assert lines[-2:] == ['    raise KeyError("mine")', "KeyError: 'mine'"]
    # For debuggers all frames are there.
    assert any("hpctrain/launch" in str(frame.path) for frame in caught.traceback)
