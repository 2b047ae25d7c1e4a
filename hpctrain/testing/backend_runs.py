"""The training functions of `hpctrain.testing.backend_contract`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hpctrain
from hpctrain import BackendConfig, Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig
from hpctrain.plan import spec
from hpctrain.worker.context import active_worker


@dataclass(frozen=True, kw_only=True)
class Questions:
    """Queries of a rank to its framework."""

    rank_and_size: Callable[[], tuple[int, int] | None]
    sum_over_ranks: Callable[[float], float | None]
    failure: str = ""
    """A single fault before the third step: ``raise`` on rank 1, ``kill`` of rank 0."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a rank found itself."""

    attempt: int
    world_rank: int
    world_size: int
    first_step: int
    """The step it began with."""
    in_framework: tuple[int, int] | None
    """Its rank and the number of ranks, as the framework counts them."""
    sum_over_ranks: float | None
    """The sum of 1 of rank 0, 2 of rank 1 and so on, made by the framework."""


@dataclass(frozen=True, kw_only=True)
class Fits:
    """Runs for processes that are ranks already."""

    backend_config: BackendConfig
    questions: Questions
    storage: Path
    names: tuple[str, ...]


def train_three_steps(config: dict[str, Any]) -> list[Place]:
    """Report three steps, each with a checkpoint, and return where each rank found itself."""
    questions: Questions = config["questions"]
    world = hpctrain.get_context().world
    rank = world.world_rank
    checkpoint = hpctrain.get_checkpoint()
    first = checkpoint.to_dict()["step"] + 1 if checkpoint else 0
    sum_over_ranks = None
    for step in range(first, 3):
        sum_over_ranks = questions.sum_over_ranks(rank + 1.0)
        if step == 2 and world.attempt == 1:
            _fail(questions.failure, rank)
        saved = Checkpoint.from_dict({"step": step})
        hpctrain.report({"step": step}, saved if rank == 0 else None)
    place = Place(
        attempt=world.attempt,
        world_rank=rank,
        world_size=world.world_size,
        first_step=first,
        in_framework=questions.rank_and_size(),
        sum_over_ranks=sum_over_ranks,
    )
    places: list[Place] = active_worker("train_three_steps()").comm.allgather(place)
    return places


def train_one_step() -> tuple[int, int]:
    """Report one step; return rank and world size."""
    context = hpctrain.get_context()
    hpctrain.report({"step": 0})
    return context.get_world_rank(), context.get_world_size()


def run_fits(path: str) -> None:
    """Run one fit after the other, as a pickled `Fits` says. Collective."""
    fits: Fits = spec.unpack(Path(path).read_bytes())
    for name in fits.names:
        DataParallelTrainer(
            train_three_steps,
            train_loop_config={"questions": fits.questions},
            backend_config=fits.backend_config,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=fits.storage, name=name, verbose=0),
        ).fit()


def _fail(failure: str, rank: int) -> None:
    if (failure, rank) not in (("raise", 1), ("kill", 0)):
        return
    # Where this rank gave no part of the last checkpoint, report() has not waited for it.
    hpctrain.get_all_reported_checkpoints(timeout_s=60)
    if failure == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("stopped on purpose")
