"""A process of the tests that imports frameworks once, and forks the ranks of many runs.

A rank imports for seconds what it needs for a moment: torch 1.5 s of CPU, then torch._dynamo, which
the first optimizer imports, 1.4 s, and Lightning 2.8 s. A sweep does the same for its trials, see
`hpctrain.execute.offered_fork_server`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hpctrain import environ
from hpctrain.backend import modules_of_trials
from hpctrain.execute import fork_server
from hpctrain.execute.fork_server import ForkServers, rank_environment
from hpctrain.execute.rank_forks import RankForks
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.plan.modules import own_places
from hpctrain.plan.spec import RankSettings

_fork_server_for = fork_server.fork_server_for


@contextmanager
def imported_once(
    *modules: str, kept: dict[tuple[str, ...], ForkServers] | None = None
) -> Iterator[None]:
    """Fork the ranks of all runs on this machine from a process that stays from run to run.

    It starts with the first of these runs, and anew where ranks of the next one have other modules
    or variables. Ranks that it refuses import for themselves.

    Parameters
    ----------
    modules
        What it imports beside what a sweep imports for its trials.
    kept
        Where such a process stays when this ends, for the next time; it is ended here without that.
    """
    servers: dict[tuple[str, ...], ForkServers] = {} if kept is None else kept

    def offer(plan: LaunchPlan, settings: RankSettings, *, offered: str = "") -> RankForks | None:
        if plan.launcher != "local" or not environ.wants_fork_server():
            return _fork_server_for(plan, settings, offered=offered)
        # It is another one in each test. pytest sets it again before the next step of a test.
        os.environ.pop("PYTEST_CURRENT_TEST", None)
        environment = rank_environment(plan.threads_per_task, plan.environment)
        imports = (*modules_of_trials(settings), *modules)
        places = own_places(settings.sys_path)
        key = (*imports, *places)
        if key not in servers:
            close_servers(servers)
            servers[key] = ForkServers(imports, own_places=places, environment=environment)
        return _fork_server_for(plan, settings, offered=servers[key].offer(environment))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_server, "fork_server_for", offer)
        # Arrow's allocator, of pandas too, would have a thread, which no fork has.
        patch.setenv("JE_ARROW_MALLOC_CONF", "background_thread:false")
        try:
            yield
        finally:
            if kept is None:
                close_servers(servers)


def forks_of_one_import(*modules: str) -> Any:
    """Return a fixture that is `imported_once` for each module of tests of a file or a folder.

    The process stays from module to module, as long as they need the same of it.
    """

    @pytest.fixture(scope="module", autouse=True)
    def fixture(kept_fork_servers: dict[tuple[str, ...], ForkServers]) -> Iterator[None]:
        with imported_once(*modules, kept=kept_fork_servers):
            yield

    return fixture


def close_servers(servers: dict[tuple[str, ...], ForkServers]) -> None:
    """End these processes; none is left in the dictionary."""
    while servers:
        servers.popitem()[1].close()
