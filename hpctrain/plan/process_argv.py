"""The command lines of hpctrain's own processes, whatever starts them."""

from __future__ import annotations

from collections.abc import Sequence

from hpctrain.plan.visibility import checked_argv

SPARE = "--spare="
"""Option of a rank that waits until its attempt begins."""


def worker_argv(
    python: str,
    *,
    run_dir: str,
    attempt: int,
    world_size: int,
    socket: str,
    log_to_file: bool,
    spare: str = "",
) -> list[str]:
    """Return the command of one rank.

    Not collective.

    Parameters
    ----------
    spare
        For a rank that is to wait until its attempt begins: what the agents know these ranks by.
    """
    argv = [python, "-m", "hpctrain.worker.main", run_dir, str(attempt), str(world_size), socket]
    if not log_to_file:
        argv.append("--inherit-output")
    return [*argv, f"{SPARE}{spare}"] if spare else argv


def supervisor_argv(python: str, *, run_dir: str, spec_digest: str | None) -> list[str]:
    """Return the command of the executor's supervisor in a job. Not collective."""
    argv = [python, "-u", "-m", "hpctrain.execute.supervisor", run_dir]
    return argv if spec_digest is None else [*argv, spec_digest]


def validation_argv(
    python: str, *, run_dir: str, checkpoint: str, result: str, spec_digest: str, executor: int
) -> list[str]:
    """Return the command of a validation.

    Not collective.

    Parameters
    ----------
    checkpoint
        Name of the checkpoint.
    result
        File that gets the metrics.
    spec_digest
        Digest of ``spec.pkl``.
    executor
        Process with whose end it ends too; 0 in a separate job.
    """
    argv = [python, "-m", "hpctrain.worker.validate", run_dir, checkpoint, result, spec_digest]
    return [*argv, str(executor)]


def agent_argv(
    python: str,
    *,
    cwd: str | None,
    attempt: int,
    socket: str,
    secret: str,
    addresses: Sequence[str],
    lease_s: float | None = None,
    hosts: Sequence[str] = (),
    in_tree: bool = False,
) -> list[str]:
    """Return the command of a node's agent.

    Not collective.

    Parameters
    ----------
    cwd
        The working directory of the run, which every node must see. None does not look.
    lease_s
        For an agent with a lease on the executor, which continues the run when the executor's node
        is lost: seconds after which the lease lapses.
    hosts
        For agents that mpiexec starts: the names by which the nodes are known, in its order.
    in_tree
        Whether agents relay for others, so that the executor need not have a connection to each.
    """
    lease = [] if lease_s is None else [f"--lease={lease_s:g}"]
    named = [f"--hosts={','.join(hosts)}"] if hosts else []
    agent = [python, "-m", "hpctrain.execute.agent", str(attempt), socket, secret]
    relays = ["--tree"] if in_tree else []
    argv = [*agent, *lease, *named, *relays, *addresses]
    return argv if cwd is None else checked_argv(argv, cwd=cwd)
