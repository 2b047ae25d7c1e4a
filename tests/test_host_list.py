from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpctrain.host_list import compress_hosts, list_in_order


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ([], ""),
        (["vm"], "vm"),
        (["node1", "node2", "node4"], "node[1-2,4]"),
        (["gpu098", "gpu099", "gpu100"], "gpu[098-100]"),
        (["n9", "n10", "n11"], "n[9-11]"),
        (["n0", "n00", "n1"], "n[0-1],n00"),
        (["10.0.0.1", "10.0.0.2"], "10.0.0.[1-2]"),
        (["a1-ib", "a2-ib"], "a1-ib,a2-ib"),
        ([f"nid{n:05}" for n in range(1, 501)], "nid[00001-00500]"),
    ],
)
def test_hosts_are_named_as_slurm_names_them(hosts: list[str], expected: str):
    assert compress_hosts(hosts) == expected


def expand(text: str) -> list[str]:
    """Expand a list as ``scontrol show hostnames`` does, written independently."""
    found = []
    for prefix, inside in re.findall(r"([^,\[]+)(?:\[([^]]*)\])?", text):
        for part in inside.split(",") if inside else [""]:
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1) if part else [None]:
                found.append(prefix if number is None else f"{prefix}{number:0{len(first)}}")
    return found


def test_nothing_is_lost_or_added(each_example: Callable[[Callable[[Any], None]], None]):
    def check(rng: np.random.Generator) -> None:
        hosts = [
            f"{rng.choice(['n', 'gpu-', 'r1n'])}{rng.integers(120):0{rng.integers(1, 4)}}"
            for _ in range(rng.integers(0, 40))
        ]
        hosts += ["login"] * int(rng.integers(2))
        expanded = expand(compress_hosts(hosts))
        assert sorted(expanded) == sorted(set(hosts))
        assert expand(list_in_order(hosts)) == hosts

    each_example(check)


@pytest.mark.slurm
def test_slurm_expands_them_as_they_were(virtual_slurm: Any):
    hosts = [*(f"n{n}" for n in range(8, 13)), *(f"g{n:03}" for n in (7, 8, 9, 10, 99, 100)), "x"]
    said = virtual_slurm.run_on("head", ["scontrol", "show", "hostnames", compress_hosts(hosts)])
    assert said.stdout.split() == hosts
    tasks = ["g010", "g010", "g007", "x", "x", "n9", "n10", "n9"]
    argv = ["scontrol", "show", "hostnames", list_in_order(tasks)]
    assert virtual_slurm.run_on("head", argv).stdout.split() == tasks
