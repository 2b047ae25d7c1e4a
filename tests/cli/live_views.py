"""Runs as `hpctrain top` gets them, one of a thousand ranks: fabricated, and always the same."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from hpctrain.rundir.live import Live, NodeUse
from hpctrain.rundir.live_view import LiveView, Saved
from hpctrain.rundir.speed import Goal, Report, Speed
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus

NOW = 1_700_010_000.0


def large_view(num_ranks: int = 1000, **changes: Any) -> LiveView:
    """Return a run on nodes of eight ranks, of which one is behind, and one has no figures."""
    num_nodes = max(1, num_ranks // 8)
    nodes = tuple(f"gpu{node:03}" for node in range(num_nodes))
    slow = num_ranks - 3
    uses = [
        NodeUse(
            cpus=64,
            cpu=48.0 + node % 8,
            memory=200_000 + 1000 * (node % 40),
            memory_limit=512_000,
            gpus=tuple((90 + node % 10, 60_000, 81_559) for _ in range(8)),
        )
        for node in range(num_nodes)
    ]
    uses[0] = NodeUse()
    ranks = range(num_ranks)
    live = Live(
        attempt=2,
        written_at=NOW - 4,
        phases=tuple("checkpoint" if rank == slow else "training" for rank in ranks),
        reports=tuple(1198 if rank == slow else 1200 for rank in ranks),
        idle_s=tuple(47 if rank == slow else rank % 3 for rank in ranks),
        node_ranks=tuple(min(num_nodes - 1, rank // 8) for rank in ranks),
        nodes=nodes,
        uses=tuple(uses),
    )
    history = tuple(
        Report(number=n, time=NOW - 1200 + n, metrics={"loss": 2 + 6 * math.exp(-n / 200)})
        for n in range(1, 1201, 4)
    )
    status = RunStatus(
        name="llama-70b-pretrain-2026-11-24-seed-17",
        state=RunState.RUNNING,
        launcher="slurm",
        attempt=2,
        world_size=num_ranks,
        nodes=nodes,
        job_id="1234567",
        phase="training",
        reports=1200,
        started_at=NOW - 3725,
        updated_at=NOW - 1,
        deadline=NOW + 82_675,
        last_restart="rank 5 on gpu000 failed: RuntimeError: CUDA error: an illegal memory access "
        "was encountered; restart 1 of 3 from checkpoint 000800",
    )
    given: dict[str, Any] = {
        "name": status.name,
        "path": Path("/lustre/project/runs") / status.name,
        "state": "running",
        "live": True,
        "status": status,
        "now": NOW,
        "reports": 1200,
        "reported_at": NOW - 1,
        "metrics": {"loss": 2.0149, "lr": 3e-4, "tokens": 4_915_200_000, "note": "a\nb\x1b[2J"},
        "history": history,
        "speed": Speed(reports=0.98, samples=4_014_080.0, unit="tokens"),
        "goals": (Goal(name="training_iteration", target=5000, value=1200, left_s=3877),),
        "saved": Saved(count=6, newest="001200", size=140 * 2**30, created_at=NOW - 300),
        "ranks": live,
    }
    return LiveView(**{**given, **changes})


def small_view(name: str, state: RunState, live: bool | None, **changes: Any) -> LiveView:
    """Return a run of which little is known."""
    status = RunStatus(name=name, state=state, launcher="slurm", world_size=4)
    fields = {key: changes.pop(key) for key in list(changes) if key in _OF_STATUS}
    given: dict[str, Any] = {
        "name": name,
        "path": Path("/runs") / name,
        "state": "lost" if live is False and not state.is_final else state.value,
        "live": live,
        "status": status.with_changes(**fields),
        "now": NOW,
        "metrics": {},
    }
    return LiveView(**{**given, **changes})


_OF_STATUS = {"job_id", "error", "ended_at", "world_size", "reports", "phase", "attempt", "nodes"}


def some_views() -> list[LiveView]:
    """Return a run of each kind."""
    return [
        large_view(),
        small_view("stops", RunState.RUNNING, True, phase="stopping: it was asked to"),
        small_view(
            "waits",
            RunState.SUBMITTED,
            True,
            job_id="1234568",
            world_size=0,
            waits="waits (Priority): jobs with a higher priority are before it.",
        ),
        small_view("elsewhere", RunState.RUNNING, None),
        small_view("killed", RunState.RUNNING, False, reports=7, metrics={"loss": math.nan}),
        small_view(
            "bad", RunState.FAILED, False, ended_at=NOW - 90, error="rank 1: ValueError: x" * 20
        ),
        small_view("r" * 128, RunState.FINISHED, False, metrics={"m" * 60: 0.5}),
    ]
