"""``restart``: a rank is killed; how long until all are in their first step again.

Against the cold start of a group whose ranks each import for themselves, as before they were
forked. The cold start of the same run, with which that begins, stands beside it. All are inside an
allocation of a virtual Slurm, and in each round.

In a first row it is killed in its first step. In two more, with and without torch, some seconds
later: by then the ranks of the next attempt wait.

A last row has trials of a sweep, which train with torch: from the begin of a trial, with the
tuner's template of executors and servers of ranks, to its first step on all ranks. Against a script
that is started for it and whose ranks import torch each.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from arms import PROGRAMS, Goal, Measured, Sample, child_environment, judge, output_of

NUM_RANKS = 4
NUM_NODES = 2
NOT_FORKED = "cold start, not forked"
SETTLE_S = 12
FACTOR, AIM = 0.4, 0.25
OF_OWN_FACTOR, OF_OWN_AIM = 1.2, 1.05
TRIAL_FACTOR, TRIAL_AIM = 0.25, 0.1
TRIALS = 4
TIMEOUT_S = 120.0


def measure(arguments: Namespace) -> Iterator[Measured]:
    sys.path.insert(0, str(arguments.tree))
    from hpctrain.testing.slurm import ClusterSpec, VirtualCluster, best_mode, missing_components

    spec = ClusterSpec(num_nodes=NUM_NODES, cpus_per_node=4, gpus_per_node=0, mode=best_mode())
    if missing := missing_components(spec):
        print(f"restart: left out, this machine lacks {missing}", file=sys.stderr)
        return
    # Sockets of Slurm have short paths.
    with (
        tempfile.TemporaryDirectory(prefix="hb-", dir="/tmp") as folder,
        VirtualCluster.start(spec, state_dir=Path(folder, "c")) as cluster,
    ):
        goals = [Goal(against=NOT_FORKED, factor=factor) for factor in (FACTOR, AIM)]
        of_own = [Goal(against="cold start", factor=f) for f in (OF_OWN_FACTOR, OF_OWN_AIM)]
        for name, words, more in (
            ("restart", (), of_own),
            ("late restart", (SETTLE_S,), []),
            ("late restart with torch", (SETTLE_S, "torch"), []),
        ):
            run = partial(_run, cluster, arguments, words)
            yield judge(
                f"{name} {NUM_RANKS} ranks",
                "restart",
                restart_rounds(arguments, name, run),
                [*goals, *more],
                notes={"CPU": "of the ranks, from their birth to their first step"},
            )
        samples: dict[str, list[Sample]] = {"template warm": [], "cold start": []}
        for number in range(arguments.rounds + (arguments.rounds > 1)):
            trials, cold = _run_trials(cluster, arguments)
            if arguments.say is not None:
                walls = ", ".join(f"{trial.wall_s:.3f}" for trial in trials)
                arguments.say(f"trial start round {number}: {walls} s, cold {cold.wall_s:.3f} s")
            if number > 0 or arguments.rounds == 1:
                # For the first trial the template begins.
                warm = sorted(trials[1:], key=lambda trial: trial.wall_s)
                samples["template warm"].append(warm[len(warm) // 2])
                samples["cold start"].append(cold)
        yield judge(
            f"trial start {NUM_RANKS} ranks on {NUM_NODES} nodes",
            "template warm",
            samples,
            [Goal(against="cold start", factor=factor) for factor in (TRIAL_FACTOR, TRIAL_AIM)],
            notes={"CPU": "of the ranks alone; a server of forked ranks has the import"},
        )


def restart_rounds(
    arguments: Namespace, title: str, run: Callable[[bool], tuple[Sample, Sample]]
) -> dict[str, list[Sample]]:
    """Return the restart and the cold starts of each round, but for the first of several.

    Parameters
    ----------
    title
        What is measured, in words.
    run
        Returns the restart and the cold start of a run, whose ranks are forked or not.
    """
    samples: dict[str, list[Sample]] = {"restart": [], "cold start": [], NOT_FORKED: []}
    for number in range(arguments.rounds + (arguments.rounds > 1)):
        restart, cold = run(True)
        _, not_forked = run(False)
        if arguments.say is not None:
            arguments.say(
                f"{title} round {number}: {restart.wall_s:.3f} s, cold {cold.wall_s:.3f} s, not "
                f"forked {not_forked.wall_s:.3f} s"
            )
        # The first fills the page cache and writes bytecode.
        if number > 0 or arguments.rounds == 1:
            samples["restart"].append(restart)
            samples["cold start"].append(cold)
            samples[NOT_FORKED].append(not_forked)
    return samples


def _run(
    cluster: Any, arguments: Namespace, words: Sequence[object], forks: bool
) -> tuple[Sample, Sample]:
    with tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as folder:
        shape = [f"--nodes={NUM_NODES}", f"--ntasks-per-node={NUM_RANKS // NUM_NODES}"]
        script = [sys.executable, str(PROGRAMS / "killed_rank.py"), str(NUM_RANKS), str(NUM_NODES)]
        environment = child_environment(arguments.tree, cluster.environ)
        environment["HPCTRAIN_LAUNCHER"] = "allocation"
        environment["HPCTRAIN_FORK_SERVER"] = str(int(forks))
        argv = ["salloc", "--quiet", *shape, *script, folder, *words]
        output_of(argv, cwd=folder, env=environment, timeout_s=TIMEOUT_S)
        ledger = Path(folder, "run", "ledger.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in ledger]
        begun = next(e["time"] for e in events if e["event"] == "attempt-started")
        killed = float(Path(folder, "killed").read_text())
        return first_step(Path(folder), 2, killed), first_step(Path(folder), 1, begun)


def _run_trials(cluster: Any, arguments: Namespace) -> tuple[list[Sample], Sample]:
    """Return the starts of some trials of a sweep, and that of a script of its own."""
    with tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as folder:
        shape = [f"--nodes={NUM_NODES}", f"--ntasks-per-node={NUM_RANKS // NUM_NODES}"]
        words = [PROGRAMS / "trial_starts.py", NUM_RANKS, NUM_NODES, folder]
        environment = child_environment(arguments.tree, cluster.environ)
        begins = f"date +%s.%N > {folder}/begun && exec {sys.executable} "
        for trials, forks in ((TRIALS, "1"), (0, "0")):
            script = begins + " ".join(map(str, [*words, trials]))
            more = {"HPCTRAIN_LAUNCHER": "allocation", "HPCTRAIN_FORK_SERVER": forks}
            output_of(
                ["salloc", "--quiet", *shape, "sh", "-c", script],
                cwd=folder,
                env={**environment, **more},
                timeout_s=TIMEOUT_S,
            )
        ledger = Path(folder, "sweep", "tune.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in ledger]
        begun = [event["time"] for event in events if event["event"] == "trial-started"]
        assert len(begun) == TRIALS, begun
        cold = first_step(Path(folder), 0, float(Path(folder, "begun").read_text()))
        return [first_step(Path(folder), n, begin) for n, begin in enumerate(begun, 1)], cold


def first_step(folder: Path, attempt: int, begin: float, num_ranks: int = NUM_RANKS) -> Sample:
    """Return the time until the last rank was there, and the CPU time of all."""
    stamps = [
        [float(word) for word in (folder / f"step-{attempt}-{rank}").read_text().split()]
        for rank in range(num_ranks)
    ]
    return Sample(max(at for at, _ in stamps) - begin, sum(cpu for _, cpu in stamps))
