"""Git commands that only read a working tree, each within a time limit.

They change nothing of the repository, start no daemon of it, and run neither its hooks nor its diff
programs; filters of files do run where their content is compared. Git itself refuses a repository
of another user (``safe.directory``).
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from hpctrain import environ, linux, timeouts
from hpctrain.timeouts import Timeout

# A hook of git sets them for its children, and they would lead to another repository.
_DROPPED = re.compile(
    r"GIT_(DIR|WORK_TREE|INDEX_FILE|PREFIX|COMMON_DIR|NAMESPACE|OBJECT_DIRECTORY|EXTERNAL_DIFF"
    r"|ALTERNATE_OBJECT_DIRECTORIES|DIFF_OPTS|CONFIG|CONFIG_PARAMETERS|\w+_PATHSPECS|TRACE\w*)"
)
_ADDED = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_TERMINAL_PROMPT": "0",
    # A partial clone would ask its server. Known to git 2.45 and later: older ones ask, within the
    # limits of time.
    "GIT_NO_LAZY_FETCH": "1",
    "LC_ALL": "C",
}
_CONFIG = (
    *("core.fsmonitor=false", "core.hooksPath=/dev/null", "core.safecrlf=false"),
    # What is written is a copy of the index alone, with files that are not known to be unchanged.
    *("core.splitIndex=false", "core.ignoreStat=false", "status.renames=false"),
)
_LONGEST_MESSAGE = 200


class GitError(Exception):
    """Why git did not answer, for a person."""


class Git:
    """Runs git in a directory.

    Parameters
    ----------
    directory
        Where it runs.
    timeout
        Seconds that all commands together may take, without what happens between them.
    """

    def __init__(self, directory: str | Path, timeout: Timeout) -> None:
        self._directory = os.fspath(directory)
        self._timeout = timeout
        self._left = float(timeout)

    def run(
        self,
        *words: str,
        stdin: bytes = b"",
        variables: Mapping[str, str] | None = None,
        most_bytes: int | None = None,
    ) -> bytes:
        """Return what a command prints. Not collective.

        Parameters
        ----------
        *words
            The command, without ``git``.
        stdin
            Its input.
        variables
            Further variables of its environment.
        most_bytes
            Of its output.

        Raises
        ------
        GitError
            If there is no git, it fails, prints more, or does not end in time.
        """
        inherited = environ.environment().items()
        kept = {name: value for name, value in inherited if not _DROPPED.fullmatch(name)}
        options = [word for pair in _CONFIG for word in ("-c", pair)]
        # Files, since a pipe that git's children keep open would be read after its end.
        with (
            tempfile.TemporaryFile() as reading,
            tempfile.TemporaryFile() as output,
            tempfile.TemporaryFile() as errors,
        ):
            reading.write(stdin)
            reading.seek(0)
            try:
                process = subprocess.Popen(
                    ["git", *options, *words],
                    cwd=self._directory,
                    env={**kept, **_ADDED, **(variables or {})},
                    stdin=reading,
                    stdout=output,
                    stderr=errors,
                    start_new_session=True,
                )
            except OSError as error:
                raise GitError(f"git cannot be started: {error.strerror}") from error
            self._await_end(process, words[0])
            if process.returncode != 0:
                errors.seek(0)
                raise GitError(_explain(words[0], process.returncode, errors.read(4096)))
            if most_bytes is not None and output.tell() > most_bytes:
                raise GitError(f"git {words[0]} prints more than {most_bytes // 2**20} MiB")
            output.seek(0)
            return output.read()

    def _await_end(self, process: subprocess.Popen[bytes], command: str) -> None:
        begun = time.monotonic()
        try:
            _wait(process, max(0.0, self._left))
        except subprocess.TimeoutExpired:
            # Its children too. What waits for a dead file server cannot be killed.
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=timeouts.GIT_KILLED_S)
            raise GitError(
                f"git {command} did not answer within {timeouts.describe(self._timeout)}"
            ) from None
        finally:
            self._left -= time.monotonic() - begun


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Wait for the end of a process; raise `subprocess.TimeoutExpired` as its own wait does."""
    try:
        descriptor = linux.pidfd_open(process.pid)
    except OSError:
        # Linux before 5.3.
        process.wait(timeout_s)
        return
    try:
        # subprocess's own wait looks ever more seldom, and adds up to as long as git takes.
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        if not poller.poll(timeout_s * 1000):
            raise subprocess.TimeoutExpired(process.args, timeout_s)
    finally:
        os.close(descriptor)
    process.wait()


def _explain(command: str, code: int, errors: bytes) -> str:
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    fatal = [line for line in lines if line.startswith("fatal:")] or lines[-1:]
    reason = fatal[0].removeprefix("fatal: ") if fatal else f"exit status {code}"
    return f"git {command}: {reason[:_LONGEST_MESSAGE]}"
