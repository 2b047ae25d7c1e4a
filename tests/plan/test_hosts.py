from __future__ import annotations

import random
from pathlib import Path

import pytest

from hpctrain.errors import ConfigError
from hpctrain.plan.hosts import Host, parse_hostfile, read_hostfile


def slots(text: str) -> dict[str, int | None]:
    return {host.name: host.slots for host in parse_hostfile(text, path="hosts")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node1:4\nnode2:2\n", {"node1": 4, "node2": 2}),
        ("node1:4 binding=core:2\n", {"node1": 4}),
        ("node1 slots=4 max_slots=8\nnode2 slots = 2", {"node1": 4, "node2": 2}),
        ("node1 max_slots=8 slots=4", {"node1": 4}),
        ("# mine\n\nnode1   # the first\r\n  node2\n", {"node1": None, "node2": None}),
        ("node1\nnode1\nnode2\n", {"node1": 2, "node2": 1}),
        ("node1:2\nnode2\nnode1:3", {"node1": 5, "node2": 1}),
        ("gpu-01.site.org 8 all.q@gpu-01 UNDEFINED\n", {"gpu-01.site.org": 8}),
        ("10.0.0.7:2\n[fe80::1]:3\n", {"10.0.0.7": 2, "fe80::1": 3}),
    ],
    ids=["mpich", "binding", "openmpi", "order", "plain", "pbs", "mixed", "sge", "addresses"],
)
def test_hostfiles_of_every_kind_are_read(text: str, expected: dict[str, int | None]) -> None:
    assert slots(text) == expected
    assert list(slots(text)) == list(expected)


@pytest.mark.parametrize(
    "line", ["node1:four", "node1:0", "node1 slots=0", "a=b:c", ":4", "n1,n2", "-oX"]
)
def test_a_line_that_is_no_host_is_named(line: str) -> None:
    with pytest.raises(ConfigError, match=r"hostfile hosts, line 2: .* Write 'node1', 'node1:4'"):
        parse_hostfile(f"node0\n{line}\n", path="hosts")


def test_a_file_without_hosts_is_refused() -> None:
    with pytest.raises(ConfigError, match="hostfile hosts names no host"):
        parse_hostfile("# nothing\n\n", path="hosts")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there cannot be read: .*No such file"):
        read_hostfile(tmp_path / "there")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="binary cannot be read"):
        read_hostfile(tmp_path / "binary")


@pytest.mark.parametrize("seed", range(50))
def test_slots_of_one_host_add_up(seed: int) -> None:
    drawn = random.Random(seed)
    lines = [(drawn.choice("abc"), drawn.randint(1, 9)) for _ in range(drawn.randint(1, 8))]
    expected = dict.fromkeys([name for name, _ in lines], 0)
    for name, count in lines:
        expected[name] += count
    for form in ("{}:{}", "{} slots={}", "{} {} queue"):
        assert slots("\n".join(form.format(*line) for line in lines)) == expected
    # PBS: a line a slot; if no host is named twice, nothing is known.
    repeated = [name for name, count in lines for _ in range(count)]
    counted = len(repeated) > len(expected)
    assert slots("\n".join(repeated)) == (expected if counted else dict.fromkeys(expected))


def test_a_host_is_a_value() -> None:
    assert parse_hostfile("n:2", path="h") == (Host(name="n", slots=2),)
