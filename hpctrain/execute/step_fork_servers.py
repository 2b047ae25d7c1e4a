"""`StepForkServers`: on each node of a step of Slurm, one process that imports for all ranks.

Other than on one machine (`hpctrain.execute.fork_server`), the executor starts none: a step has a
cgroup, with limits, devices and accounting, which a process of another step cannot enter and a fork
of it would escape. The first rank of each node starts the server, inside the step, and it ends with
the step.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence

from hpctrain import environ
from hpctrain.control.local_socket import new_socket_name
from hpctrain.execute.rank_forks import (
    CLIENT,
    RankCommand,
    RankForks,
    client_argv,
    left_out,
    system_python,
)
from hpctrain.plan.launch_plan import StepLauncher
from hpctrain.worker.early_imports import with_imports
from hpctrain.worker.threads import explain_binding


class StepForkServers(RankForks):
    """What lets the ranks of steps be forked.

    Parameters
    ----------
    modules
        What a server imports.
    own_places
        Directories of the user's modules.
    further
        What it may import besides, once ranks have imported it.
    """

    def __init__(
        self, modules: Sequence[str], *, own_places: Sequence[str], further: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self._modules, self._own_places = tuple(modules), tuple(own_places)
        self._further = tuple(further)
        self._learnt: tuple[str, ...] = ()

    def start(self) -> None:
        """Do nothing: each step starts its own."""

    def tries(self, launcher: StepLauncher) -> bool:
        """Return whether ranks of a launcher are forked.

        mpiexec of Open MPI, and the PMI of Cray, are not tried.
        """
        pmi = launcher.pmi or ""
        return launcher.kind == "hydra" or pmi == "pmi2" or pmi.startswith("pmix")

    def _argv_of(self, rank: RankCommand) -> list[str]:
        if rank.is_alone:
            # What it imports is all that its node imports.
            return with_imports(rank.argv, self._asked())
        # As a rule each rank has CPUs of its own.
        if reason := explain_binding(rank.environment):
            self.note([reason])
            return [*rank.argv]
        # Nodes of a job have one image, and where salloc runs there may be another. A client that
        # is copied to them comes with a Python.
        is_on_node = environ.variable("SLURMD_NODENAME") is not None
        has_python = is_on_node and self._trusts_nodes and rank.client == CLIENT
        return client_argv(
            new_socket_name(),
            rank.argv,
            client=rank.client,
            asked=self._asked(),
            python=system_python() if has_python else "",
        )

    def prepare_restart(self, imported: Collection[str]) -> None:
        """Let the next step's servers import more."""
        self._learnt = tuple(name for name in self._further if name in imported)

    def note(self, reasons: Iterable[str]) -> None:
        """Take why ranks were not forked; that may be due to what the servers imported besides."""
        given = tuple(reasons)
        super().note(given)
        if given and self._learnt:
            super().note([left_out(self._learnt, given[0])])
            self._further = self._learnt = ()

    def _asked(self) -> str:
        modules = dict.fromkeys((*self._modules, *self._learnt))
        asked = {"modules": [*modules], "own_places": [*self._own_places]}
        return json.dumps(asked, separators=(",", ":"))

    def await_idle(self) -> bool:
        """Return that no forked rank is left: they end with their step."""
        return True

    def close(self) -> None:
        """Do nothing: each server ends with its step."""
