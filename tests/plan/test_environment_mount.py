"""What a node does with the image of a packed environment: the script itself, run as on a node."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain.pack.header import EnvironmentPack
from hpctrain.plan.environment_mount import mount_test_argv
from hpctrain.testing.slurm.processes import wait_until
from tests.pack.mounts import add_program, mounted_below, programs_without, require_squashfs
from tests.pack.tiny import write_tiny_pack
from tests.plan.pack_nodes import TIMEOUT_S, Node, Nodes

_NO_DEVICE = "fuse: device not found"


@pytest.fixture(autouse=True)
def _programs() -> None:
    require_squashfs()


@pytest.fixture
def pack(tmp_path: Path) -> EnvironmentPack:
    return write_tiny_pack(tmp_path / "environment.squashfs", form="squashfs")


@pytest.fixture
def no_mounts(tmp_path: Path) -> str:
    """Return a directory of programs that mount nothing."""
    for name in ("squashfuse_ll", "squashfuse"):
        folder = add_program(tmp_path / "no mounts", name, f"echo '{_NO_DEVICE}' >&2; exit 1")
    return str(folder)


def server_of(node: Node) -> int:
    """Return the process that serves what is mounted."""
    pid = node.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = [int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text()[:6] == "squash"]
    (server,) = found
    return server


def program_of(node: Node) -> str:
    return (node.own() / "mount/env/bin/python").read_text()


def test_an_image_is_mounted_kept_and_removed(
    start: Nodes, pack: EnvironmentPack, place: Path
) -> None:
    node = start(pack, place, copy=Path(pack.path).read_bytes())
    assert node.answer() == ["ready"]
    assert program_of(node) == "#!/bin/sh\nexit 0\n"
    assert mounted_below(place) == [str(node.own() / "mount")]
    assert not node.copy.exists()
    assert (node.own().parent / "image").stat().st_mode & 0o777 == 0o600
    # A preemption, and the warning before the time limit, are for the ranks. Slurm sends a signal
    # to every process of a step.
    server = server_of(node)
    for number in (
        *(signal.SIGTERM, signal.SIGCONT, signal.SIGUSR1, signal.SIGUSR2),
        *(signal.SIGHUP, signal.SIGINT),
    ):
        os.kill(server, number)
        node.process.send_signal(number)
    assert program_of(node) == "#!/bin/sh\nexit 0\n"
    assert server_of(node) == server
    node.leave()
    assert (os.listdir(place), mounted_below(place)) == ([], [])


def test_two_jobs_share_a_copy_and_each_of_them_mounts_it(
    start: Nodes, pack: EnvironmentPack, place: Path
) -> None:
    first, second = start(pack, place), start(pack, place)
    answers = [first.answer(), second.answer()]
    reads = f"reads the shared file: {pack.path}"
    assert sorted(answers, key=len) == [["ready"], [reads, "ready"]]
    assert first.own().parent == second.own().parent
    assert len(mounted_below(place)) == 2
    first.leave()
    assert mounted_below(place) == [str(second.own() / "mount")]
    assert program_of(second) == "#!/bin/sh\nexit 0\n"
    second.leave()
    assert (os.listdir(place), mounted_below(place)) == ([], [])


def test_jobs_with_different_images_do_not_disturb_one_another(
    start: Nodes, pack: EnvironmentPack, place: Path, tmp_path: Path
) -> None:
    other = write_tiny_pack(tmp_path / "other.squashfs", form="squashfs", python="3.12.1")
    first = start(pack, place)
    first.answer()
    second = start(other, place)
    second.answer()
    first.leave()
    assert program_of(second) == "#!/bin/sh\nexit 0\n"
    assert os.listdir(second.own().parents[1]) == [other.name]


@pytest.mark.parametrize("whole_step", [True, False])
@pytest.mark.parametrize("digest", ["same", "other"])
def test_the_next_job_removes_the_mount_of_a_killed_one(
    start: Nodes,
    pack: EnvironmentPack,
    place: Path,
    tmp_path: Path,
    digest: str,
    whole_step: bool,
) -> None:
    killed = start(pack, place)
    killed.answer()
    server = server_of(killed)
    if whole_step:
        os.killpg(killed.process.pid, signal.SIGKILL)
    else:
        killed.process.kill()
    killed.process.wait()
    # It ends with the shell, however that ends.
    wait_until(lambda: not is_alive(server), what="end of squashfuse", timeout_s=TIMEOUT_S)
    assert mounted_below(place) == [str(killed.own() / "mount")]
    with pytest.raises(OSError, match="endpoint is not connected"):
        program_of(killed)
    if digest == "other":
        pack = write_tiny_pack(tmp_path / "other.squashfs", form="squashfs", python="3.12.1")
    node = start(pack, place)
    assert node.answer()[-1] == "ready"
    assert mounted_below(place) == [str(node.own() / "mount")]
    assert not os.path.lexists(killed.own())
    node.leave()
    assert (os.listdir(place), mounted_below(place)) == ([], [])


def is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_ranks_that_start_again_find_the_mount_whose_process_was_killed(
    start: Nodes, pack: EnvironmentPack, place: Path
) -> None:
    node = start(pack, place)
    node.answer()
    server = server_of(node)
    os.kill(server, signal.SIGKILL)

    def is_back() -> bool:
        try:
            return program_of(node) == "#!/bin/sh\nexit 0\n"
        except OSError:
            return False

    wait_until(is_back, what="another squashfuse", timeout_s=TIMEOUT_S)
    assert server_of(node) != server
    node.leave()
    assert (os.listdir(place), mounted_below(place)) == ([], [])


def test_a_node_that_mounts_nothing_unpacks_the_image_once_and_says_why(
    start: Nodes, pack: EnvironmentPack, place: Path, no_mounts: str
) -> None:
    copy = Path(pack.path).read_bytes()
    first = start(pack, place, copy=copy, path=no_mounts)
    assert first.answer() == [f"cannot mount it: squashfuse: {_NO_DEVICE}", "ready"]
    second = start(pack, place, copy=copy, path=no_mounts)
    assert second.answer()[-1] == "ready"
    assert (first.own() / "mount").resolve() == (second.own() / "mount").resolve()
    first.leave()
    assert program_of(second) == "#!/bin/sh\nexit 0\n"
    second.leave()
    assert os.listdir(place) == []


def test_what_was_half_unpacked_is_unpacked_again(
    start: Nodes, pack: EnvironmentPack, place: Path, no_mounts: str
) -> None:
    killed = start(pack, place, path=no_mounts)
    killed.answer()
    os.killpg(killed.process.pid, signal.SIGKILL)
    killed.process.wait()
    shared = killed.own().parent
    (shared / "unpacked").unlink()
    (shared / "tree/env/bin/python").write_text("half")
    node = start(pack, place, path=no_mounts)
    assert node.answer()[-1] == "ready"
    assert program_of(node) == "#!/bin/sh\nexit 0\n"


def test_without_squashfuse_and_unsquashfs_it_is_said_and_nothing_stays(
    start: Nodes,
    pack: EnvironmentPack,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("squashfuse", "squashfuse_ll", "unsquashfs")
    monkeypatch.setenv("PATH", str(programs_without(tmp_path / "few", *names)))
    *_, said = start(pack, place).answer()
    assert said == (
        "failed: it cannot be mounted, and there is no unsquashfs to unpack it with: there is no "
        "squashfuse on PATH"
    )
    assert os.listdir(place) == []


def test_a_full_disk_is_named_before_it_is_filled(
    start: Nodes, pack: EnvironmentPack, place: Path, tmp_path: Path, no_mounts: str
) -> None:
    *_, said = start(replace(pack, unpacked_bytes=2**60), place, path=no_mounts).answer()
    assert said.startswith(f"failed: {place} has ")
    assert said.endswith(f"MiB left, and {2**40} MiB are needed")
    # To mount it, it needs no more room than the file.
    node = start(replace(pack, unpacked_bytes=2**60), place)
    assert node.answer()[-1] == "ready"
    node.leave()
    full = add_program(tmp_path / "full", "df", "printf 'x\\nx 1 1 1 1 x\\n'")
    *_, said = start(pack, place, path=str(full)).answer()
    assert said == f"failed: {place} has 0 MiB left, and 0 MiB are needed"
    assert os.listdir(place) == []


def test_an_interpreter_that_does_not_start_there_says_why(
    start: Nodes, place: Path, tmp_path: Path
) -> None:
    broken = 'echo "a line before" >&2; echo "GLIBC_2.99 not found" >&2; exit 1'
    pack = write_tiny_pack(tmp_path / "e.squashfs", starter=broken, form="squashfs")
    assert start(pack, place).answer()[-1] == "failed: GLIBC_2.99 not found"
    assert (os.listdir(place), mounted_below(place)) == ([], [])


def test_two_users_have_what_is_theirs(start: Nodes, pack: EnvironmentPack, place: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root starts processes of another user")
    place.chmod(0o1777)
    for parent in place.parents:
        if str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    mine = start(pack, place)
    assert mine.answer()[-1] == "ready"
    theirs = start(pack, place, copy=Path(pack.path).read_bytes(), user=12345)
    # Mounted or not: only root may open /dev/fuse on some machines.
    assert theirs.answer()[-1] == "ready"
    assert theirs.own().parent.parent != mine.own().parent.parent
    assert theirs.own().parent.parent.stat().st_uid == 12345
    theirs.leave()
    assert program_of(mine) == "#!/bin/sh\nexit 0\n"
    mine.leave()
    assert (os.listdir(place), mounted_below(place)) == ([], [])


def test_a_machine_is_asked_whether_it_mounts_the_image(
    pack: EnvironmentPack, tmp_path: Path, no_mounts: str
) -> None:
    folder = tmp_path / "a folder"
    (folder / "mount").mkdir(parents=True)

    def ask(path: str) -> str:
        done = subprocess.run(
            mount_test_argv(pack.path, str(folder)),
            stdout=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
            env={**os.environ, "PATH": path},
        )
        return done.stdout

    path = os.environ["PATH"]
    assert ask(path) == "yes \n"
    assert ask(f"{no_mounts}:{path}") == f"yes squashfuse: {_NO_DEVICE}\n"
    few = programs_without(tmp_path / "few", "squashfuse", "squashfuse_ll", "unsquashfs")
    assert ask(str(few)) == "no there is no squashfuse on PATH\n"
    assert mounted_below(folder) == []
