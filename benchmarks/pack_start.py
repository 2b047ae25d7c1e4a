"""How long a node takes to unpack a packed environment, or to mount it.

::

    python benchmarks/pack_start.py --python ENV/bin/python     # an environment that has hpctrain

The script that nodes run is run here, by turns with an archive and with an image, whose copy is on
the node's disk already, as sbcast leaves it. Measured are the seconds until the environment is
ready, those of another job of the same user on that node, those of a first and a second process
that imports, and the room that it takes. It needs mksquashfs and squashfuse, and no Slurm.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from arms import describe_machine
from pack import run

from hpctrain.pack.header import EnvironmentPack, read_pack
from hpctrain.plan.environment_pack import READY, unpack_argv, unpacked_at

FORMS = ("tar", "squashfs")
PATIENCE_S = 600.0
LOOK_S = 0.01


class Job:
    """What keeps the environment of one job on this machine."""

    def __init__(self, pack: EnvironmentPack, place: Path, number: int) -> None:
        self._name = str(number)
        self.python = Path(
            unpacked_at(pack, place=str(place), user=os.geteuid(), run=self._name),
            pack.interpreter,
        )
        copy = place / f"hpctrain-packs-{os.geteuid()}-{number}.copy"
        shutil.copyfile(pack.path, copy)
        begun = time.monotonic()
        self._process = subprocess.Popen(
            unpack_argv(
                pack, place=str(place), copy=str(copy), patience_s=PATIENCE_S, run=self._name
            ),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        printed = []
        for line in self._process.stdout:
            printed.append(line.strip())
            if line.rstrip().endswith(f" {READY}"):
                break
        else:
            raise SystemExit(f"{pack.path}: {printed}")
        self.seconds = time.monotonic() - begun

    def server_kib(self) -> int:
        """Return the memory of the process that serves a mount, in KiB; 0 without one."""
        pid = self._process.pid
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if Path(f"/proc/{child}/comm").read_text().startswith("squashfuse"):
                lines = Path(f"/proc/{child}/status").read_text().splitlines()
                return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
        return 0

    def end(self) -> None:
        """Let it remove what is there."""
        while self._process.poll() is None:
            self._process.send_signal(signal.SIGUSR1)
            try:
                self._process.wait(1)
            except subprocess.TimeoutExpired:
                continue


@contextmanager
def most_used(place: Path) -> Iterator[list[int]]:
    """Give a list that gets the most bytes that were in use meanwhile, beside those before."""

    def used() -> int:
        found = os.statvfs(place)
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    before, most, over = used(), [0], threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            most[0] = max(most[0], used() - before)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()
        most.append(used() - before)


def timed(argv: list[str]) -> float:
    begun = time.monotonic()
    run(argv, cwd="/", environment={"PATH": os.environ["PATH"]})
    return time.monotonic() - begun


def measure(pack: EnvironmentPack, place: Path, imports: str) -> dict[str, float]:
    """Return what one start takes."""
    with most_used(place) as used:
        job = Job(pack, place, 1)
    try:
        argv = [str(job.python), "-c", imports]
        first, second = timed(argv), timed(argv)
        server_kib = job.server_kib()
        other = Job(pack, place, 2)
        other.end()
    finally:
        job.end()
    return {
        "ready_s": job.seconds,
        "other_job_s": other.seconds,
        "first_import_s": first,
        "second_import_s": second,
        "most_mib": used[0] / 2**20,
        "kept_mib": used[1] / 2**20,
        "server_mib": server_kib / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter of an environment")
    parser.add_argument("--place", type=Path, default=Path("/dev/shm"), help="of the copy")
    parser.add_argument(
        "--imports", default="import hpctrain.worker.main", help="what ranks import"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file for every number")
    arguments = parser.parse_args()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="hpctrain-bench-", dir="/var/tmp") as folder:
        packs = {}
        for form in FORMS:
            file = Path(folder, f"environment.{form}")
            words = [arguments.python, "-m", "hpctrain.cli", "pack", "-o", str(file)]
            begun = time.monotonic()
            run([*words, "--format", form], cwd=folder, environment=environment)
            seconds = time.monotonic() - begun
            packs[form], _ = read_pack(file)
            mib = packs[form].total_bytes / 2**20
            rows.append({"form": form, "pack_s": seconds, "file_mib": mib})
            print(f"{form:<10}packed in {seconds:6.2f} s, {mib:7.0f} MiB", flush=True)
        for number in range(arguments.rounds):
            for form in FORMS:
                found = measure(packs[form], arguments.place, arguments.imports)
                load = os.getloadavg()[0]
                rows.append({"form": form, "round": number, "load": load, **found})
                shown = "  ".join(f"{name} {value:.2f}" for name, value in found.items())
                print(f"{form:<10}{shown}  load {load:.1f}", flush=True)
    for form in FORMS:
        own = [row for row in rows if row["form"] == form and "round" in row]
        names = [name for name in own[0] if name not in ("form", "round")]
        shown = "  ".join(f"{name} {median(row[name] for row in own):.2f}" for name in names)
        print(f"{form:<10}median {shown}")
    if arguments.json is not None:
        answer = {"machine": describe_machine(), "place": str(arguments.place), "rows": rows}
        arguments.json.write_text(json.dumps(answer, indent=1) + "\n")


if __name__ == "__main__":
    main()
