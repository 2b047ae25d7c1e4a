"""The process that forks executors: each is as one that was started with its command."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hpctrain.execute.process import process_start_time
from hpctrain.launch import executor_template
from hpctrain.launch.executor_template import ExecutorTemplate
from tests.waiting import wait_until

TIMEOUT_S = 60
# In place of the executor: what it finds, and then it waits as long as its standard input is open.
FOUND = """
import json, os, signal, sys
from hpctrain.launch import background, executor_template

def main(argv):
    found = {
        "argv": argv,
        "orig_argv": sys.orig_argv,
        "cwd": os.getcwd(),
        "pid": os.getpid(),
        "variables": dict(os.environ),
        "is_leader": os.getsid(0) == os.getpid(),
        "sigchld": signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL,
        "descriptors": len(os.listdir("/proc/self/fd")) - 1,
    }
    print(json.dumps(found), flush=True)
    print("an error", file=sys.stderr, flush=True)
    sys.stdin.buffer.read()
    return 3

background.main = main
executor_template._serve(executor_template.socket.socket(fileno=int(sys.argv[1])))
"""


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExecutorTemplate]:
    (tmp_path / "found_in_its_place.py").write_text(FOUND)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setattr(executor_template, "_MODULE", "found_in_its_place")
    with closing(ExecutorTemplate()) as template:
        yield template


def fork(
    template: ExecutorTemplate, output: Path, argv: list[str], **variables: str
) -> tuple[int | None, int]:
    """Return the pid of a fork, and what it waits for the end of."""
    reading, writing = os.pipe()
    with open(output, "ab") as file:
        environment = {**os.environ, **variables}
        pid = template.fork(argv, environment=environment, stdin=reading, output=file.fileno())
    os.close(reading)
    return pid, writing


def test_each_fork_has_the_command_environment_files_and_session_that_were_asked_for(
    template: ExecutorTemplate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONLY_AT_FIRST", "1")
    first, let_first_go = fork(template, tmp_path / "1", ["python", "-u", "-m", "module", "a"])
    monkeypatch.delenv("ONLY_AT_FIRST")
    monkeypatch.chdir(tmp_path)
    argv = ["python", "-u", "-m", "module", "b", "c"]
    second, let_second_go = fork(template, tmp_path / "2", argv, CUDA_VISIBLE_DEVICES="3")
    wait_until(lambda: (tmp_path / "2").read_text().endswith("an error\n"), timeout_s=TIMEOUT_S)
    found = json.loads((tmp_path / "2").read_text().splitlines()[0])
    assert found["argv"] == ["module", "b", "c"]
    assert found["orig_argv"] == argv
    shown = Path(f"/proc/{second}/cmdline").read_bytes().rstrip(b"\0")
    assert shown == b"\0".join(word.encode() for word in argv), "as ps shows it"
    assert found["cwd"] == str(tmp_path)
    assert found["pid"] == second != first
    assert found["variables"]["CUDA_VISIBLE_DEVICES"] == "3"
    assert "ONLY_AT_FIRST" not in found["variables"]
    assert (found["is_leader"], found["sigchld"], found["descriptors"]) == (True, True, 3)
    for pid, let_go in ((first, let_first_go), (second, let_second_go)):
        assert pid is not None
        assert process_start_time(pid) is not None
        os.close(let_go)
        wait_until(lambda pid=pid: process_start_time(pid) is None, timeout_s=TIMEOUT_S)


def test_the_process_ends_with_the_template_and_what_it_has_forked_goes_on(
    template: ExecutorTemplate, tmp_path: Path
) -> None:
    pid, let_go = fork(template, tmp_path / "1", ["python", "-u", "-m", "module"])
    assert pid is not None
    parent = parent_of(pid)
    template.close()
    wait_until(lambda: process_start_time(parent) is None, timeout_s=TIMEOUT_S)
    assert process_start_time(pid) is not None
    assert fork(template, tmp_path / "2", ["python", "-u", "-m", "module"])[0] is None
    os.close(let_go)
    wait_until(lambda: process_start_time(pid) is None, timeout_s=TIMEOUT_S)


def test_one_that_is_killed_forks_no_more_and_that_is_said_once(
    template: ExecutorTemplate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["python", "-u", "-m", "module"]
    pid, let_go = fork(template, tmp_path / "1", argv)
    assert pid is not None
    parent = parent_of(pid)
    os.kill(parent, signal.SIGKILL)
    wait_until(lambda: process_start_time(parent) is None, timeout_s=TIMEOUT_S)
    assert [fork(template, tmp_path / "2", argv)[0] for _ in range(2)] == [None, None]
    assert capsys.readouterr().err.count("begin without a template from here on") == 1
    os.close(let_go)
    wait_until(lambda: process_start_time(pid) is None, timeout_s=TIMEOUT_S)


def test_one_that_cannot_begin_is_done_without(
    template: ExecutorTemplate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_template, "_MODULE", "no_such_module")
    assert fork(template, tmp_path / "1", ["python", "-u", "-m", "module"])[0] is None


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
