"""Whether the decisions of a sweep are those of its scheduler on the reports in their order.

The scheduler of the script writes each of its calls into a file of notes, one JSON object a line:
``pid``, ``call`` (``add``, ``result``, ``complete``), ``trial``, ``metrics``, ``decision``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpctrain.rundir.metrics import is_report
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import read_lines
from hpctrain.tune.ledger import SweepPaths, is_event, read_record
from hpctrain.tune.schedulers import TrialScheduler


def wrong_decisions(
    notes: Path, root: Path, make_scheduler: Callable[[], TrialScheduler]
) -> Iterator[str]:
    """Yield which decisions are not those of a scheduler on the same calls, or had no effect.

    Not collective. Reports that are sent again at a restore may come in another order, since one
    that was made again has a later time: what an earlier process decided on them has had its
    effect.

    Parameters
    ----------
    notes
        What the scheduler of the script has noted, over all its processes.
    root
        Directory of the sweep.
    make_scheduler
        Returns such a scheduler; it may ask nothing of the population.
    """
    calls = [json.loads(line) for line in notes.read_text(encoding="utf-8").splitlines()]
    decided: dict[str, set[int]] = {}
    stopped: dict[str, set[int]] = {}
    let_on: set[tuple[str, int]] = set()
    for pid, group in itertools.groupby(calls, key=lambda call: call["pid"]):
        scheduler = make_scheduler()
        earlier = let_on.copy()
        for call in group:
            decision = _repeat(scheduler, call)
            if decision != call["decision"]:
                yield f"process {pid}: {call}, where the scheduler decides {decision}"
            if call["call"] != "result":
                continue
            name, number = call["trial"], call["metrics"]["training_iteration"]
            if decision != TrialScheduler.STOP:
                let_on.add((name, number))
                continue
            decided.setdefault(name, set()).add(number)
            if (name, number) not in earlier:
                stopped.setdefault(name, set()).add(number)
    for name, trial in read_record(SweepPaths(root=root)).trials.items():
        if trial.stopped_after is not None and trial.stopped_after not in decided.get(name, ()):
            yield f"{name} was stopped after report {trial.stopped_after}, and no decision says so"
        if trial.stopped_after is None and name in stopped and trial.reports > max(stopped[name]):
            yield f"{name} went on after report {max(stopped[name])}, and was to stop"


def wrong_lineages(root: Path, advance: Callable[[float, float], float]) -> Iterator[str]:
    """Yield which reports follow from no other one, or were made with another configuration.

    Not collective. Each trial reports its whole state: ``step``, ``w``, and the ``lr`` of its
    configuration; before its first step both are 0.

    Parameters
    ----------
    root
        Directory of the sweep.
    advance
        Returns the next ``w``, given ``w`` and ``lr``.
    """
    reports = {
        name: [(trial, line) for line in read_lines(RunPaths(root / name).metrics, is_report)]
        for name, trial in read_record(SweepPaths(root=root)).trials.items()
    }
    known: dict[int, set[float]] = {0: {0.0}}
    for _, line in itertools.chain(*reports.values()):
        known.setdefault(line["metrics"]["step"], set()).add(line["metrics"]["w"])
    first = {
        event["trial"]: event["config"]
        for event in read_lines(SweepPaths(root=root).events, is_event)
        if event["event"] == "trial-added"
    }
    for name, of_trial in reports.items():
        for trial, line in of_trial:
            step, w, lr = (line["metrics"][key] for key in ("step", "w", "lr"))
            if w not in {advance(before, lr) for before in known.get(step - 1, ())}:
                yield f"{name}: report {line['report']}, of step {step}, follows from no other"
            origin = trial.origin_of(line["attempt"])
            config = first[name] if origin is None else origin.transfer.config
            if lr != config["lr"]:
                yield f"{name}: report {line['report']} has lr={lr}, and not {config['lr']}"


def _repeat(scheduler: TrialScheduler, call: Mapping[str, Any]) -> str | None:
    if call["call"] == "add":
        scheduler.on_trial_add(call["trial"])
    elif call["call"] == "complete":
        scheduler.on_complete(call["trial"], call["metrics"])
    else:
        return scheduler.on_result(call["trial"], call["metrics"])
    return None
