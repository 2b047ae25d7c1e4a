"""CPUs and GPUs of ranks against hardware that sysfs describes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpctrain.cli.doctor import to_json
from hpctrain.cli.json_output import schema
from hpctrain.doctor.binding import check_binding, shorten
from hpctrain.doctor.finding import Level
from hpctrain.doctor.machine import describe_hardware, parse_cpu_list
from hpctrain.plan.sbatch_options import check_srun_args
from tests.cli.test_json_output import check


@pytest.fixture
def two_sockets(tmp_path: Path) -> dict[str, Any]:
    """Two NUMA nodes of 4 cores with 2 threads each, and a GPU on each of them."""

    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    write("devices/system/node/node0/cpulist", "0-3,8-11")
    write("devices/system/node/node0/distance", "10 21")
    write("devices/system/node/node1/cpulist", "4-7,12-15")
    write("devices/system/node/node1/distance", "21 10")
    for cpu in range(16):
        write(
            f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{cpu % 8},{cpu % 8 + 8}"
        )
    for number, address in enumerate(("0000:17:00.0", "0000:ca:00.0")):
        write(f"bus/pci/devices/{address}/vendor", "0x10de")
        write(f"bus/pci/devices/{address}/class", "0x030200")
        write(f"bus/pci/devices/{address}/numa_node", str(number))
        write(f"bus/pci/devices/{address}/local_cpulist", "0-3,8-11" if number == 0 else "4-7")
    # A network card is no GPU, although NVIDIA makes it.
    write("bus/pci/devices/0000:31:00.0/vendor", "0x10de")
    write("bus/pci/devices/0000:31:00.0/class", "0x020700")
    return describe_hardware(tmp_path)


def ranks(*masks: Sequence[int], gpus: Sequence[str] = ()) -> list[dict[str, Any]]:
    return [
        {"host": "n1", "cpus": list(mask), "gpus": [gpus[n]] if gpus else [], "local_rank": str(n)}
        for n, mask in enumerate(masks)
    ]


def test_hardware_is_read_from_sysfs(two_sockets: dict[str, Any]):
    assert [node["number"] for node in two_sockets["numa_nodes"]] == [0, 1]
    assert two_sockets["numa_nodes"][1]["cpus"] == [4, 5, 6, 7, 12, 13, 14, 15]
    assert two_sockets["cores"] == [[n, n + 8] for n in range(8)]
    assert [(gpu["address"], gpu["numa_node"]) for gpu in two_sockets["gpus"]] == [
        ("0000:17:00.0", 0),
        ("0000:ca:00.0", 1),
    ]


def test_a_machine_without_these_files_is_no_error(tmp_path: Path):
    assert describe_hardware(tmp_path) == {"numa_nodes": [], "cores": [], "gpus": []}
    assert check_binding(ranks([0], [1]), {}, threads=1, gpus_per_worker=0)[0].level is Level.OK


BAD: dict[str, tuple[list[dict[str, Any]], int, str, str]] = {
    "not bound": (
        ranks(range(16), range(16)),
        4,
        "may use all 16 CPUs",
        "--cpu-bind=cores",
    ),
    "two on one CPU": (ranks([0], [0]), 1, "2 ranks share 1 CPUs", "--cpu-bind=cores"),
    "half shared": (ranks([0, 1], [1, 2]), 2, "share 3 CPUs", "--cpu-bind=cores"),
    "fewer CPUs than threads": (ranks([0], [1]), 4, "has 1 CPU for 4 threads", "{'CPU': 1}"),
    "over the sockets": (
        ranks([2, 3, 4, 5], [0, 1]),
        2,
        "are on NUMA nodes 0, 1, and would fit on one",
        "--distribution=block:block",
    ),
    "GPU of the other socket": (
        ranks([0, 1], [4, 5], gpus=["1", "0"]),
        2,
        "GPU 1 is on NUMA node 1, and the CPUs of its rank, 0-1, on 0",
        "--gpu-bind=single:1",
    ),
}


@pytest.mark.parametrize(("told", "threads", "what", "step"), BAD.values(), ids=list(BAD))
def test_what_is_bound_where_it_costs_is_a_warning(
    two_sockets: dict[str, Any], told: list[dict[str, Any]], threads: int, what: str, step: str
):
    findings = check_binding(told, {"n1": two_sockets}, threads=threads, gpus_per_worker=1)
    assert [finding.level for finding in findings] == [Level.WARNING], findings
    assert what in findings[0].what
    assert step in findings[0].step
    check_srun_args(re.findall(r"'(--[^']*)'", findings[0].step))
    if "NUMA" in what:
        assert "2.1 times as far" in findings[0].why


@pytest.mark.parametrize(
    "told",
    [
        ranks([0, 1], [2, 3]),
        ranks([0, 1], [4, 5], gpus=["0", "1"]),
        # Of no use to compare: names of parts of GPUs, and a rank that fits on no NUMA node.
        ranks([0, 1], [4, 5], gpus=["MIG-1", "GPU-2"]),
        ranks(range(12)),
    ],
)
def test_what_is_bound_well_is_no_warning(two_sockets: dict[str, Any], told: list[dict[str, Any]]):
    findings = check_binding(told, {"n1": two_sockets}, threads=2, gpus_per_worker=1)
    assert [finding.level for finding in findings] == [Level.OK], findings


@pytest.mark.parametrize(
    ("masks", "level"),
    [(([0, 1], [2, 3], [4, 5]), Level.OK), (([0, 1], [1, 2], [4, 5]), Level.WARNING)],
)
def test_the_json_has_the_cpus_of_each_rank(
    two_sockets: dict[str, Any], masks: tuple[list[int], ...], level: Level
):
    told = ranks(*masks, gpus=["MIG-0", "MIG-1", "MIG-2"])
    # srun prints ranks as they come.
    findings = check_binding(told[::-1], {"n1": two_sockets}, threads=2, gpus_per_worker=1)
    assert findings[0].level is level
    answer = {"format": 1, **to_json(findings)}
    check(answer, schema("doctor"))
    assert answer["findings"][0]["ranks"] == [
        {"host": "n1", "local_rank": n, "cpus": mask, "gpus": [f"MIG-{n}"]}
        for n, mask in enumerate(masks)
    ]
    assert all("ranks" not in finding for finding in answer["findings"][1:])


@pytest.mark.parametrize("visible", [("0", "1"), ("0",)])
def test_a_rank_that_sees_gpus_of_others_is_far_from_its_own_alone(
    two_sockets: dict[str, Any], visible: tuple[str, ...]
):
    told = [{**rank, "gpus": list(visible)} for rank in ranks([0, 1], [4, 5])]
    # Of two ranks that see one GPU, one would be refused at the start.
    near = told if len(visible) == 2 else told[:1]
    (finding,) = check_binding(near[::-1], {"n1": two_sockets}, threads=2, gpus_per_worker=1)
    assert finding.level is Level.OK
    swapped = [{**rank, "cpus": [4, 5] if rank["cpus"] == [0, 1] else [0, 1]} for rank in near]
    (finding,) = check_binding(swapped, {"n1": two_sockets}, threads=2, gpus_per_worker=1)
    assert "GPU 0 is on NUMA node 0, and the CPUs of its rank, 4-5, on 1" in finding.what
    (finding,) = check_binding(swapped, {"n1": two_sockets}, threads=2, gpus_per_worker=0)
    assert finding.level is Level.OK


def test_lists_of_cpus_are_read_and_written():
    for text in ("0", "0-3", "0-3,8-11", "1,3,5"):
        assert shorten(parse_cpu_list(text)) == text
    assert parse_cpu_list("") == []
