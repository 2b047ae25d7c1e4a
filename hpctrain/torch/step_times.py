"""`StepClock`: how long this rank takes until it joins the collectives of its steps.

A step is one of an optimizer: before it, the gradients of all ranks have been combined, so the
ranks begin it at about the same time. When a rank called a collective, torch's flight recorder
knows. The optimizer costs a list entry a step; the record is read when the executor asks.
"""

from __future__ import annotations

import itertools
import pickle
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from hpctrain.worker.step_times import StepTimes

_MOST_STEPS = 256
_MARKS = 1024
# Of Gloo and others; of NCCL, in a build for GPUs.
_DUMPS = ("_dump_fr_trace", "_dump_nccl_trace")


class StepClock:
    """Notes when an optimizer is about to make a step.

    Parameters
    ----------
    world_size
        Number of ranks.
    """

    def __init__(self, world_size: int) -> None:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self._world_size = world_size
        self._marks: deque[tuple[int, int]] = deque(maxlen=_MARKS)
        self._has_closures = False
        self._hook: Any = register_optimizer_step_pre_hook(self._marker())

    def close(self) -> None:
        """Note nothing more. Not collective."""
        self._hook.remove()

    def read(self) -> list[StepTimes]:
        """Return the times of the last steps. Not collective; may be called in any thread."""
        from torch._C import _distributed_c10d

        marks = list(self._marks)
        if len(marks) < 2 or self._has_closures:
            return []
        entries: list[Mapping[str, Any]] = []
        for name in _DUMPS:
            # Without stacks it is three times as quick. Older versions of torch have neither.
            if dump := getattr(_distributed_c10d, name, None):
                content = pickle.loads(
                    dump(includeCollectives=True, includeStackTraces=False, onlyActive=False)
                )
                entries += content.get("entries", [])
        return step_times(entries, marks, _groups_of_all(self._world_size))[-_MOST_STEPS:]

    def _marker(self) -> Callable[[Any, tuple[Any, ...], Mapping[str, Any]], None]:
        """Return what notes a step. Local names make it twice as quick as a method."""
        # The clock of the flight recorder.
        note, now, count = self._marks.append, time.time_ns, itertools.count(1).__next__

        def before_step(optimizer: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            note((now(), count()))
            if (args[1] if len(args) > 1 else kwargs.get("closure") if kwargs else None) is None:
                return
            # Of a step with a closure, as Lightning's and those of LBFGS are, the gradients are
            # only combined inside: now each rank is where it is.
            self._has_closures = True

        return before_step


def step_times(
    entries: Iterable[Mapping[str, Any]],
    marks: Sequence[tuple[int, int]],
    groups_of_all: Collection[str],
) -> list[StepTimes]:
    """Return the times of steps. Pure; not collective.

    Empty where ranks have collectives without the others, or send to each other: they wait for
    some of the others then, and that wait looks like work.

    Parameters
    ----------
    entries
        Calls as torch records them, oldest first.
    marks
        When steps of optimizers began, in nanoseconds, and their numbers.
    groups_of_all
        Names of the process groups that all ranks are in.
    """
    ends = [at for at, _ in marks]
    # The first and the last call of each step, by the mark that follows.
    calls: dict[int, tuple[int, int]] = {}
    for entry in entries:
        if entry["is_p2p"] or str(entry["process_group"][0]) not in groups_of_all:
            return []
        at = int(entry["time_created_ns"])
        index = bisect_left(ends, at)
        if index < len(marks):
            calls[index] = calls.get(index, (at,))[0], at
    found = []
    before: int | None = None
    for index, (first, last) in sorted(calls.items()):
        end, step = marks[index]
        # Of the first step that is kept, not all calls may be.
        if before is not None:
            found.append(
                StepTimes(
                    step=step,
                    total=(end - before) // 1000,
                    first=(first - before) // 1000,
                    last=(last - before) // 1000,
                )
            )
        before = end
    return found


def _groups_of_all(world_size: int) -> set[str]:
    from torch.distributed import distributed_c10d

    world = distributed_c10d._world
    return {
        name
        for group, name in list(world.pg_names.items())
        if len(world.pg_group_ranks.get(group, ())) == world_size
    }
