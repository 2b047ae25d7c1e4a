from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from hpctrain.errors import SupersededError
from hpctrain.execute import fence as fence_module
from hpctrain.execute.fence import Fence, read_owner
from hpctrain.rundir.paths import RunPaths


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path / "run\n%1")


@pytest.fixture(autouse=True)
def run(paths: RunPaths) -> None:
    paths.root.mkdir()


def numbers(paths: RunPaths) -> list[str]:
    return sorted(path.name for path in paths.root.iterdir())


def take(paths: RunPaths) -> Fence:
    fence = Fence(paths)
    fence.take(paths)
    return fence


def test_the_last_to_take_a_number_may_write_and_nobody_else(paths: RunPaths):
    first = take(paths)
    assert first.holds(paths)
    second = take(paths)
    assert (first.number, second.number) == (1, 2)
    assert not first.holds(paths)
    assert second.holds(paths)
    assert numbers(paths) == [".executor-2"]
    second.check(paths)
    here = rf"number 2, process {os.getpid()} on {re.escape(socket.gethostname())}\. This one, n"
    with pytest.raises(SupersededError, match=here):
        first.check(paths)


def test_of_many_that_take_one_at_the_same_time_one_may_write(paths: RunPaths):
    num, barrier = 12, Barrier(12)

    def race(_: int) -> Fence:
        barrier.wait()
        return take(paths)

    with ThreadPoolExecutor(num) as pool:
        fences = list(pool.map(race, range(num)))
    assert len({fence.number for fence in fences}) == num
    assert sum(fence.holds(paths) for fence in fences) == 1
    assert len(numbers(paths)) == 1


def test_a_number_that_its_successor_has_freed_again_is_worth_nothing(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
):
    slow, create = Fence(paths), os.open

    def overtaken(*args: object) -> int:
        monkeypatch.setattr(os, "open", create)
        take(paths), take(paths)
        return create(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(fence_module.os, "open", overtaken)
    slow.take(paths)
    assert slow.number == 3
    assert slow.holds(paths)
    assert numbers(paths) == [".executor-3"]


def test_a_file_that_is_gone_without_a_successor_ends_nobody(paths: RunPaths):
    fence = take(paths)
    paths.executor(1).unlink()
    fence.check(paths)


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"host": 1}', b'{"job_id": "--user=root"}'])
def test_a_damaged_file_still_ends_a_predecessor(paths: RunPaths, content: bytes):
    first = take(paths)
    take(paths)
    paths.executor(2).write_bytes(content)
    assert read_owner(paths) == {}
    with pytest.raises(SupersededError, match="number 2, of which nothing more is known"):
        first.check(paths)


def test_a_link_in_its_place_is_not_followed(paths: RunPaths, tmp_path: Path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    paths.executor(1).symlink_to(victim)
    assert take(paths).number == 2
    assert victim.read_text() == "precious"


def test_a_full_disk_ends_nobody(paths: RunPaths, monkeypatch: pytest.MonkeyPatch):
    create = os.open

    def full(path: object, flags: int, *rest: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(28, "No space left on device")
        return create(path, flags, *rest)  # type: ignore[arg-type]

    take(paths)
    monkeypatch.setattr(fence_module.os, "open", full)
    fence = take(paths)
    monkeypatch.undo()
    assert fence.holds(paths)
    take(paths)
    assert not fence.holds(paths)


def test_a_supervisor_knows_its_own_child(paths: RunPaths):
    take(paths)
    before = Fence(paths)
    code = (
        "import sys; from pathlib import Path; from hpctrain.rundir.paths import RunPaths\n"
        "from hpctrain.execute.fence import Fence\n"
        "paths = RunPaths(Path(sys.argv[1])); Fence(paths).take(paths)\n"
    )
    argv = [sys.executable, "-c", code, str(paths.root)]
    child = subprocess.Popen(argv)
    assert child.wait() == 0
    before.check_after(paths, child=child.pid)
    subprocess.run(argv, check=True)
    with pytest.raises(SupersededError):
        before.check_after(paths, child=child.pid)
    owner = json.loads(paths.executor(3).read_bytes())
    assert owner["host"] == socket.gethostname()
