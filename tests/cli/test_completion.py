"""Completion in a real bash, and what zsh asks for."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

BASH = shutil.which("bash")


def type_in_bash(keys: str, until: str, *, cwd: Path, environment: dict[str, str]) -> str:
    """Return what a bash shows after keys, once `until` is among it."""
    assert BASH is not None
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execve(BASH, [BASH, "--noprofile", "--norc", "-i"], environment)
    shown = b""
    try:
        setup = 'PS1="ready> "; eval "$(hpctrain --show-completion bash)"; echo set"-"up\n'
        os.write(terminal, setup.encode())
        deadline = time.monotonic() + 60
        typed = False
        while until.encode() not in shown:
            assert time.monotonic() < deadline, shown
            shown += os.read(terminal, 4096)
            if not typed and b"set-up\r\n" in shown:
                typed, shown = True, b""
                os.write(terminal, keys.encode())
    finally:
        os.close(terminal)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    return shown.decode()


@pytest.fixture
def environment(done: Any) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**done.environment, "PATH": path, "TERM": "dumb", "SHELL": "/bin/bash"}


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("keys", "until"),
    [
        ("hpctrain sta\t", "hpctrain status "),
        ("hpctrain status fi\t", "hpctrain status fine "),
        ("hpctrain history --js\t", "hpctrain history --json "),
    ],
)
def test_bash_completes_verbs_runs_and_options(
    done: Any, environment: dict[str, str], keys: str, until: str
) -> None:
    assert type_in_bash(keys, until, cwd=done.path, environment=environment)


def test_zsh_gets_the_same_words(done: Any, environment: dict[str, str]) -> None:
    hpctrain = str(Path(sys.executable).with_name("hpctrain"))

    def ask(**variables: str) -> str:
        return subprocess.run(
            [hpctrain],
            cwd=done.path,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout

    script = ask(_HPCTRAIN_COMPLETE="source_zsh")
    assert script.lstrip().startswith("#compdef hpctrain")
    assert "compdef _hpctrain_completion hpctrain" in script
    for typed, word in (("hpctrain hist", "history"), ("hpctrain status f", "fine")):
        said = ask(_HPCTRAIN_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=typed)
        assert f'"{word}"' in said
