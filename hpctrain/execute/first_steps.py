"""`FirstSteps`: agents and ranks that start while their executor imports the rest of itself.

Of what an executor imports in a job a third is enough to call srun. So it does that first where it
cannot be wrong: at the first attempt of a run whose nodes are those that were asked for. What it
reads and writes before other attempts, it reads and writes while these ranks import.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from hpctrain import environ, timeouts
from hpctrain.log import log
from hpctrain.plan import spec
from hpctrain.plan.launch_plan import FirstStart
from hpctrain.plan.spec import RunSpec
from hpctrain.rundir.files import make_directory
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.slurm.pmi import ask_for_pmi_types

if TYPE_CHECKING:
    from hpctrain.execute.node_agents import NodeAgents
    from hpctrain.execute.process import StepProcess
    from hpctrain.execute.rank_forks import RankForks

_ATTEMPT = 1


class FirstSteps:
    """The agents and ranks of the first attempt, which have been started.

    Parameters
    ----------
    agents
        The agents.
    ranks
        What starts the ranks.
    begun_at
        When agents were started, by the monotonic clock.
    forks
        What lets these ranks be forked, if anything does.
    """

    def __init__(
        self,
        agents: NodeAgents,
        ranks: StepProcess,
        *,
        begun_at: float,
        forks: RankForks | None = None,
    ) -> None:
        self.agents = agents
        """The agents. An executor that is given them closes them."""
        self.forks = forks
        """What let these ranks be forked; it also has why they were not."""
        self._ranks: StepProcess | None = ranks
        self._begun_at = begun_at

    def take(self, attempt: int) -> StepProcess | None:
        """Return what starts the ranks of an attempt; None if it is to be started.

        Not collective. It is the caller's from then on. Agents that have waited for long are ended
        with their ranks: others are started where they are gathered.
        """
        if self._ranks is None:
            return None
        if time.monotonic() - self._begun_at > timeouts.EXECUTOR_CONNECTION_S / 2:
            # Some may have given the executor up, which has not answered them while it imported.
            self.abandon()
        elif attempt != _ATTEMPT:
            self.close()
        ranks, self._ranks = self._ranks, None
        return ranks

    def close(self) -> None:
        """End the ranks, unless `take` has returned them. Not collective."""
        if self._ranks is not None:
            self._ranks.kill()
            self._ranks = None

    def abandon(self) -> None:
        """End all of them, where there will be no executor. Not collective."""
        self.close()
        self.agents.close()


def begin_first_steps(paths: RunPaths, run_spec: RunSpec) -> FirstSteps | None:
    """Start agents and ranks of a run's first attempt; return None where that has to wait.

    Not collective. Never raises for what keeps them from starting: the executor meets it too, and
    reports it.

    Parameters
    ----------
    paths
        The run directory, which is this user's alone.
    run_spec
        What is run.
    """
    if not run_spec.first_start:
        return None
    begun_at = time.monotonic()
    try:
        first: FirstStart = spec.unpack(run_spec.first_start)
        if not _is_certain(paths, first):
            return None
        if first.plan.mpi == "auto":
            # It answers while the rest is imported, and agents are asked for.
            ask_for_pmi_types()
        return _start(paths, run_spec, first, begun_at=begun_at)
    except Exception as error:
        # Only the executor can write down that the run has failed, and why.
        log(f"note: agents and ranks start later, with their executor: {error}")
        return None


def _start(paths: RunPaths, run_spec: RunSpec, first: FirstStart, *, begun_at: float) -> FirstSteps:
    from hpctrain.execute.node_agents import NodeAgents
    from hpctrain.execute.rank_step import RankStep
    from hpctrain.execute.step_launcher import find_step_launcher

    plan = first.plan
    agents = NodeAgents(paths, node_timeout_s=first.node_timeout_s)
    try:
        forks = _forks(run_spec, first)
        make_directory(paths.logs(_ATTEMPT), below=paths.root)
        agents.gather(plan.placement, (), attempt=_ATTEMPT)
        step = RankStep(
            paths=paths,
            attempt=_ATTEMPT,
            num_threads=plan.threads_per_task,
            environment=plan.environment,
            srun_args=plan.srun_args,
            log_to_file=first.log_to_file,
            fork_server=forks,
        )
        ranks = step.start(find_step_launcher(plan.mpi), plan.placement, agents.socket)
    except Exception:
        _close(agents)
        raise
    return FirstSteps(agents, ranks, begun_at=begun_at, forks=forks)


def _close(agents: NodeAgents) -> None:
    try:
        agents.close()
    except Exception as error:
        log(f"agents that are not needed cannot be ended: {error}")


def _is_certain(paths: RunPaths, first: FirstStart) -> bool:
    """Return whether the executor will start just these steps, as its first."""
    plan = first.plan
    return (
        plan.launcher == "slurm"
        and plan.placement.is_even
        and not (plan.job_nodes.survives_loss or plan.is_slice)
        # They are looked at on each node before.
        and plan.container is None
        and plan.environment_pack is None
        and not os.path.exists(paths.stop_request)
        and not any(event["event"] == "executor-started" for event in read_events(paths))
    )


def _forks(run_spec: RunSpec, first: FirstStart) -> RankForks | None:
    modules = run_spec.settings.preload
    if not modules or not environ.wants_fork_server():
        return None
    from hpctrain.execute.step_fork_servers import StepForkServers

    further = run_spec.settings.preload_for_trials
    return StepForkServers(modules, own_places=first.own_places, further=further)
