from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpctrain.control.wire import PROTOCOL, Frame
from hpctrain.errors import LaunchError, RunStoppedError
from hpctrain.execute import rendezvous
from hpctrain.execute.health import Health
from hpctrain.execute.rendezvous import Rendezvous, WorkerMetadata
from hpctrain.plan.visibility import NOT_SEEN

HELLO = {
    "rank": 3,
    "hostname": "n1",
    "pid": 7,
    "tmp": "/tmp",
    "tmp_owner": "",
    "node_rank": 1,
    "local_rank": 0,
}


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


def make_rendezvous(num_nodes: int = 1, agents: Any = None, **looks: Any) -> Rendezvous:
    step: Any = Waiting()
    return Rendezvous(
        lambda timeout_s: [],
        examine=lambda pids, silent: None,
        step=step,
        agents=agents or step,
        size=1,
        stacks=Path("stacks"),
        health=Health(num_nodes=num_nodes),
        **looks,
    )


def test_what_no_node_of_a_large_job_sees_is_no_fault_of_some_of_them() -> None:
    class Agents(Waiting):
        def last_lines(self, count: int = 12) -> str:
            why = f"cannot be used: {NOT_SEEN}the working directory /tmp/me"
            return "\n".join([f"hpctrain: n{number:04d} {why}" for number in range(1000)][-count:])

    with pytest.raises(
        LaunchError, match="no node of this job sees the working directory"
    ) as found:
        make_rendezvous(1000, Agents())._refuse_bad_nodes(None)
    assert "--exclude" not in str(found.value)


def test_ranks_with_one_pid_on_two_nodes_are_two() -> None:
    asked: list[Mapping[int, int]] = []
    rendezvous = make_rendezvous(2)
    rendezvous._size = 2
    rendezvous._examine = lambda pids, silent: asked.append(pids)
    for rank, node in enumerate(("n1", "n2")):
        starting = {"op": "starting", "pid": 7, "launched_as": rank, "hostname": node}
        rendezvous._take(Frame(starting, b"", b""))
    rendezvous._take(Frame({**HELLO, "op": "hello", "rank": 0, "protocol": PROTOCOL}, b"", b""))
    found = {"op": "examined", "rank": 1, "reason": "it waits for rank 0"}
    rendezvous._poll = lambda timeout_s: [Frame(found, b"", b"")]
    said = rendezvous._explain_timeout(0.0)
    assert "2 processes had begun" in said
    assert "these hang in MPI_Init: rank 1 on n2 (it waits for rank 0)" in said
    assert asked == [{1: 7}]


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


def test_a_start_ends_when_the_run_is_to_stop(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rendezvous, "_LOOK_INTERVAL_S", 0.0)
    looks = iter([None, RunStoppedError("it was asked to")])

    def check_stop() -> None:
        if (error := next(looks)) is not None:
            raise error

    with pytest.raises(RunStoppedError, match="it was asked to"):
        make_rendezvous(check_stop=check_stop).wait(60.0)


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
