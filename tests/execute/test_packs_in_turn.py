"""What nodes do with a packed environment that they get from one another: the script of nodes."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain.execute.pack_exchange import PackExchange
from hpctrain.pack.header import SQUASHFS, EnvironmentPack
from hpctrain.plan import environment_pack
from tests.pack.mounts import require_squashfs
from tests.pack.tiny import write_tiny_pack
from tests.plan.pack_nodes import Node, Nodes
from tests.waiting import wait_until


@pytest.fixture(params=["tar", "squashfs"])
def pack(request: pytest.FixtureRequest, tmp_path: Path) -> EnvironmentPack:
    """Return a pack that nodes unpack, and one that they mount."""
    if request.param == "squashfs":
        require_squashfs()
    starter = f"exit 0\n#{secrets.token_hex(2**16)}"
    path = tmp_path / f"environment.{request.param}"
    return write_tiny_pack(path, form=request.param, starter=starter)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Start nodes, each with a disk of its own."""
    nodes, names = Nodes(), iter(["a", "b", "c"])

    def begin(pack: EnvironmentPack, exchange: PackExchange, **options: str) -> Node:
        name = next(names)
        (tmp_path / name).mkdir()
        return nodes(pack, tmp_path / name, name=name, program=exchange.program, **options)

    yield begin
    nodes.close()


@pytest.fixture
def exchange(pack: EnvironmentPack) -> Iterator[PackExchange]:
    begun = PackExchange(pack, num_nodes=3)
    yield begun
    begun.close()


def test_one_node_reads_the_file_and_the_others_get_it_from_that_one(
    pack: EnvironmentPack, exchange: PackExchange, start: Callable[..., Node], tmp_path: Path
) -> None:
    first = start(pack, exchange)
    assert first.answer() == [f"reads the shared file: {pack.path}", "ready"]
    # No other node can read it.
    os.unlink(pack.path)
    others = [start(pack, exchange) for _ in range(2)]
    for node in others:
        assert node.answer() == ["ready"]
        where = node.own() / ("mount" if pack.form == SQUASHFS else ".")
        assert (where / pack.interpreter).read_text().startswith("#!/bin/sh\nexit 0\n")
        assert not node.copy.exists()
    assert exchange.num_given == 2
    exchange.close()
    for node in (first, *others):
        node.leave()
    assert [os.listdir(tmp_path / name) for name in ("a", "b", "c")] == [[], [], []]


def test_a_node_without_a_python_of_its_own_reads_the_file_and_says_so(
    pack: EnvironmentPack,
    exchange: PackExchange,
    start: Callable[..., Node],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = environment_pack._SCRIPT
    for python in environment_pack._PYTHONS:
        script = script.replace(f" {python}", f" /none{python}")
    monkeypatch.setattr(environment_pack, "_SCRIPT", script)
    assert start(pack, exchange).answer() == [
        "gets it from no other node: it has no python3 of its own",
        f"reads the shared file: {pack.path}",
        "ready",
    ]


def test_a_node_that_nobody_answers_reads_the_file_and_says_why(
    pack: EnvironmentPack,
    exchange: PackExchange,
    start: Callable[..., Node],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = exchange.program.decode().replace("'silence_s': 60.0", "'silence_s': 0.3")
    exchange.program = text.encode()
    exchange.close()
    why, *others = start(pack, exchange).answer()
    assert why.startswith("gets it from no other node: cannot be reached: ")
    assert others == [f"reads the shared file: {pack.path}", "ready"]


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (b"\n", "its python3 has printed nothing"),
        (b"import none\n", "ModuleNotFoundError: No module named 'none'"),
    ],
)
def test_a_node_whose_python_does_nothing_of_it_reads_the_file(
    pack: EnvironmentPack,
    exchange: PackExchange,
    start: Callable[..., Node],
    program: bytes,
    why: str,
) -> None:
    exchange.program = program
    assert start(pack, exchange).answer() == [
        f"gets it from no other node: {why}",
        f"reads the shared file: {pack.path}",
        "ready",
    ]


def test_a_file_that_has_changed_is_refused_by_all(
    pack: EnvironmentPack, exchange: PackExchange, start: Callable[..., Node], tmp_path: Path
) -> None:
    content = bytearray(Path(pack.path).read_bytes())
    content[600] ^= 1
    Path(pack.path).write_bytes(content)
    for name in ("a", "b"):
        *_, said = start(pack, exchange).answer()
        assert said.startswith(f"failed: the digest of {pack.path} is ")
        assert os.listdir(tmp_path / name) == []


def test_a_full_disk_is_named_before_it_is_filled(
    pack: EnvironmentPack, exchange: PackExchange, tmp_path: Path
) -> None:
    disk, nodes = tmp_path / "disk", Nodes()
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)]
    if (done := subprocess.run(words, capture_output=True)).returncode != 0:
        pytest.skip(f"this user may not mount tmpfs: {done.stderr.decode()}")
    try:
        *_, said = nodes(pack, disk, program=exchange.program).answer()
        assert said.startswith(f"failed: {disk} has 0 MiB left, and ")
        assert os.listdir(disk) == []
    finally:
        nodes.close()
        subprocess.run(["umount", disk], check=True)


def test_a_run_that_ends_meanwhile_does_not_wait_for_who_reads_or_waits(
    pack: EnvironmentPack, start: Callable[..., Node], tmp_path: Path
) -> None:
    # Nobody writes into it, so the first node reads for ever.
    os.mkfifo(tmp_path / "fifo")
    stuck = replace(pack, path=str(tmp_path / "fifo"))
    exchange = PackExchange(stuck, num_nodes=2)
    nodes = [start(stuck, exchange) for _ in range(2)]
    wait_until(lambda: len(exchange._nodes) == 2, "both have come")
    exchange.close()
    for node in nodes:
        # As Slurm sends it: to all processes of the step.
        while node.process.poll() is None:
            os.killpg(node.process.pid, signal.SIGUSR1)
            with suppress(subprocess.TimeoutExpired):
                node.process.wait(0.2)
        assert node.process.returncode == 66
    assert [os.listdir(tmp_path / name) for name in ("a", "b")] == [[], []]
