"""What a node does with a packed environment: the script itself, run as on a node."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain.pack.header import EnvironmentPack
from hpctrain.plan.environment_pack import is_packed, node_variables, unpacked_at
from tests.pack.mounts import require_squashfs
from tests.pack.tiny import write_tiny_pack
from tests.plan.pack_nodes import TIMEOUT_S, Nodes


@pytest.fixture
def pack(tmp_path: Path) -> EnvironmentPack:
    return write_tiny_pack(tmp_path / "environment.tar")


@pytest.fixture(params=["tar", "squashfs"])
def any_pack(request: pytest.FixtureRequest, tmp_path: Path) -> EnvironmentPack:
    """Return a pack that nodes unpack, and one that they mount."""
    if request.param == "squashfs":
        require_squashfs()
    return write_tiny_pack(tmp_path / f"environment.{request.param}", form=request.param)


def unpacked(pack: EnvironmentPack, place: Path) -> Path:
    return Path(unpacked_at(pack, place=str(place), user=os.geteuid(), run=""))


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


def test_a_copy_is_used_whatever_the_language_is(
    start: Nodes, pack: EnvironmentPack, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("LANGUAGE", "de")
    assert start(pack, place, copy=Path(pack.path).read_bytes()).answer() == ["ready"]


def test_a_link_in_place_of_a_copy_is_not_used(
    start: Nodes, pack: EnvironmentPack, place: Path, tmp_path: Path
) -> None:
    aim = tmp_path / "aim"
    aim.write_bytes(Path(pack.path).read_bytes())
    node = start(pack, place, before=lambda copy: copy.symlink_to(aim))
    assert node.answer() == [f"reads the shared file: {pack.path}", "ready"]
    assert aim.exists()


def test_without_a_copy_the_node_reads_the_file_and_says_so(
    start: Nodes, any_pack: EnvironmentPack, place: Path
) -> None:
    assert start(any_pack, place).answer() == [f"reads the shared file: {any_pack.path}", "ready"]


def test_a_copy_that_is_cut_off_is_not_used(
    start: Nodes, any_pack: EnvironmentPack, place: Path
) -> None:
    node = start(any_pack, place, copy=Path(any_pack.path).read_bytes()[:-100])
    assert node.answer() == [f"reads the shared file: {any_pack.path}", "ready"]


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


def test_a_copy_of_a_job_that_still_waits_is_not_removed(
    start: Nodes, pack: EnvironmentPack, place: Path
) -> None:
    """For its broadcast, and then for what another job unpacks."""
    patience_s = 1800
    waits = place / f"hpctrain-packs-{os.geteuid()}-4567.copy"
    waits.write_text("of a job that waits")
    waiting_since = time.time() - 2 * patience_s
    os.utime(waits, (waiting_since, waiting_since))
    assert start(pack, place, patience_s=patience_s).answer()[-1] == "ready"
    assert waits.exists()


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
    start: Nodes, any_pack: EnvironmentPack, place: Path, tmp_path: Path, kind: str
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
    node = start(any_pack, place, copy=b"a copy")
    (said,) = [line for line in node.answer() if line.startswith("failed:")]
    why = "cannot be made or entered" if kind == "file" else "only this user can enter (mode 700)"
    assert said.endswith(why)
    assert str(folder) in said
    assert not node.copy.exists()
    assert node.process.wait(TIMEOUT_S) == 66


def test_a_pack_that_has_changed_is_refused_and_nothing_stays(
    start: Nodes, any_pack: EnvironmentPack, place: Path
) -> None:
    content = bytearray(Path(any_pack.path).read_bytes())
    content[600] ^= 1
    Path(any_pack.path).write_bytes(content)
    *_, said = start(any_pack, place).answer()
    assert said.startswith(f"failed: the digest of {any_pack.path} is ")
    assert said.endswith(f"and was {any_pack.sha256} when the run was begun")
    assert os.listdir(place) == []


def test_a_signal_for_the_whole_step_does_not_end_what_removes_a_copy(
    start: Nodes, any_pack: EnvironmentPack, place: Path, tmp_path: Path
) -> None:
    programs = tmp_path / "signalled"
    programs.mkdir()
    # Slurm sends a signal to every process of a step, and so to this one.
    (programs / "rm").write_text(f'#!/bin/sh\nkill -USR1 $$\nexec {shutil.which("rm")} "$@"\n')
    (programs / "rm").chmod(0o755)
    content = bytearray(Path(any_pack.path).read_bytes())
    content[600] ^= 1
    node = start(any_pack, place, copy=bytes(content), path=str(programs))
    assert node.answer()[-1].startswith("failed: the digest of ")
    node.leave()
    assert os.listdir(place) == []


def test_a_pack_that_is_cut_off_or_gone_is_named(
    start: Nodes, any_pack: EnvironmentPack, place: Path
) -> None:
    os.truncate(any_pack.path, 1000)
    size = any_pack.total_bytes
    gone = f"failed: {any_pack.path} is not there, or has not the {size} bytes any more"
    assert start(any_pack, place).answer()[-1].startswith(gone)
    os.unlink(any_pack.path)
    assert start(any_pack, place).answer()[-1].startswith(gone)


def test_a_full_disk_is_named_before_it_is_filled(
    start: Nodes, pack: EnvironmentPack, place: Path
) -> None:
    *_, said = start(replace(pack, unpacked_bytes=2**60), place).answer()
    assert said.startswith(f"failed: {place} has ")
    assert said.endswith(f"MiB left, and {2**40} MiB are needed")
    assert [name for name in os.listdir(place) if name.endswith(".copy")] == []


def test_a_directory_that_nodes_share_is_refused(
    start: Nodes, any_pack: EnvironmentPack, place: Path, tmp_path: Path
) -> None:
    # Of a mount: what `stat -f` says of Lustre.
    programs = tmp_path / "bin"
    programs.mkdir()
    real = shutil.which("stat")
    (programs / "stat").write_text(f'#!/bin/sh\n[ "$1" = -f ] && echo lustre || exec {real} "$@"\n')
    (programs / "stat").chmod(0o755)
    content = Path(any_pack.path).read_bytes()
    (said,) = start(any_pack, place, copy=content, path=str(programs)).answer()
    assert said == f"failed: {place} is on a filesystem that nodes share (lustre)"
    assert os.listdir(place) == []


def test_a_directory_that_is_not_there_is_named(
    start: Nodes, any_pack: EnvironmentPack, tmp_path: Path
) -> None:
    node = start(any_pack, tmp_path / "none")
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
