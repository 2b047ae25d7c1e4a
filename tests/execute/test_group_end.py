from __future__ import annotations

from typing import Any

import pytest

from hpctrain.execute.group_end import await_death_notice


class Hub:
    """Takes note of what is sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, op: str) -> None:
        self.sent.append(op)


class Step:
    """A launcher that ends once it has been waited for three times."""

    def __init__(self) -> None:
        self.waits = 0

    def returncode(self) -> int | None:
        return 1 if self.waits == 3 else None

    def last_lines(self) -> str:
        return ""

    def wait(self, timeout_s: float) -> int | None:
        self.waits += 1
        return self.returncode()


class Forks:
    """What has forked rank 4711, which was killed."""

    def await_end(self, pid: int) -> int | None:
        return 9 if pid == 4711 else None


@pytest.mark.parametrize(
    ("pids", "fork_server", "found", "waits"),
    [
        ({3: 4712, 1: 4711}, Forks(), (1, 9), 0),
        ({3: 4712}, Forks(), None, 3),
        ({}, Forks(), None, 3),
        ({1: 4711}, None, None, 3),
    ],
)
def test_the_launcher_is_waited_for_only_if_nothing_else_knows_how_a_rank_died(
    pids: dict[int, int], fork_server: Any, found: tuple[int, int] | None, waits: int
) -> None:
    hub, step = Hub(), Step()
    status = await_death_notice(
        hub,  # type: ignore[arg-type]
        step,  # type: ignore[arg-type]
        pids=pids,
        fork_server=fork_server,
    )
    assert (status, step.waits, hub.sent) == (found, waits, ["end"])
