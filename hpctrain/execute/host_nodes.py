"""The hosts of a hostfile: nodes that no Slurm looks after."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from hpctrain import environ, timeouts
from hpctrain.execute.step_launcher import launcher_variables
from hpctrain.plan.argv import host_test_argv
from hpctrain.plan.launch_plan import StepLauncher


class HostNodes:
    """The hosts of a hostfile: a source for a pool of nodes.

    Parameters
    ----------
    hosts
        Their names, in the order of the file.
    mpiexec
        What reaches them, by ssh as a rule.
    """

    def __init__(self, hosts: Sequence[str], mpiexec: StepLauncher) -> None:
        self._hosts = tuple(hosts)
        self._mpiexec = mpiexec

    def usable(self) -> dict[str, bool]:
        """Return all hosts: no scheduler reports one as down. Not collective."""
        return dict.fromkeys(self._hosts, False)

    def starts_a_process(self, node: str) -> bool:
        """Return whether mpiexec starts a process on a host. Not collective."""
        process = subprocess.Popen(
            host_test_argv(self._mpiexec, node),
            env=launcher_variables(self._mpiexec.kind, local=False)
            | environ.without_launcher_variables(environ.environment()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(timeouts.HOST_TEST_S) == 0
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(timeouts.HOST_TEST_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            return False
