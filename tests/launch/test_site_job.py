from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from hpctrain.launch.site_job import read_answer
from hpctrain.slurm.site_profile import NodesSeen

WHEEL = str(Path(sys.executable).parent / "mpiexec")


def answer(chosen: str, worlds: dict[str, list[int]], *interfaces: str) -> dict[str, Any]:
    """Return what a probe of two nodes answers; the second one has all interfaces but the last."""
    names = (interfaces, interfaces[:-1])
    return {
        "machines": [
            {
                "host": f"n{number}",
                "interfaces": {"lo": "127.0.0.1", **dict.fromkeys(mine, "10.0.0.1")},
            }
            for number, mine in enumerate(names, 1)
        ],
        "worlds": {
            name: {"wanted": 2, "ranks": [{"size": size} for size in sizes], "output": ""}
            for name, sizes in worlds.items()
        },
        "chosen": chosen,
    }


def test_only_interfaces_of_all_nodes_count() -> None:
    seen = read_answer(
        answer("srun --mpi=pmi2", {"srun --mpi=pmi2": [2, 2]}, "ib1", "eth0", "ib0", "hsn0")
    )
    assert seen == NodesSeen(
        hosts=["n1", "n2"],
        interfaces=["eth0", "ib0", "ib1"],
        fast_interfaces=["ib0", "ib1"],
        launcher="srun --mpi=pmi2",
        is_connected=True,
        other_mpi=None,
    )


@pytest.mark.parametrize(
    ("worlds", "is_connected", "other_mpi"),
    [
        ({"srun --mpi=pmix": [1, 1], "srun --mpi=pmi2": [2, 2]}, False, "pmi2"),
        ({"srun --mpi=pmix": [2], "srun --mpi=pmi2": [1, 1]}, False, None),
        ({"srun --mpi=pmix": [], WHEEL: [2, 2]}, False, "wheel"),
        ({"srun --mpi=pmix": [], "/opt/mpi/mpiexec": [2, 2]}, False, "/opt/mpi/mpiexec"),
        ({"srun --mpi=pmix": [2, 2], "srun --mpi=pmi2": [2, 2]}, True, "pmi2"),
    ],
)
def test_a_launcher_that_makes_one_world_is_known(
    worlds: dict[str, list[int]], is_connected: bool, other_mpi: str | None
) -> None:
    seen = read_answer(answer("srun --mpi=pmix", worlds, "eth0"))
    assert (seen.is_connected, seen.other_mpi) == (is_connected, other_mpi)


def test_no_launcher_at_all_is_no_connection() -> None:
    seen = read_answer(answer("", {}, "eth0"))
    assert (seen.launcher, seen.is_connected, seen.other_mpi) == ("", False, None)
