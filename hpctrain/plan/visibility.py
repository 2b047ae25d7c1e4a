"""Paths that every node must see before Python starts: the checks in shell, and the messages.

Python cannot report its own absence; and without a working directory, Slurm still starts a process,
in ``/tmp``, where Python would import files of other users.
"""

from __future__ import annotations

import shlex

EXIT_INVISIBLE = 66
"""BSD's sysexits.h: EX_NOINPUT."""
NOT_SEEN = "it does not see "
"""Prefix of the reason why a node cannot be used."""

_RUN_DIRECTORY = "the run directory"
_WORKING_DIRECTORY = "the working directory"
_PYTHON = "the Python of this run"
_WAYS_OUT = {
    _RUN_DIRECTORY: "Choose a RunConfig(storage_path=...) on a filesystem that login and compute "
    "nodes share.",
    _WORKING_DIRECTORY: "Start the script from a directory on a filesystem that login and compute "
    "nodes share (as a rule its own: cd there first).",
    _PYTHON: "The virtual environment, and the Python that it was made with, have to lie on a "
    "filesystem that login and compute nodes share.",
}
# Slurm's name of a node need not be its host name.
_NODE = "${SLURMD_NODENAME:-$(uname -n)}"


def run_directory_check(root: str) -> str:
    """Return the line that ends a batch script if it cannot see the run. Not collective."""
    return _or_exit(f"test -r {shlex.quote(root)}/spec.pkl", f"{_RUN_DIRECTORY} {root}")


def process_checks(cwd: str, python: str) -> list[str]:
    """Return the lines of a batch script before it starts Python. Pure; not collective.

    They change to the working directory, whatever the lines before them have done.
    """
    return [
        _or_exit(f"cd {shlex.quote(cwd)}", f"{_WORKING_DIRECTORY} {cwd}"),
        _or_exit(f"test -x {shlex.quote(python)}", f"{_PYTHON}, {python}"),
    ]


def checked_argv(argv: list[str], *, cwd: str) -> list[str]:
    """Return a command that starts another, or prints why this node cannot be used.

    Pure; not collective.

    Parameters
    ----------
    argv
        The command; its first word is the path of a program.
    cwd
        The working directory that it needs.
    """
    # Both paths are arguments, so no character in them is special; `echo` of some shells would
    # replace backslashes.
    says = f'printf "%s\\n" "hpctrain: {_NODE} cannot be used: {NOT_SEEN}'
    script = (
        f'cd "$0" || {{ {says}{_WORKING_DIRECTORY} $0"; exit {EXIT_INVISIBLE}; }}; '
        f'test -x "$1" || {{ {says}{_PYTHON}, $1"; exit {EXIT_INVISIBLE}; }}; exec "$@"'
    )
    return ["sh", "-c", script, cwd, *argv]


def explain_invisible(where: str, thing: str) -> str:
    """Return the message for a path that no node sees. Pure; not collective.

    Parameters
    ----------
    where
        ``node1 does not see``, or of more nodes.
    thing
        The path, as a node has reported it.

    Examples
    --------
    >>> print(explain_invisible("no node sees", "the working directory /tmp/me")[:58])
    no node sees the working directory /tmp/me. Start the scri
    """
    return f"{where} {thing}. {_way_out(thing)}".rstrip()


def _way_out(thing: str) -> str:
    return next((text for begin, text in _WAYS_OUT.items() if thing.startswith(begin)), "")


def _or_exit(command: str, thing: str) -> str:
    said = shlex.quote(explain_invisible("does not see", thing))
    return (
        f'{command} || {{ printf "%s\\n" "hpctrain: {_NODE} "{said} >&2; exit {EXIT_INVISIBLE}; }}'
    )
