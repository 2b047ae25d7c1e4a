"""`ForkServers`: the process of this machine that imports for all ranks, attempt after attempt.

The server itself is `hpctrain.worker.fork_server`. It is an offer: a rank that it cannot start, for
whichever reason, starts as if there were none. It is to start early in a process that will import
much, so that this module imports little.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence

from hpctrain import environ, timeouts
from hpctrain.execute.fork_server_process import ForkServerProcess
from hpctrain.execute.rank_forks import (
    RankCommand,
    RankForks,
    client_argv,
    left_out,
    system_python,
)
from hpctrain.own_time import Deadline
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.plan.modules import own_places
from hpctrain.plan.spec import RankSettings
from hpctrain.worker.threads import thread_variables


def fork_server_for(
    plan: LaunchPlan, settings: RankSettings, *, offered: str = ""
) -> RankForks | None:
    """Return the fork server for the ranks of a run, which is not started; None without one.

    Not collective. One machine has one, and in a job each step has one on each node. Not for ranks
    in a container, nor where a backend names nothing to import.

    Parameters
    ----------
    offered
        Name of the socket of one that another process has started; empty without one.
    """
    is_possible = plan.launcher == "local" or plan.in_job
    if not is_possible or not environ.wants_fork_server() or plan.container:
        return None
    if offered and plan.launcher == "local":
        from hpctrain.execute.offered_fork_server import OfferedForkServer

        return OfferedForkServer(offered)
    if not settings.preload:
        return None
    places = own_places(settings.sys_path)
    if plan.in_job:
        from hpctrain.execute.step_fork_servers import StepForkServers

        further = settings.preload_for_trials
        return StepForkServers(settings.preload, own_places=places, further=further)
    return ForkServers(
        settings.preload,
        own_places=places,
        environment=rank_environment(plan.threads_per_task, plan.environment),
        further=settings.preload_for_trials,
    )


def rank_environment(
    num_threads: int, further: Mapping[str, str], *, of_executor: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the variables of ranks, but for what their launcher sets. Not collective.

    Parameters
    ----------
    num_threads
        Compute threads of a rank.
    further
        Variables of the plan.
    of_executor
        Variables of the executor; None are those of this process.
    """
    inherited = environ.without_export_variables(of_executor or environ.environment())
    variables = environ.without_launcher_variables(inherited)
    return {**variables, **thread_variables(num_threads), **further}


class ForkServers(RankForks):
    """At most one fork server at a time; a new one where the last is gone, out of date or grown.

    Parameters
    ----------
    modules
        What it imports.
    own_places
        Directories of the user's modules.
    environment
        Its whole environment: that of ranks, but for what a launcher sets.
    further
        What it may import besides, once ranks have imported it.
    dispensable
        Those of `modules` that it does without if a server with them cannot be used.
    """

    settle_s = 5.0
    """Seconds after the first of these before another server imports them too."""

    def __init__(
        self,
        modules: Sequence[str],
        *,
        own_places: Sequence[str],
        environment: Mapping[str, str],
        further: Sequence[str] = (),
        dispensable: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._asked = {"modules": [*modules], "own_places": [*own_places]}
        self._environment = dict(environment)
        self._server: ForkServerProcess | None = None
        self._unusable = ""
        self._further = tuple(further)
        self._dispensable = frozenset(dispensable)
        self._command: Sequence[str] = ()
        self._settled: Deadline | None = None
        self._next: ForkServerProcess | None = None
        self._next_asked = self._asked

    def start(self) -> None:
        """Start a server, if there is none, and do not wait for its imports. Never raises."""
        if self._server is not None or self._unusable:
            return
        try:
            self._server = ForkServerProcess(self._asked, self._environment)
        except OSError as error:
            self._give_up(f"it cannot be started: {error}")

    def offer(self, environment: Mapping[str, str]) -> str:
        """Return the name of the socket of a server for ranks of others; empty if there is none.

        Parameters
        ----------
        environment
            Of their launcher.
        """
        self._renew(environment)
        return "" if self._server is None else self._server.name

    def take_reasons(self) -> list[str]:
        """Return why ranks were not forked, as far as that was not returned before."""
        self._listen()
        return super().take_reasons()

    def await_idle(self, timeout_s: float = timeouts.FORKED_RANKS_END_S) -> bool:
        """Wait until no forked rank is left; return whether that is so."""
        return self._server is None or self._server.await_idle(timeout_s)

    def await_end(self, pid: int) -> int | None:
        """Wait until a rank has ended; return its wait status, or None if that is not known."""
        # It is not needed to start one.
        from hpctrain.execute.offered_fork_server import ask_end

        if self._server is None:
            return None
        return ask_end(self._server.name, self._command, pid)

    def prepare_restart(self, imported: Collection[str]) -> None:
        """Start another server, which imports more, beside the one that the ranks were forked by.

        Once it is ready, the ranks of the next attempt are forked by it.
        """
        had = self._asked["modules"]
        more = [name for name in self._further if name in imported and name not in had]
        if not more or not self.may_restart or self._next is not None or self._unusable:
            return
        # Ranks begin to train, and import more. They need the CPUs.
        self._settled = self._settled or Deadline(self.settle_s)
        if not self._settled.is_over:
            return
        self._settled = None
        self._next_asked = {**self._asked, "modules": [*had, *more]}
        try:
            self._next = ForkServerProcess(self._next_asked, self._environment)
        except OSError as error:
            self._reasons.append(left_out(more, f"it cannot be started: {error}"))
            self._further = ()

    def close(self) -> None:
        """End the server, which ends no rank that still lives."""
        self._close_current()
        self._close_next()

    def _close_current(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _close_next(self) -> None:
        if self._next is not None:
            self._next.close()
            self._next = None

    def abandon(self) -> None:
        """Close the descriptors in a fork of this process, which goes on with the server."""
        if self._server is not None:
            self._server.abandon()
            self._server = None
        if self._next is not None:
            self._next.abandon()
            self._next = None

    @property
    def pid(self) -> int | None:
        """Process of the server; None if there is none."""
        return None if self._server is None else self._server.pid

    @property
    def is_preparing(self) -> bool:
        """Whether another server imports for the next attempt."""
        return self._next is not None and not (
            self._next.is_ready or self._next.has_ended or self._next.unusable
        )

    def _argv_of(self, rank: RankCommand) -> list[str]:
        self._command = rank.argv
        self._renew(rank.environment)
        if self._server is None:
            return [*rank.argv]
        python = system_python() if self._trusts_nodes else ""
        return client_argv(self._server.name, rank.argv, client=rank.client, python=python)

    def _renew(self, environment: Mapping[str, str]) -> None:
        """Have a server that is alive and up to date, if there can be one."""
        self._listen()
        wanted = {n: v for n, v in environment.items() if not environ.is_of_launcher(n)}
        had = {n: v for n, v in self._environment.items() if not environ.is_of_launcher(n)}
        if wanted != had:
            self.close()
        self._change_over()
        server = self._server
        if server is not None and (server.has_ended or server.is_stale() or server.has_grown):
            self._close_current()
        if self._server is None:
            self._environment = dict(environment)
            self.start()

    def _change_over(self) -> None:
        """Let the other server take over if it is ready; do without it if it never will be."""
        if self._next is None:
            return
        if self._next.is_ready:
            if (last := self._server) is not None:
                # The ranks that start need not wait for its end.
                threading.Thread(target=last.close, daemon=True).start()
            self._server, self._next = self._next, None
            self._asked = self._next_asked
        elif self._next.has_ended or self._next.unusable:
            # What ranks have imported may start a thread, or need what only ranks have.
            had, why = self._asked["modules"], self._next.unusable or "it has ended"
            more = [name for name in self._next_asked["modules"] if name not in had]
            self._reasons.append(left_out(more, why))
            self._close_next()
            self._further = ()

    def _listen(self) -> None:
        server = self._server
        if server is None:
            return
        self._reasons += server.take_refusals()
        if server.unusable:
            self._close_current()
            asked = self._asked["modules"]
            needed = [name for name in asked if name not in self._dispensable]
            if needed == asked:
                self._give_up(server.unusable)
            else:
                dropped = [name for name in asked if name in self._dispensable]
                self._reasons.append(left_out(dropped, server.unusable))
            self._asked = {**self._asked, "modules": needed}

    def _give_up(self, reason: str) -> None:
        """Do without a server from now on: the next one would meet with the same."""
        self._unusable = reason
        self._reasons.append(reason)
