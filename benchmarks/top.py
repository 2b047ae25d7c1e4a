"""``top``: a page of 1,000 ranks, from frames of ranks to the screen of a terminal.

::

    python benchmarks/top.py                        # a minute
    python benchmarks/top.py --only draw --sizes 1000 8000

The ranks are simulated; everything after their frames is the real code: the executor takes the
frames in and writes ``live.json``, a reader makes the page of it. Nothing is painted by a
terminal, whose speed is its own. The same lines in Textual's ``DataTable``, which makes every row,
and not only those that are seen, are drawn after it.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from arms import Goal, Measured, Sample, judge
from spine import Rows, run_rows

from hpctrain.cli.top_app import TopApp
from hpctrain.execute.attempt_executor import AttemptExecutor
from hpctrain.execute.executor_record import ExecutorRecord
from hpctrain.execute.live_record import LiveRecord
from hpctrain.rundir.live_reader import LiveReader, make_view
from hpctrain.rundir.live_text import rank_line
from hpctrain.rundir.live_view import LiveView
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, write_status
from hpctrain.testing.fake_ranks import FakeRanks

RANKS_PER_NODE = 8
DRAW_S = 0.1
WRITE_S = 0.005
SIZE = (120, 50)


class Ranks(FakeRanks):
    """Simulated ranks, eight on a node."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        found = super().workers
        self._workers = [
            replace(worker, hostname=f"node{worker.rank // RANKS_PER_NODE}") for worker in found
        ]

    @property
    def workers(self) -> Any:
        return self._workers


class Run:
    """A run of simulated ranks."""

    def __init__(self, folder: str, size: int) -> None:
        self.paths = RunPaths(Path(folder))
        nodes = tuple(f"node{node}" for node in range(-(-size // RANKS_PER_NODE)))
        self.status = RunStatus(
            name="run",
            state=RunState.RUNNING,
            launcher="slurm",
            attempt=1,
            world_size=size,
            nodes=nodes,
        )
        write_status(self.paths, self.status)
        record = ExecutorRecord(self.paths, self.status)
        record.begin()
        self.ranks = Ranks(size)
        self.executor = AttemptExecutor(self.ranks)
        self.live = LiveRecord(record, self.executor)
        self.reader = LiveReader(self.paths)
        for rank in range(size):
            self.ranks.send("phase", rank, phase="training")
        self.go_on()

    def go_on(self) -> None:
        """Let ranks report, a tenth of them late, and nodes measure themselves."""
        for rank in range(len(self.ranks)):
            if random.random() < 0.9:
                self.ranks.report(rank, loss=1.0)
        for node in self.status.nodes:
            gpus = [[random.randrange(101), 60_000, 81_559] for _ in range(RANKS_PER_NODE)]
            use = {"cpus": 64, "cpu": random.random() * 64, "memory": 1000, "gpus": gpus}
            self.ranks.uses[node] = {**use, "memory_limit": 500_000}
        self.executor.take(self.ranks.poll(0))

    def look(self) -> LiveView:
        """Return what a reader sees of it."""
        files = self.reader.read()
        return make_view(files, self.paths, state="running", live=True, now=time.time())


def timed(call: Callable[[], Any]) -> Sample:
    begun, cpu = time.perf_counter(), time.process_time()
    call()
    return Sample(time.perf_counter() - begun, time.process_time() - cpu)


def measure_write(arguments: Namespace) -> Iterator[Measured]:
    for size in arguments.sizes or (1000,):
        with tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as folder:
            run = Run(folder, size)
            taken: list[Sample] = []
            for _ in range(arguments.rounds):
                run.go_on()
                taken.append(timed(run.live.write))
            size_kib = run.paths.live.stat().st_size / 1024
        samples = {"live.json": taken, "5 ms": [Sample(WRITE_S) for _ in taken]}
        goals = [Goal(against="5 ms")]
        notes = {"KiB": round(size_kib, 1), "CPU, ms": _cpu_ms(taken)}
        yield judge(f"write {size} ranks", "live.json", samples, goals, notes=notes)


def measure_draw(arguments: Namespace) -> Iterator[Measured]:
    for size in arguments.sizes or (1000,):
        samples = asyncio.run(_draw(size, arguments.rounds))
        samples["100 ms"] = [Sample(DRAW_S) for _ in samples["hpctrain top"]]
        goals = [Goal(against="100 ms"), Goal(against="DataTable")]
        notes = {"CPU, ms": _cpu_ms(samples["hpctrain top"])}
        yield judge(f"draw {size} ranks", "hpctrain top", samples, goals, notes=notes)


def _cpu_ms(samples: list[Sample]) -> float:
    return round(1000 * median(sample.cpu_s or 0.0 for sample in samples), 1)


async def _draw(size: int, rounds: int) -> dict[str, list[Sample]]:
    """Draw our page, from the files to the last line, then a table of the same lines."""
    from textual.app import App, ComposeResult
    from textual.widgets import DataTable

    class Table(App[None]):
        def compose(self) -> ComposeResult:
            yield DataTable()

        def show(self, view: LiveView) -> None:
            table = self.query_one(DataTable)
            table.clear(columns=True)
            table.add_columns("RANK", "NODE", "PHASE", "REPORT", "IDLE", "CPU", "MEM", "GPU")
            for rank in view.order(slowest_first=True):
                words = rank_line(view, rank, width=SIZE[0]).replace(" s ", "s ").split()
                table.add_row(*words)

    samples: dict[str, list[Sample]] = {"hpctrain top": [], "DataTable": []}
    with tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as folder:
        run = Run(folder, size)
        ours, other = TopApp(list, is_one=True), Table()
        for name, app, show in (
            ("hpctrain top", ours, lambda: ours.show([run.look()])),
            ("DataTable", other, lambda: other.show(run.look())),
        ):
            async with app.run_test(size=SIZE) as pilot:
                for number in range(rounds + 1):
                    run.go_on()
                    run.live.write()
                    begun, cpu = time.perf_counter(), time.process_time()
                    show()
                    # Until all of it has been laid out and painted.
                    app.screen.refresh(layout=True)
                    await pilot._wait_for_screen()
                    app.screen._compositor.render_strips()
                    taken = Sample(time.perf_counter() - begun, time.process_time() - cpu)
                    # The first one also reads the style sheets.
                    if number:
                        samples[name].append(taken)
    return samples


ROWS: Rows = {"write": measure_write, "draw": measure_draw}


if __name__ == "__main__":
    run_rows(ROWS, description=__doc__, rounds=20)
