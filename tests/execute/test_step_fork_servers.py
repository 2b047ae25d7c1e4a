"""What the fork servers of the next step import."""

from __future__ import annotations

import json
import sys

import pytest

from hpctrain.execute.step_fork_servers import StepForkServers

RANK = [sys.executable, "-m", "hpctrain.worker.main"]


@pytest.fixture
def servers() -> StepForkServers:
    return StepForkServers(["numpy"], own_places=["/of/mine"], further=["wave", "csv", "numpy"])


def _asked(servers: StepForkServers) -> list[str]:
    words = servers.command(RANK, {}, are_alone=True)
    asked = json.loads(words[-1].partition("=")[2])
    assert asked["own_places"] == ["/of/mine"]
    assert words[-1].partition("=")[2] in servers.command(RANK, {})
    modules: list[str] = asked["modules"]
    return modules


def test_the_next_step_imports_what_ranks_have_imported_of_what_it_may(
    servers: StepForkServers,
) -> None:
    assert _asked(servers) == ["numpy"]
    servers.prepare_restart({"csv", "something"})
    assert _asked(servers) == ["numpy", "csv"]
    servers.prepare_restart({"csv", "wave", "numpy"})
    assert _asked(servers) == ["numpy", "wave", "csv"]


def test_after_ranks_were_not_forked_it_imports_what_it_did_at_first(
    servers: StepForkServers,
) -> None:
    servers.note([])
    servers.prepare_restart({"csv"})
    reason = "the import of csv starts a thread"
    servers.note([reason])
    assert _asked(servers) == ["numpy"]
    servers.prepare_restart({"csv"})
    assert _asked(servers) == ["numpy"]
    assert servers.take_reasons() == [reason, f"the fork server leaves out csv: {reason}"]
