"""The results of ``nox -s slurm_versions``, and the page made from them.

``python docs/tested_with.py JUNIT``, run where the tests ran, adds theirs to ``tested-with.json``.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

RESULTS = Path(__file__).with_name("tested-with.json")


def read_results() -> dict[str, Any]:
    """Return the results of each version of Slurm."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def write_results(results: dict[str, Any]) -> None:
    """Replace all results."""
    RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=2) + "\n")


def read_rows(junit: Path) -> dict[str, str]:
    """Return each row's result from pytest's JUnit file: ``yes``, ``NO``, or why it cannot be."""
    rows: dict[str, str] = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        row = next(
            (p.get("value") for p in case.iter("property") if p.get("name") == "matrix"), None
        )
        if row is None:
            continue
        result = "yes"
        if case.find("failure") is not None or case.find("error") is not None:
            result = "NO"
        elif (skipped := case.find("skipped")) is not None:
            result = skipped.get("message", "").removeprefix("reason: ")
        rows[row] = "NO" if "NO" in (result, rows.get(row)) else result
    return rows


def describe_site() -> dict[str, Any]:
    """Return the versions of what is installed here."""
    slurm = _say("slurmctld", "-V").split()[1]
    open_mpi = re.search(r"\(Open ?(?:MPI|RTE)\) (\S+)", _say("mpiexec.openmpi", "--version"))
    assert open_mpi is not None
    return {
        "slurm": slurm,
        "Python": platform.python_version(),
        "MPICH": version("mpich"),
        "Open MPI": open_mpi[1],
        "system": platform.freedesktop_os_release()["PRETTY_NAME"],
    }


def render(results: dict[str, Any]) -> str:
    """Return the table of the page, in reStructuredText."""
    # By number, not by letter.
    versions = sorted(results, key=lambda text: [int(part) for part in text.split(".")])
    rows = list(dict.fromkeys(row for one in versions for row in results[one]["rows"]))
    table = [
        ["", *(f"Slurm {one}" for one in versions)],
        *(
            [name, *(results[one][name] for one in versions)]
            for name in ("system", "Python", "MPICH", "Open MPI")
        ),
        *([row, *(results[one]["rows"].get(row, "") for one in versions)] for row in rows),
    ]
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in table:
        lines += [f"   {'*' if index == 0 else ' '} - {cell}" for index, cell in enumerate(row)]
    return "\n".join(lines) + "\n"


def _say(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout


if __name__ == "__main__":
    site = describe_site()
    everything = read_results()
    slurm = site.pop("slurm")
    everything[slurm] = {**site, "rows": read_rows(Path(sys.argv[1]))}
    write_results(everything)
