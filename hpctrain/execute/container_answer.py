"""What a container answers before ranks start in it, and why it cannot be used. Pure."""

from __future__ import annotations

import json
import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from hpctrain.container import Container
from hpctrain.plan.container import RUNTIMES
from hpctrain.version import __version__

_MARK = "hpctrain-container "
# Runs in any Python 3, with or without hpctrain: it is what the image has.
_QUESTION = """
import json, os, platform, sys
answer = {"node": os.environ.get("SLURMD_NODENAME", ""), "python": platform.python_version()}
answer["executable"] = sys.executable
answer["absent"] = [path for path in sys.argv[1].split(":") if not os.path.isdir(path)]
try:
    from hpctrain.version import __version__
    answer["hpctrain"] = __version__
    for name in sys.argv[2:]:
        __import__(name)
    import mpi4py
    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from mpi4py import MPI
    answer["library"] = MPI.Get_library_version()
except Exception as error:
    answer["error"] = "%s: %s" % (type(error).__name__, error)
sys.stdout.write("hpctrain-container %s\\n" % json.dumps(answer))
"""
_NOT_ON_PATH = r"execve\(\): {program}: No such file|[\"']?{program}[\"']?: (command )?not found"
_NO_PYXIS = re.compile(r"unrecognized option '?--container-image")
_NUM_LINES = 20


def container_question(python: str, *, seen: Sequence[str], modules: Sequence[str]) -> list[str]:
    """Return the command that answers from inside a container.

    Not collective.

    Parameters
    ----------
    python
        The interpreter inside.
    seen
        Directories that have to be there.
    modules
        Further modules that ranks import.
    """
    return [python, "-c", _QUESTION, ":".join(seen), *modules]


def read_container_answers(printed: str) -> list[dict[str, Any]]:
    """Return what containers answered, among all that was printed. Not collective."""
    answers = []
    for line in printed.splitlines():
        _, mark, rest = line.partition(_MARK)
        try:
            answers += [json.loads(rest)] if mark else []
        except ValueError:
            continue
    return answers


def explain_container(
    container: Container,
    answers: Sequence[Mapping[str, Any]],
    *,
    wanted: int,
    printed: str,
    exit_code: int | None = None,
) -> str:
    """Return why ranks cannot start in a container; empty if they can.

    Not collective.

    Parameters
    ----------
    container
        The container.
    answers
        What each node answered from inside of it.
    wanted
        Number of nodes.
    printed
        All that was printed.
    exit_code
        Exit code of the step that asked them; None if it did not end.
    """
    for answer in answers:
        if why := _explain_answer(container, answer):
            where = f" on {answer['node']}" if answer["node"] else ""
            return f"ranks cannot run in {container.image}{where}: {why}"
    if len(answers) >= wanted:
        return ""
    silent = f"{wanted - len(answers)} of {wanted} nodes" if wanted > 1 else "its node"
    lines = [line for line in printed.splitlines() if _MARK not in line][-_NUM_LINES:]
    said = "\n".join(lines) or "it printed nothing"
    if exit_code == 0:
        # The runtime and the program that it started have done all that they had to.
        return (
            f"{container.image} starts with {container.runtime}, but {container.python} in it does "
            f"not answer as a Python does on {silent}: it ended without an error before it had run "
            f"what was given with -c. Set Container(python=...) to the interpreter inside the "
            f"image: 'python3' if it is on the PATH there, or its path, such as "
            f"'/opt/conda/bin/python3'. It printed:\n{said}"
        )
    return (
        f"{container.image} does not start with {container.runtime} on {silent}. "
        f"{_explain_output(container, printed)} It printed:\n{said}"
    )


def mpi_library(answers: Sequence[Mapping[str, Any]]) -> str:
    """Return which kind of MPI library a container has. Not collective.

    Examples
    --------
    >>> mpi_library([{"library": "Open MPI v5.0.7, package: Debian OpenMPI"}])
    'openmpi'
    """
    said = str(answers[0].get("library", "")) if answers else ""
    if "CRAY MPICH" in said:
        return "cray-mpich"
    return "openmpi" if "Open MPI" in said else "mpich"


def _explain_answer(container: Container, answer: Mapping[str, Any]) -> str:
    python, here = answer["python"], platform.python_version()
    if _minor(python) != _minor(here):
        return (
            f"{container.python} in it is Python {python}, and the executor outside is {here}. "
            f"Functions are pickled by one and unpickled by the other: use the same minor version, "
            f"or name another interpreter with Container(python=...)."
        )
    inside = answer.get("hpctrain")
    if inside is None:
        return (
            f"{answer['executable']} cannot import hpctrain ({answer.get('error')}). Install it in "
            f"the image: {container.python} -m pip install 'hpctrain=={__version__}' mpi4py; or "
            f"name an interpreter that has it: Container(python=...)."
        )
    if inside != __version__:
        return (
            f"it has hpctrain {inside}, and the executor outside is {__version__}. Install the "
            f"same on both sides."
        )
    if error := answer.get("error"):
        return (
            f"{answer['executable']} lacks what ranks need: {error}. Install mpi4py with the "
            f"image's MPI, and what the training function imports."
        )
    if absent := answer["absent"]:
        return (
            f"it does not see {' and '.join(absent)}. Site or options keep them from being "
            f"mounted: add Container(mounts=[...]), or see the runtime's own configuration."
        )
    return ""


def _explain_output(container: Container, printed: str) -> str:
    """Return what the output of a runtime means, and the next step."""
    runtime = RUNTIMES[container.runtime]
    if not runtime.program and _NO_PYXIS.search(printed):
        return (
            "This srun has no Pyxis: 'srun --help' does not list --container-image. Use another "
            "Container(runtime=...)."
        )
    pattern = _NOT_ON_PATH.format(program=re.escape(runtime.program))
    if runtime.program and re.search(pattern, printed):
        return (
            f"{runtime.program} is not on the PATH of compute nodes. Load its module with "
            f"SlurmConfig(setup=['module load {runtime.program}']), or use another "
            f"Container(runtime=...)."
        )
    return (
        f"Look at the image, at {shlex.quote(container.python)} in it, and at what is mounted "
        f"({', '.join(mount.split(':')[0] for mount in container.mounts) or 'nothing'})."
    )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
