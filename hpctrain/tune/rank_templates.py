"""`RankTemplates`: processes that have imported what ranks need, for all trials of a sweep."""

from __future__ import annotations

from collections.abc import Mapping

from hpctrain import environ
from hpctrain.backend import modules_of_trials
from hpctrain.execute.fork_server import ForkServers, rank_environment
from hpctrain.execute.rank_forks import LEFT_OUT
from hpctrain.launch.request import Submission
from hpctrain.log import log_once
from hpctrain.plan.modules import own_places

_Key = tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[str, str], ...]]
_MOST = 16
"""Each has the memory of its imports, and trials with GPUs of their own need one for each set."""


class RankTemplates:
    """Fork servers of this machine, each for the trials whose ranks import the same.

    They end with this process, but for ranks that still run.
    """

    def __init__(self) -> None:
        self._servers: dict[_Key, ForkServers] = {}

    def offer(self, submission: Submission, variables: Mapping[str, str]) -> str:
        """Return the name of the fork server for the ranks of a trial; empty without one.

        Not collective. Its imports are not waited for.

        Parameters
        ----------
        submission
            The trial.
        variables
            Of the environment of its executor, on top of that of this process.
        """
        plan, settings = submission.plan, submission.spec.settings
        if plan.launcher != "local" or not environ.wants_fork_server():
            return ""
        modules = modules_of_trials(settings)
        places = own_places(settings.sys_path)
        of_executor = {**environ.environment(), **variables}
        environment = rank_environment(
            plan.threads_per_task, plan.environment, of_executor=of_executor
        )
        key = modules, places, tuple(sorted(environment.items()))
        servers = self._servers.pop(key, None)
        if servers is None:
            servers = ForkServers(
                modules,
                own_places=places,
                environment=environment,
                dispensable=settings.preload_for_trials,
            )
        # The one that was used last is the last.
        self._servers[key] = servers
        while len(self._servers) > _MOST:
            self._servers.pop(next(iter(self._servers))).close()
        name = servers.offer(environment)
        for reason in servers.take_reasons():
            is_of_some = reason.startswith(LEFT_OUT)
            log_once(f"{'' if is_of_some else 'ranks of trials import for themselves: '}{reason}")
        return name

    def close(self) -> None:
        """Let the servers end. Not collective. Ranks that still run go on."""
        for servers in self._servers.values():
            servers.close()
        self._servers.clear()
