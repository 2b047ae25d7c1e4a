"""The nodes of a job of Slurm, as its controller sees them."""

from __future__ import annotations

from collections.abc import Collection

from hpctrain import environ, timeouts
from hpctrain.errors import LaunchError
from hpctrain.host_list import compress_hosts
from hpctrain.plan.argv import node_test_argv
from hpctrain.slurm.client import ask_slurm, retry
from hpctrain.slurm.cluster_output import parse_cpus_per_core, parse_node_states
from hpctrain.slurm.job import find_job

# A node that is drained goes on with the job it has.
_UNUSABLE = frozenset(["DOWN", "FAIL", "POWERING_DOWN", "POWERED_DOWN"])
# Slurm says it of a node that did not answer once, until it asks again, minutes later.
_DOUBTFUL = "NOT_RESPONDING"


class SlurmNodes:
    """The nodes of the job that this process is in: a source for a pool of nodes.

    Parameters
    ----------
    job_id
        The job.
    only
        The nodes of a slice of it; empty is all of them, and no other run is there.
    """

    def __init__(self, job_id: str, *, only: Collection[str] = ()) -> None:
        self._job_id = job_id
        self._only = frozenset(only)

    def usable(self) -> dict[str, bool]:
        """Return the nodes that are not down, in Slurm's order; true where it is in doubt.

        Not collective.

        Raises
        ------
        LaunchError
            If Slurm does not answer.
        """
        job = find_job(self._job_id, timeout_s=timeouts.NODE_QUESTION_S)
        if job is None or not job.nodes:
            raise LaunchError(f"Slurm says that job {self._job_id} has no nodes.", transient=True)
        hosts = expand_hosts(job.nodes)
        states = parse_node_states(_ask("show", "node", job.nodes))
        known = {
            host: states.get(host, set()) for host in hosts if not self._only or host in self._only
        }
        return {host: _DOUBTFUL in state for host, state in known.items() if not state & _UNUSABLE}

    def cpus_per_core(self) -> dict[str, int]:
        """Return how many of its CPUs Slurm gives a step with one of them, by node.

        Not collective.

        Raises
        ------
        LaunchError
            If Slurm does not answer.
        """
        return parse_cpus_per_core(_ask("show", "node", compress_hosts(allocated_hosts())))

    def starts_a_process(self, node: str) -> bool:
        """Return whether a process starts on a node of the job. Not collective."""
        argv = node_test_argv(node, is_slice=bool(self._only))
        try:
            # A step that is refused for what another one still holds says nothing about the node.
            retry(
                lambda: ask_slurm(argv, timeout_s=timeouts.NODE_TEST_S),
                patience_s=timeouts.NODE_TEST_RETRY_S,
            )
        except LaunchError:
            return False
        return True


def allocated_hosts() -> list[str]:
    """Return the nodes of the job that this process is in, in Slurm's order. Not collective.

    Slurm's controller is not asked.

    Raises
    ------
    LaunchError
        If it is in none.
    """
    nodes = environ.variable("SLURM_JOB_NODELIST")
    if nodes is None:
        raise LaunchError(
            "launcher='allocation' needs a Slurm allocation, and SLURM_JOB_NODELIST is not set. "
            "Run inside sbatch or salloc, or use launcher='slurm' to submit a job."
        )
    return expand_hosts(nodes)


def expand_hosts(nodes: str) -> list[str]:
    """Return the names of nodes that Slurm writes as ``node[1-3]``. Not collective."""
    return _ask("show", "hostnames", nodes).split()


def _ask(*words: str) -> str:
    return ask_slurm(["scontrol", "--oneliner", *words], timeout_s=timeouts.NODE_QUESTION_S)
