"""Completion in real shells, and what zsh asks for where there is none."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

# Without start-up files of this user or machine.
SHELLS = {
    name: [path, *options]
    for name, options in (("bash", ["--noprofile", "--norc", "-i"]), ("zsh", ["-f", "-i"]))
    if (path := shutil.which(name)) is not None
}
# What zsh's own start-up file for new users does.
COMPINIT = "autoload -Uz compinit; compinit -u -D; "


def type_in(
    shell: str, setup: str, keys: str, until: str, *, cwd: Path, environment: dict[str, str]
) -> str:
    """Return what a shell shows after keys, once `until` is among it."""
    argv = SHELLS[shell]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execve(argv[0], argv, environment)
    shown = b""
    try:
        os.write(terminal, f'PS1="ready> "; {setup}; echo set"-"up\n'.encode())
        deadline = time.monotonic() + 30
        typed = False
        while until.encode() not in shown:
            assert time.monotonic() < deadline, shown
            if select.select([terminal], [], [], 1.0)[0]:
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
def environment(done: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    home = str(tmp_path_factory.mktemp("home"))
    return {**done.environment, "PATH": path, "TERM": "dumb", "HOME": home, "ZDOTDIR": home}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("keys", "until"),
    [
        ("hpctrain sta\t", "hpctrain status "),
        ("hpctrain status fi\t", "hpctrain status fine "),
        ("hpctrain history --js\t", "hpctrain history --json "),
    ],
)
def test_a_shell_completes_verbs_runs_and_options(
    done: Any, environment: dict[str, str], shell: str, keys: str, until: str
) -> None:
    setup = 'eval "$(hpctrain --show-completion)"'
    if shell == "zsh":
        setup = COMPINIT + setup
    assert type_in(shell, setup, keys, until, cwd=done.path, environment=environment)


@pytest.mark.skipif("bash" not in SHELLS, reason="bash is not installed")
def test_installed_completion_works_in_the_next_shell(
    done: Any, environment: dict[str, str]
) -> None:
    def run(setup: str, keys: str, until: str) -> None:
        assert type_in("bash", setup, keys, until, cwd=done.path, environment=environment)

    run("hpctrain --install-completion", "echo don'e'\n", "done\r\n")
    run("source ~/.bashrc", "hpctrain status fi\t", "hpctrain status fine ")


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
