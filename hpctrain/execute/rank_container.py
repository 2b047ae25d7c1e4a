"""`RankContainer`: the container that the ranks of a run start in."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpctrain import environ, timeouts
from hpctrain.container import Container
from hpctrain.errors import LaunchError
from hpctrain.execute.container_answer import (
    container_question,
    explain_container,
    mpi_library,
    read_container_answers,
)
from hpctrain.execute.process import StepProcess
from hpctrain.own_time import Deadline
from hpctrain.plan.argv import container_test_argv
from hpctrain.plan.container import RUNTIMES, Entry, GpuVendor, enter_container
from hpctrain.plan.launch_plan import StepLauncher
from hpctrain.slurm.client import is_passing, is_refused_for_now

# The driver of AMD's GPUs.
_KFD = Path("/dev/kfd")
_LOOK_INTERVAL_S = 0.5
_ALL_LINES = 2**31


def vendor_of_gpus(num_gpus: int) -> GpuVendor:
    """Return whose GPUs ranks get, if they get any, from the devices of this node."""
    if num_gpus == 0:
        return ""
    return "amd" if _KFD.exists() else "nvidia"


class RankContainer:
    """The container of a run's ranks, which is tried once on each node before ranks start there.

    Agents and the executor stay outside: they call Slurm's commands, which images do not have.

    Parameters
    ----------
    container
        The image, with all that it mounts.
    run_dir
        The run directory.
    num_gpus
        GPUs of a rank.
    """

    def __init__(self, container: Container, *, run_dir: Path, num_gpus: int) -> None:
        self.container = container
        self._run_dir = run_dir
        self._gpus = vendor_of_gpus(num_gpus)
        self._checked: set[str] = set()
        self._answers: list[dict[str, Any]] = []

    @property
    def is_entered_by_srun(self) -> bool:
        """Whether options of srun enter it, and no program that mpiexec can start."""
        return not RUNTIMES[self.container.runtime].program

    @property
    def library(self) -> str:
        """Which kind of MPI library it has."""
        return mpi_library(self._answers)

    def check(
        self, nodes: Sequence[str], num_nodes: int, *, log: Path, modules: Sequence[str] = ()
    ) -> None:
        """Start it once on each node on which it has not been started. Not collective.

        Parameters
        ----------
        nodes, num_nodes
            As in `hpctrain.plan.argv.container_test_argv`.
        log
            File that gets what is printed.
        modules
            Modules that ranks import.

        Raises
        ------
        LaunchError
            If it does not start on one of them, or ranks could not run in it.
        """
        new = [node for node in nodes if node not in self._checked]
        if (nodes and not new) or (not nodes and self._answers):
            return
        wanted = len(new) or num_nodes
        cwd = os.getcwd()
        question = container_question(
            self.container.python, seen=(str(self._run_dir), cwd), modules=modules
        )
        entry = enter_container(self.container, question, cwd=cwd, gpus="")
        argv = container_test_argv(new, wanted, entry.argv, srun_options=entry.srun_options)
        printed, exit_code = _print_of(argv, log)
        answers = read_container_answers(printed)
        if why := explain_container(
            self.container, answers, wanted=wanted, printed=printed, exit_code=exit_code
        ):
            raise LaunchError(why, transient=is_passing(printed))
        self._checked.update(new)
        self._answers = answers

    def enter(
        self, command: Sequence[str], launcher: StepLauncher, variables: Mapping[str, str]
    ) -> Entry:
        """Return how a rank starts in it. Not collective.

        Parameters
        ----------
        command
            The rank.
        launcher
            What starts ranks.
        variables
            The plan's own variables.

        Raises
        ------
        LaunchError
            If only srun enters it, and something else starts ranks.
        """
        runtime = self.container.runtime
        if self.is_entered_by_srun and launcher.kind != "srun":
            raise LaunchError(
                f"Container(runtime={runtime!r}) is entered by options of srun, but the ranks "
                f"would start with {launcher.program}: SlurmConfig(mpi=...) names it, or "
                f"'srun --mpi=list' has no PMI of the MPI library in {self.container.image}. Use "
                f"SlurmConfig(mpi='pmix') or 'pmi2', or another runtime."
            )
        return enter_container(
            self.container, command, cwd=os.getcwd(), gpus=self._gpus, variables=[*variables]
        )


def _print_of(argv: Sequence[str], log: Path) -> tuple[str, int | None]:
    """Return all that a step prints until it ends, and its exit code; None if it is too late."""
    step = StepProcess(
        argv,
        environment=environ.without_export_variables(environ.environment()),
        log=log,
        job_id=environ.variable("SLURM_JOB_ID"),
    )
    deadline, asking = Deadline(timeouts.CONTAINER_CHECK_S), Deadline(timeouts.STEP_REFUSAL_S)
    try:
        while not deadline.is_over:
            exit_code = step.wait(_LOOK_INTERVAL_S)
            ended = exit_code is not None
            if ended and (asking.is_over or not is_refused_for_now(step.last_lines())):
                return step.last_lines(_ALL_LINES), exit_code
            if ended:
                time.sleep(_LOOK_INTERVAL_S)
                step.start_again()
        late = f"it did not end within {timeouts.describe(timeouts.CONTAINER_CHECK_S)}"
        return f"{step.last_lines(_ALL_LINES)}\n{late}", None
    finally:
        step.kill()
