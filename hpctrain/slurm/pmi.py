"""Which PMI types srun can set up here. An executor asks before it has imported itself."""

from __future__ import annotations

import functools
import re
from contextlib import suppress

from hpctrain.errors import LaunchError
from hpctrain.slurm.client import Asked

_QUESTION = ("srun", "--mpi=list")
_asked: list[Asked] = []


def ask_for_pmi_types() -> None:
    """Ask srun for its PMI types, before they are needed. Not collective."""
    if not _asked and not offered_pmi_types.cache_info().currsize:
        # Who needs the answer reports that there is none.
        with suppress(LaunchError, OSError):
            _asked.append(Asked(_QUESTION))


@functools.cache
def offered_pmi_types() -> frozenset[str]:
    """Return the PMI types that srun can set up. Not collective. Asked once for a process.

    Raises
    ------
    LaunchError
        If srun is not there, or does not answer.
    """
    try:
        answer = (_asked.pop() if _asked else Asked(_QUESTION)).answer()
    except LaunchError as error:
        raise LaunchError(
            f"{error} Or say how ranks start: SlurmConfig(mpi='pmi2'), 'pmix', or the path of an "
            f"mpiexec.",
            transient=error.transient,
        ) from error
    return frozenset(parse_pmi_types(answer.stdout + answer.stderr))


def parse_pmi_types(output: str) -> set[str]:
    r"""Return the PMI types that ``srun --mpi=list`` printed. Not collective.

    Examples
    --------
    >>> listed = "MPI plugin types are...\n\tnone\n\tpmi2\n"
    >>> sorted(parse_pmi_types(listed + "specific pmix plugin versions available: pmix_v4"))
    ['none', 'pmi2', 'pmix_v4']
    """
    types: set[str] = set()
    for line in output.splitlines():
        # Slurm 20.11 and older prefix every line with "srun: ".
        text = line.removeprefix("srun: ").strip()
        if "plugin types are" in text:
            continue
        text = text.partition("available:")[2] if "available:" in text else text
        types.update(re.findall(r"\b(?:none|pmi2|pmix(?:_v\d+)?|cray_shasta|openmpi)\b", text))
    return types
