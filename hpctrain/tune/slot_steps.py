"""`SlotSteps`: steps of the job in which the trials of a slot begin, one after another."""

from __future__ import annotations

import errno
import json
import os
import secrets
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Collection
from contextlib import suppress

from hpctrain import environ, linux, timeouts
from hpctrain.execute.slot_host import MODULE, PADDING
from hpctrain.execute.slot_nodes import SEPARATOR
from hpctrain.execute.slot_request import digest_variables
from hpctrain.execute.slot_step import make_ticket
from hpctrain.execute.step_launcher import find_own_hydra
from hpctrain.launch.request import Submission
from hpctrain.log import log_once
from hpctrain.own_time import Deadline
from hpctrain.plan.argv import (
    GPU_VARIABLES,
    MEMORY_VARIABLES,
    STEP_VARIABLES,
    slice_srun_args,
    slot_step_argv,
)
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.plan.resources import Placement, name_nodes
from hpctrain.plan.visibility import checked_argv
from hpctrain.slurm.steps import end_marked_steps
from hpctrain.worker.threads import explain_binding

# With them srun would close the input of the step, or lead its output elsewhere (man srun).
_OUTPUT_VARIABLES = (
    "SLURM_LABELIO",
    "SLURM_STDERRMODE",
    "SLURM_STDINMODE",
    "SLURM_STDOUTMODE",
)
_LAST_BYTES = 4096
_MOST_UNUSED = 3
# Each node of a trial has an srun on the tuner's host.
_MOST_NODES = 32


class SlotSteps:
    """A step on each node of a slot that a trial has, kept for a later trial that fits.

    Each ends once another need or the end of the sweep wants its place, and after a trial that has
    failed: it begins anew for the next one. With this process it ends as soon as no trial is in it.
    """

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self._ending: list[_Step] = []
        self._num_unused = 0
        self._unused_on: Counter[str] = Counter()

    def take(self, trial: str, submission: Submission, *, nodes: Collection[str]) -> str:
        """Return the tickets of the steps in which a trial is to begin; empty without any.

        Not collective. They are not waited for.

        Parameters
        ----------
        trial
            Its name.
        submission
            The trial.
        nodes
            Those that it is on.
        """
        self.give_back(trial, is_clean=False)
        self._ending = [step for step in self._ending if not step.has_ended]
        plan = submission.plan
        reason = _why_not(plan)
        if self._num_unused >= _MOST_UNUSED:
            reason = reason or _too_many(self._num_unused)
        for node in plan.placement.nodes:
            if (count := self._unused_on[node]) >= _MOST_UNUSED:
                reason = reason or f"{_too_many(count)} on {node}"
        steps: list[_Step] = []
        if not reason:
            try:
                steps = self._steps_for(plan.placement)
            except OSError as error:
                reason = f"that of a slot fails: {error}"
        if reason:
            self._end_free(nodes)
            if environ.wants_fork_server():
                log_once(f"trials begin with steps of their own: {reason}")
            return ""
        for step in steps:
            step.trial = trial
        return SEPARATOR.join(step.ticket for step in steps)

    def _steps_for(self, placement: Placement) -> list[_Step]:
        """Return a free step on each node of a trial: one that is there, or a new one.

        Raises
        ------
        OSError
            If a new one cannot be started.
        """
        shapes = [
            (node, _shape(placement, node, count))
            for node, count in zip(placement.nodes, placement.tasks_per_node, strict=True)
        ]
        found = {node: self._find_free(shape) for node, shape in shapes}
        self._end_free([node for node, step in found.items() if step is None])
        return [found[node] or self._begin(node, shape) for node, shape in shapes]

    def _find_free(self, shape: tuple[str, ...]) -> _Step | None:
        fits = [step for step in self._steps if not step.trial and step.argv == shape]
        return next((step for step in reversed(fits) if not self._has_ended(step)), None)

    def _begin(self, node: str, shape: tuple[str, ...]) -> _Step:
        step = _Step(shape, node=node)
        self._steps.append(step)
        return step

    def _end_free(self, nodes: Collection[str]) -> None:
        """End what no trial is in on some nodes, for what is to begin there."""
        self._end([step for step in self._steps if not step.trial and step.node in nodes])

    def give_back(self, trial: str, *, is_clean: bool) -> None:
        """Keep the steps of a trial that has ended for another one, if it had some.

        Not collective.

        Parameters
        ----------
        trial
            Its name.
        is_clean
            Whether it has ended as it was to: otherwise nothing is kept.
        """
        steps = [step for step in self._steps if step.trial == trial]
        # An executor that cannot use one has ended all.
        has_ended = any(step.has_ended for step in steps)
        if steps and is_clean:
            self._num_unused = self._num_unused + 1 if has_ended else 0
        for step in steps:
            step.trial = ""
            if is_clean:
                self._unused_on[step.node] = self._unused_on[step.node] + 1 if has_ended else 0
            else:
                step.let_go()
                self._steps.remove(step)
                self._ending.append(step)

    def close(self) -> None:
        """End the steps. Not collective. One in which a trial still runs ends with that."""
        for step in self._steps:
            step.let_go()
        # On a node that is lost none ends by itself.
        self._end([*self._ending, *(step for step in self._steps if not step.trial)])
        self._steps.clear()

    def _has_ended(self, step: _Step) -> bool:
        if not step.has_ended:
            return False
        log_once(f"a step of a slot on {step.node} has ended, and begins anew{step.last_words()}")
        self._steps.remove(step)
        step.let_go()
        return True

    def _end(self, steps: Collection[_Step]) -> None:
        for step in steps:
            step.let_go()
        deadline = Deadline(timeouts.SLOT_STEP_END_S)
        left = [step.mark for step in steps if not step.await_end(deadline.left_s)]
        if left and (job_id := environ.variable("SLURM_JOB_ID")) is not None:
            end_marked_steps(job_id, *left, timeout_s=timeouts.SLOT_STEP_END_S)
        self._steps = [step for step in self._steps if step not in steps]


class _Step:
    """A step of `hpctrain.execute.slot_host`."""

    def __init__(self, argv: tuple[str, ...], *, node: str) -> None:
        self.argv, self.node = argv, node
        self.trial = ""
        """Which trial is in it; empty if it is free."""
        self.mark = secrets.token_hex(8)
        """In the environment of its srun."""
        variables = environ.without_export_variables(environ.environment())
        variables = environ.without_launcher_variables(variables)
        for name in (*STEP_VARIABLES, *GPU_VARIABLES, *MEMORY_VARIABLES, *_OUTPUT_VARIABLES):
            variables.pop(name, None)
        variables[environ.STEP_MARK] = self.mark
        # Executors read there how it is reached; nothing is left of it with srun.
        printed = [linux.memory_file(f"hpctrain-slot-{stream}") for stream in ("stdout", "stderr")]
        self._errors = printed[1]
        # Without a working directory Slurm starts it in /tmp, with modules of other users.
        command = [sys.executable, "-m", MODULE, PADDING]
        try:
            self._process = subprocess.Popen(
                [*argv, *checked_argv(command, cwd=os.getcwd())],
                env=variables,
                stdin=subprocess.PIPE,
                stdout=printed[0],
                stderr=printed[1],
                start_new_session=True,
            )
        except BaseException:
            os.close(printed[1])
            raise
        finally:
            os.close(printed[0])
        assert self._process.stdin is not None
        self._stdin = self._process.stdin
        with suppress(OSError):
            self._stdin.write(json.dumps(digest_variables(variables)).encode() + b"\n")
            self._stdin.flush()
        self.ticket = make_ticket(self._process.pid, self.mark)

    @property
    def has_ended(self) -> bool:
        """Whether it is gone."""
        return self._process.poll() is not None

    def let_go(self) -> None:
        """Let it end once no trial is in it. Nothing more is known of it then but its end."""
        if not self._stdin.closed:
            os.close(self._errors)
            with suppress(OSError):
                self._stdin.close()
            # Nothing else collects its exit status.
            threading.Thread(target=self._process.wait, daemon=True).start()

    def await_end(self, timeout_s: float) -> bool:
        """Wait for its end; return whether it has come in time."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(timeout_s, 0.0))
        return self.has_ended

    def last_words(self) -> str:
        """Return the last line that srun has printed, for the end of a sentence."""
        size = os.fstat(self._errors).st_size
        text = os.pread(self._errors, _LAST_BYTES, max(0, size - _LAST_BYTES))
        last = text.decode(errors="replace").strip().splitlines()[-1:]
        return f": {last[0]}" if last else ""


def _too_many(count: int) -> str:
    return f"{count} in a row could not begin in that of their slot"


def _shape(placement: Placement, node: str, count: int) -> tuple[str, ...]:
    """Return the command of the step for the workers of a trial on a node, but for its program."""
    there = name_nodes(placement, (node,), (count,))
    return tuple(slot_step_argv(there, (), srun_args=slice_srun_args(there)))


def _why_not(plan: LaunchPlan) -> str:
    """Return why a trial cannot begin in the step of a slot; empty if it can."""
    placement = plan.placement
    if not environ.wants_fork_server():
        return "each rank imports for itself"
    if placement.num_nodes > _MOST_NODES:
        return f"a trial is on more than {_MOST_NODES} nodes"
    if plan.container is not None:
        return "their ranks are in a container"
    if plan.environment_pack is not None:
        return "their ranks are in a packed environment"
    if plan.srun_args != slice_srun_args(placement):
        return f"they have options of srun ({' '.join(plan.srun_args)})"
    if not _has_pidfds():
        return "the kernel has no pidfd_open, which is new in Linux 5.3"
    if plan.mpi not in ("auto", "wheel") or not find_own_hydra():
        return "their MPI is not that of Python's environment here, with its mpiexec"
    if placement.num_workers > 1:
        return explain_binding({**environ.environment(), **plan.environment})
    return ""


def _has_pidfds() -> bool:
    try:
        os.close(linux.pidfd_open(os.getpid()))
    except OSError as error:
        return error.errno not in (errno.ENOSYS, errno.EPERM)
    return True
