"""`MpiChoice`: with which MPI the ranks of the next attempt start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain.execute.step_launcher import (
    explain_wrong_mpiexec,
    explain_wrong_pmi,
    other_mpi,
)
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.rundir.reading import read_end

if TYPE_CHECKING:
    from hpctrain.execute.rank_container import RankContainer

_OUTPUT_BYTES = 2**20


class MpiChoice:
    """The MPI of the plan, or another one after a start that failed.

    Parameters
    ----------
    plan
        On what the run runs.
    container
        That of the ranks; None for this process's own Python.
    """

    def __init__(self, plan: LaunchPlan, *, container: RankContainer | None) -> None:
        self._plan, self._container = plan, container
        self.name = plan.mpi
        """As in `SlurmConfig`."""

    def note_joined(self) -> None:
        """Choose that of the plan again, once ranks have joined. Not collective."""
        self.name = self._plan.mpi

    def note_failed_start(self, *, in_slot: bool) -> None:
        """Choose another one, if one may help. Not collective.

        Parameters
        ----------
        in_slot
            Whether ranks were to start in the step of a slot.
        """
        # Those of a slot have the wheel's mpiexec, whatever the plan says.
        self.name = self._plan.mpi if in_slot else self._other()

    def explain_wrong_pmi(self, log: Path) -> str:
        """Return why no start can succeed with the PMI or mpiexec that is used; empty if one may.

        Not collective.

        Parameters
        ----------
        log
            File with what srun and the ranks printed.
        """
        # Complete only when srun has ended: srun forwards the output of ranks with a delay.
        try:
            output = read_end(log, _OUTPUT_BYTES).decode(errors="replace")
        except OSError:
            return ""
        library = None if self._container is None else self._container.library
        if "/" in self.name or not self._plan.in_job:
            return explain_wrong_mpiexec(self.name, output=output, library=library)
        return explain_wrong_pmi(self.name, output=output, library=library)

    def _other(self) -> str:
        if self._container is not None and self._container.is_entered_by_srun:
            return self._plan.mpi
        if self._plan.is_slice and self._plan.placement.gpus_per_task:
            # The srun of an mpiexec would give it the GPUs of other runs.
            return self._plan.mpi
        return other_mpi(self._plan.mpi, tried=self.name)
