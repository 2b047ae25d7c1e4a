"""``xgboost``, ``lightgbm``: from rows in a file to a model, on two ranks of a thread each.

Against the library alone, in one process with two threads, and against the library's own collective
of two processes that were started by hand. All read the same HDF5 file, and evaluate the training
rows after each round. Ours counts from the first rank's entry into the training function until
``fit()`` has returned its Result; the others from when all is imported and connected.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from arms import (
    PROGRAMS,
    Arm,
    Goal,
    Measured,
    Row,
    Sample,
    alternate,
    child_environment,
    mpiexec,
    output_of,
)

NUM_RANKS = 2
THOUSANDS_OF_ROWS = 1000
ALONE, BY_HAND = 1.1, 1.02
AIM_ALONE, AIM_BY_HAND = 1.03, 1.0
AUC_TOLERANCE = 0.002
TIMEOUT_S = 900.0


def measure(arguments: Namespace, *, library: str) -> Iterator[Measured]:
    for thousands in arguments.sizes or (THOUSANDS_OF_ROWS,):
        with tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as folder:
            rows = Path(folder, "rows.h5")
            make = [sys.executable, PROGRAMS / "boost_rows.py", rows, str(thousands * 1000)]
            subprocess.run(make, check=True)
            yield _measure(arguments, library, thousands, rows)


def _measure(arguments: Namespace, library: str, thousands: int, rows: Path) -> Measured:
    aucs: dict[str, float] = {}

    def arm(name: str, argv: list[str | Path], threads: int = 1) -> Arm:
        def take() -> Sample:
            with tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as folder:
                environment = child_environment(
                    arguments.tree, {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
                )
                words = (*argv, library, rows, f"{folder}/said.json")
                output_of(words, cwd=folder, env=environment, timeout_s=TIMEOUT_S)
                said = json.loads(Path(folder, "said.json").read_text())
                aucs[name] = said["auc"]
                return Sample(said["wall_s"], said["cpu_s"])

        return Arm(name=name, measure=take)

    python = sys.executable
    ours: list[str | Path] = [python, PROGRAMS / "boost_ours.py"]
    by_hand = [mpiexec(), "-n", str(NUM_RANKS), python, PROGRAMS / "boost_by_hand.py"]
    others = [
        arm("alone", [python, PROGRAMS / "boost_alone.py"], threads=NUM_RANKS),
        arm("by hand", by_hand),
    ]
    if library == "lightgbm":
        others.append(arm("hpctrain over sockets", [*ours, "--network", "sockets"]))
    measured = alternate(
        Row(
            name=f"{library} {thousands}k x 28",
            ours=arm("hpctrain", ours),
            others=others,
            goals=[
                Goal(against="alone", factor=ALONE),
                Goal(against="alone", factor=AIM_ALONE),
                Goal(against="by hand", factor=BY_HAND),
                Goal(against="by hand", factor=AIM_BY_HAND),
            ],
        ),
        rounds=arguments.rounds,
        say=arguments.say,
    )
    apart = abs(aucs["hpctrain"] - aucs["alone"])
    verdict = "reached" if apart <= AUC_TOLERANCE else "MISSED"
    measured.notes["AUC"] = (
        f"{verdict}: {aucs['hpctrain']:.5f}, alone {aucs['alone']:.5f}; {apart:.5f} apart, allowed "
        f"{AUC_TOLERANCE}"
    )
    return measured
