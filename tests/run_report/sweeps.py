"""Fabricated sweeps: their files as a tuner and its trials leave them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BEGAN = 1_700_000_000.0
ODD = "</script><script>alert(1)</script>"


def write_sweep(
    root: Path,
    trials: Sequence[Mapping[str, Any]],
    *,
    metric: str | None = "loss",
    mode: str | None = "min",
    ended: str | None = "",
) -> Path:
    """Write a sweep whose trials begin one second after the other.

    Parameters
    ----------
    trials
        Of each ``config``, ``reports`` (metrics, a second apart), and ``event`` with which it ends,
        with its ``reason``; None for a trial that runs.
    ended
        Why the sweep ended; None if it has not.
    """
    root.mkdir(parents=True, exist_ok=True)
    events: list[dict[str, Any]] = [
        {"event": "sweep-started", "time": BEGAN, "metric": metric, "mode": mode, "seed": 7}
    ]
    last = BEGAN
    for number, trial in enumerate(trials):
        name, at = f"trial_{number:05d}", BEGAN + number
        events.append(
            {"event": "trial-added", "time": at, "trial": name, "config": trial["config"]}
        )
        reports = trial.get("reports", ())
        if reports or trial.get("event"):
            events.append({"event": "trial-started", "time": at, "trial": name, "gpus": []})
        run = root / name
        run.mkdir(exist_ok=True)
        if reports:
            lines = [
                {"report": n, "attempt": 1, "time": at + n, "metrics": m, "checkpoint": None}
                for n, m in enumerate(reports, 1)
            ]
            (run / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
        at += len(reports) + 0.5
        if (event := trial.get("event", "trial-ended")) is not None:
            of_end = {"reports": len(reports), "reason": trial.get("reason")}
            if trial.get("was_stopped"):
                stop = {"event": "trial-stop", "time": at - 0.5, "trial": name}
                events.append({**stop, "reports": len(reports), "reason": "stopped by"})
            events.append({"event": event, "time": at, "trial": name, **of_end})
        last = max(last, at)
    if ended is not None:
        events.append({"event": "sweep-ended", "time": last, "reason": ended})
    (root / "tune.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return root


def make_trials(count: int, *, seed: int = 0, steps: int = 20) -> list[dict[str, Any]]:
    """Return trials with parameters of all kinds, of which some fail, stop or report nothing."""
    rng = random.Random(seed)
    trials: list[dict[str, Any]] = []
    for number in range(count):
        lr = 10 ** rng.uniform(-5, -1)
        config = {
            "lr": lr,
            "opt": {"name": rng.choice(["sgd", "adamw", "lion"]), "momentum": rng.random()},
            "layers": rng.randint(1, 8),
            "bias": rng.random() < 0.5,
            "data": "imagenet",
            ODD: rng.choice([1, "<b>two</b>", [3, 4]]),
        }
        floor = 0.2 + abs(math.log10(lr) + 3) / 5
        reports = [
            {
                "loss": floor + 2 * math.exp(-step / 6) + rng.random() / 20,
                "val": {"größe": step * 1.5},
                "note": "<i>text</i>",
            }
            for step in range(steps if number % 3 else steps // 2)
        ]
        trial: dict[str, Any] = {"config": config, "reports": reports}
        if number % 3 == 0:
            trial.update(was_stopped=True, reason="stopped by the scheduler after report 10")
        if number % 7 == 3:
            trial.update(event="trial-failed", reason="rank 0 of 1 failed: CUDA out of memory\nTr")
        if number % 11 == 5:
            trial.update(reports=[], event=None)
        if number % 11 == 6:
            reports[-1]["loss"] = math.nan
        trials.append(trial)
    return trials
