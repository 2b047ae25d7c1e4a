from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpctrain.control.wire import PROTOCOL
from hpctrain.errors import LaunchError
from hpctrain.execute.health import Health
from hpctrain.execute.rendezvous import Rendezvous, WorkerMetadata

HELLO = {"rank": 3, "hostname": "n1", "pid": 7, "tmp": "/tmp", "node_rank": 1, "local_rank": 0}


def test_a_rank_says_where_it_lives():
    worker = WorkerMetadata.from_hello({**HELLO, "protocol": PROTOCOL})
    assert (worker.rank, worker.hostname, worker.node_rank) == (3, "n1", 1)


@pytest.mark.parametrize("protocol", [{}, {"protocol": PROTOCOL + 1}])
def test_a_rank_of_another_hpctrain_is_refused(protocol: dict[str, int]):
    with pytest.raises(LaunchError, match="rank 3 on n1 imports another hpctrain"):
        WorkerMetadata.from_hello({**HELLO, **protocol})


class Waiting:
    """An srun that waits for a node without end."""

    argv = ("srun", "true")
    log = Path("launcher.out")

    def returncode(self) -> None:
        return None

    def last_lines(self, count: int = 12) -> str:
        return ""


def make_rendezvous(**lost: Any) -> Rendezvous:
    step: Any = Waiting()
    return Rendezvous(
        lambda timeout_s: [],
        examine=lambda pids, silent: None,
        step=step,
        agents=step,
        size=1,
        stacks=Path("stacks"),
        health=Health(num_nodes=1),
        **lost,
    )


# No silence shows a node that goes down, and srun may wait for it for as long as a start may take.
# What starts ranks in the step of a slot does not end with a node that goes silent.
@pytest.mark.parametrize(
    ("find", "options", "how"),
    [("find_down", {"ask_after_s": 0.0}, "down"), ("find_silent", {}, "silent")],
)
def test_a_node_that_is_lost_before_its_ranks_have_joined_ends_the_start(
    find: str, options: Mapping[str, float], how: str
) -> None:
    answers = [[], ["node1"]]
    rendezvous = make_rendezvous(**{find: lambda: answers.pop(0)}, **options)
    message = f"node1 went {how} before the ranks had started"
    with pytest.raises(LaunchError, match=message) as raised:
        rendezvous._await_ranks(60.0)
    # The next attempt finds that it cannot have the node.
    assert raised.value.transient
    assert answers == []


def test_ranks_that_have_not_begun_in_time_are_looked_for_where_they_print():
    step: Any = Waiting()
    rendezvous = Rendezvous(
        lambda timeout_s: [],
        examine=lambda pids, silent: None,
        step=step,
        agents=None,
        size=2,
        stacks=Path("stacks"),
        health=Health(),
    )
    message = "0 processes had begun. Output of the others: launcher.out."
    with pytest.raises(LaunchError, match=message):
        rendezvous._await_ranks(0.0)
