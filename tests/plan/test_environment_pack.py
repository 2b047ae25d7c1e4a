"""What a node does with a packed environment: the script itself, run as on a node."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain.pack.header import EnvironmentPack
from hpctrain.plan.environment_pack import is_packed, node_variables, unpack_argv, unpacked_at
from tests.pack.tiny import write_tiny_pack

TIMEOUT_S = 30


class Node:
    """The process of one job on a node."""

    def __init__(
        self, pack: EnvironmentPack, place: Path, *, copy: bytes | None = None, path: str = ""
    ) -> None:
        self.copy = place / f"hpctrain-packs-{os.geteuid()}-{os.urandom(4).hex()}.copy"
        if copy is not None:
            self.copy.write_bytes(copy)
        variables = {**os.environ, "SLURMD_NODENAME": "node1"}
        variables["PATH"] = f"{path}:{variables['PATH']}"
        self.process = subprocess.Popen(
            unpack_argv(pack, place=str(place), copy=str(self.copy), patience_s=20),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=variables,
            start_new_session=True,
        )

    def answer(self) -> list[str]:
        """Return what it prints until it is ready, or has failed."""
        lines = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            lines.append(line.removeprefix("hpctrain-pack node1 ").rstrip())
            if lines[-1] == "ready":
                break
        return lines

    def leave(self) -> None:
        """Let it remove the copy if it is the last one."""
        for _ in range(TIMEOUT_S * 2):
            self.process.send_signal(signal.SIGUSR1)
            with suppress(subprocess.TimeoutExpired):
                # A single one is without effect now and then, see NodeEnvironment.
                self.process.wait(0.5)
                break
        assert self.process.returncode in (0, 66)


class Nodes:
    """Starts such processes, and ends them."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []

    def __call__(self, *args: object, **options: object) -> Node:
        """Start one."""
        self._nodes.append(Node(*args, **options))  # type: ignore[arg-type]
        return self._nodes[-1]

    def close(self) -> None:
        """End them: what is left of one waits in a process of its own."""
        for node in self._nodes:
            if node.process.poll() is None:
                node.leave()
            assert node.process.stdout is not None
            node.process.stdout.close()


@pytest.fixture
def start() -> Iterator[Nodes]:
    nodes = Nodes()
    yield nodes
    nodes.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "a disk").mkdir()
    return tmp_path / "a disk"


@pytest.fixture
def pack(tmp_path: Path) -> EnvironmentPack:
    return write_tiny_pack(tmp_path / "environment.tar")


def unpacked(pack: EnvironmentPack, place: Path) -> Path:
    return Path(unpacked_at(pack, place=str(place), user=os.geteuid()))


def test_a_copy_is_unpacked_kept_and_removed(
    start: Nodes, pack: EnvironmentPack, place: Path
) -> None:
    node = start(pack, place, copy=Path(pack.path).read_bytes())
    assert node.answer() == ["ready"]
    folder = unpacked(pack, place)
    assert (folder / pack.interpreter).read_text() == "#!/bin/sh\nexit 0\n"
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert not node.copy.exists()
    # A preemption, and the warning before the time limit, are for the ranks.
    for number in (signal.SIGTERM, signal.SIGCONT, signal.SIGUSR2):
        node.process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        node.process.wait(0.3)
    assert folder.exists()
    node.leave()
    assert os.listdir(place) == []


def test_without_a_copy_the_node_reads_the_file_and_says_so(
    start: Nodes, pack: EnvironmentPack, place: Path
) -> None:
    assert start(pack, place).answer() == [f"reads the shared file: {pack.path}", "ready"]


def test_a_copy_that_is_cut_off_is_not_used(
    start: Nodes, pack: EnvironmentPack, place: Path
) -> None:
    node = start(pack, place, copy=Path(pack.path).read_bytes()[:-100])
    assert node.answer() == [f"reads the shared file: {pack.path}", "ready"]


def test_two_jobs_share_a_copy_and_the_last_one_removes_it(
    start: Nodes, pack: EnvironmentPack, place: Path
) -> None:
    first, second = start(pack, place), start(pack, place)
    answers = [first.answer(), second.answer()]
    reads = f"reads the shared file: {pack.path}"
    assert sorted(answers, key=len) == [["ready"], [reads, "ready"]]
    first.leave()
    assert (unpacked(pack, place) / "ready").exists()
    second.leave()
    assert os.listdir(place) == []


def test_jobs_with_different_environments_do_not_disturb_one_another(
    start: Nodes, pack: EnvironmentPack, place: Path, tmp_path: Path
) -> None:
    other = write_tiny_pack(tmp_path / "other.tar", python="3.12.1")
    assert other.name != pack.name
    first = start(pack, place)
    first.answer()
    second = start(other, place)
    second.answer()
    assert (unpacked(pack, place) / "ready").exists()
    assert (unpacked(other, place) / "ready").exists()
    second.leave()
    assert (unpacked(pack, place) / "ready").exists()
    first.leave()
    assert os.listdir(place) == []


def test_what_a_killed_job_has_left_is_removed_by_the_next_one(
    start: Nodes, pack: EnvironmentPack, place: Path, tmp_path: Path
) -> None:
    node = start(pack, place)
    node.answer()
    os.killpg(node.process.pid, signal.SIGKILL)
    node.process.wait()
    assert unpacked(pack, place).exists()
    late = place / f"hpctrain-packs-{os.geteuid()}-0123.copy"
    late.write_text("half of a copy")
    os.utime(late, (0, 0))
    recent = place / f"hpctrain-packs-{os.geteuid()}-4567.copy"
    recent.write_text("of a job that is starting")
    other = write_tiny_pack(tmp_path / "other.tar", python="3.12.1")
    start(other, place).answer()
    assert os.listdir(unpacked(pack, place).parent) == [other.name]
    assert (late.exists(), recent.exists()) == (False, True)


def test_what_was_half_unpacked_is_unpacked_again(
    start: Nodes, pack: EnvironmentPack, place: Path
) -> None:
    folder = unpacked(pack, place)
    folder.parent.mkdir(mode=0o700)
    (folder / "env/bin").mkdir(parents=True)
    (folder / "env/bin/python").write_text("half")
    assert start(pack, place).answer()[-1] == "ready"
    assert (folder / "env/bin/python").read_text() == "#!/bin/sh\nexit 0\n"


@pytest.mark.parametrize("kind", ["mode", "link", "owner", "file"])
def test_a_directory_that_others_could_have_made_is_refused(
    start: Nodes, pack: EnvironmentPack, place: Path, tmp_path: Path, kind: str
) -> None:
    folder = place / f"hpctrain-packs-{os.geteuid()}"
    if kind == "mode":
        folder.mkdir()
        folder.chmod(0o755)
    elif kind == "link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "theirs")
    elif kind == "owner":
        if os.geteuid() != 0:
            pytest.skip("only root can give a directory away")
        folder.mkdir(mode=0o700)
        os.chown(folder, 12345, 12345)
    else:
        folder.write_text("")
    node = start(pack, place)
    (said,) = [line for line in node.answer() if line.startswith("failed:")]
    why = "cannot be made or entered" if kind == "file" else "only this user can enter (mode 700)"
    assert said.endswith(why)
    assert str(folder) in said
    assert node.process.wait(TIMEOUT_S) == 66


def test_a_pack_that_has_changed_is_refused_and_nothing_stays(
    start: Nodes, pack: EnvironmentPack, place: Path
) -> None:
    content = bytearray(Path(pack.path).read_bytes())
    content[600] ^= 1
    Path(pack.path).write_bytes(content)
    *_, said = start(pack, place).answer()
    assert said.startswith(f"failed: the digest of {pack.path} is ")
    assert said.endswith(f"and was {pack.sha256} when the run was begun")
    assert os.listdir(place) == []


def test_a_signal_for_the_whole_step_does_not_end_what_removes_a_copy(
    start: Nodes, pack: EnvironmentPack, place: Path, tmp_path: Path
) -> None:
    programs = tmp_path / "signalled"
    programs.mkdir()
    # Slurm sends a signal to every process of a step, and so to this one.
    (programs / "rm").write_text(f'#!/bin/sh\nkill -USR1 $$\nexec {shutil.which("rm")} "$@"\n')
    (programs / "rm").chmod(0o755)
    content = bytearray(Path(pack.path).read_bytes())
    content[600] ^= 1
    node = start(pack, place, copy=bytes(content), path=str(programs))
    assert node.answer()[-1].startswith("failed: the digest of ")
    node.leave()
    assert os.listdir(place) == []


def test_a_pack_that_is_cut_off_or_gone_is_named(
    start: Nodes, pack: EnvironmentPack, place: Path
) -> None:
    os.truncate(pack.path, 1000)
    gone = f"failed: {pack.path} is not there, or has not the {pack.total_bytes} bytes any more"
    assert start(pack, place).answer()[-1].startswith(gone)
    os.unlink(pack.path)
    assert start(pack, place).answer()[-1].startswith(gone)


def test_a_full_disk_is_named_before_it_is_filled(
    start: Nodes, pack: EnvironmentPack, place: Path
) -> None:
    *_, said = start(replace(pack, unpacked_bytes=2**60), place).answer()
    assert said.startswith(f"failed: {place} has ")
    assert said.endswith(f"MiB left, and {2**40} MiB are needed")
    assert [name for name in os.listdir(place) if name.endswith(".copy")] == []


def test_a_directory_that_nodes_share_is_refused(
    start: Nodes, pack: EnvironmentPack, place: Path, tmp_path: Path
) -> None:
    # Of a mount: what `stat -f` says of Lustre.
    programs = tmp_path / "bin"
    programs.mkdir()
    real = shutil.which("stat")
    (programs / "stat").write_text(f'#!/bin/sh\n[ "$1" = -f ] && echo lustre || exec {real} "$@"\n')
    (programs / "stat").chmod(0o755)
    (said,) = start(pack, place, path=str(programs)).answer()
    assert said == f"failed: {place} is on a filesystem that nodes share (lustre)"
    assert os.listdir(place) == []


def test_a_directory_that_is_not_there_is_named(
    start: Nodes, pack: EnvironmentPack, tmp_path: Path
) -> None:
    node = start(pack, tmp_path / "none")
    assert node.answer() == [f"failed: there is no directory {tmp_path}/none"]
    assert node.process.wait(TIMEOUT_S) == 66


def test_an_interpreter_that_does_not_start_there_says_why(
    start: Nodes, place: Path, tmp_path: Path
) -> None:
    broken = 'echo "a line before" >&2; echo "GLIBC_2.99 not found" >&2; exit 1'
    pack = write_tiny_pack(tmp_path / "e.tar", starter=broken)
    assert start(pack, place).answer()[-1] == "failed: GLIBC_2.99 not found"


def test_paths_of_the_environment_are_those_of_the_copy(pack: EnvironmentPack) -> None:
    variables = {
        "PATH": "/shared/env/bin:/usr/bin::/shared/env2/bin",
        "VIRTUAL_ENV": "/shared/env",
        "PYTHONPATH": "/shared/modules:/home/me",
        "HOME": "/shared/env",
    }
    found = node_variables(variables, pack, unpacked="/tmp/copy")
    assert found == {
        "PATH": "/tmp/copy/env/bin:/usr/bin::/shared/env2/bin",
        "VIRTUAL_ENV": "/tmp/copy/env",
        "PYTHONPATH": "/home/me",
        "HOME": "/shared/env",
    }
    only_packed = node_variables({"PYTHONPATH": "/shared/modules"}, pack, unpacked="/tmp/copy")
    assert only_packed == {}
    assert is_packed("/shared/env/../modules", pack)
    assert not is_packed("/shared/env/project", pack)
