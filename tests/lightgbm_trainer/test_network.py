"""Which network LightGBM gets, by where its ranks are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("lightgbm")

from hpctrain import World
from hpctrain.lightgbm.network import wants_sockets
from hpctrain.testing.thread_comm import run_on_threads
from tests.worlds import world_on


@dataclass(frozen=True)
class Context:
    world: World
    comm: Any


def choose(nodes: list[int], cpus: list[set[int]], monkeypatch: pytest.MonkeyPatch) -> set[bool]:
    def rank(comm: Any) -> bool:
        context: Any = Context(world_on(nodes, comm), comm)
        return wants_sockets(context, "auto")

    # Each rank asks once, in any order: all of a test's ranks see as many CPUs.
    left = list(cpus)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: left.pop())
    return set(run_on_threads(len(nodes), rank))


def test_ranks_with_a_cpu_each_use_mpi_bound_to_it_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert choose([0, 0], [{0, 1}] * 2, monkeypatch) == {False}
    assert choose([0, 0, 1, 1], [{0, 1}] * 4, monkeypatch) == {False}
    assert choose([0, 1], [{0}, {0}], monkeypatch) == {False}


def test_a_node_with_more_ranks_than_cpus_makes_all_use_sockets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert choose([0, 0, 1], [{0}] * 3, monkeypatch) == {True}
