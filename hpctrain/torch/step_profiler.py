"""`TorchStepProfiler`: torch's profiler over some steps of the optimizer, at any time of a run."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class TorchStepProfiler:
    """Profiles steps of the main thread when it is asked to.

    A step is one of the first optimizer that makes one. The profiler of torch has to be started in
    the thread that it watches: a hook of all optimizers, there from the start, does it.
    """

    def __init__(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._hook: Any = register_optimizer_step_post_hook(self._after_step)
        self._asked: Callable[[Path | str], None] | None = None
        self._until = 0.0
        self._profiler: Any = None
        self._optimizer: Any = None
        self._left = 0

    def start(self, steps: int, *, until: float, finish: Callable[[Path | str], None]) -> None:
        """Profile the steps that follow the next one. Not collective.

        Parameters
        ----------
        steps
            How many.
        until
            When to end before, in seconds since the epoch.
        finish
            Gets a trace's file, or why there is none; in a thread of its own.
        """
        self._left, self._until = steps, until
        self._asked = finish

    def close(self) -> None:
        """Profile no more. Not collective."""
        self._hook.remove()
        if self._profiler is not None:
            self._end()
        elif self._asked is not None:
            finish, self._asked = self._asked, None
            finish("its training function returned first")

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._asked is None:
            return
        if self._profiler is None:
            self._begin(optimizer)
        elif optimizer is self._optimizer:
            self._profiler.step()
            self._left -= 1
            if self._left == 0 or time.time() > self._until:
                self._end()

    def _begin(self, optimizer: Any) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        assert self._asked is not None
        if time.time() > self._until:
            # The command has timed out.
            finish, self._asked = self._asked, None
            finish("no step in time")
            return
        if torch._C._autograd._profiler_enabled():
            # torch has one at a time, and would silently end that of the training function.
            finish, self._asked = self._asked, None
            finish("its training function runs torch's profiler itself")
            return
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._optimizer = optimizer
        # Without Python stacks: torch takes seconds for those of a hundred steps, in this thread.
        self._profiler = profile(activities=activities, record_shapes=True)
        self._profiler.start()

    def _end(self) -> None:
        """Write the trace, which takes seconds, while steps go on."""
        profiler, self._profiler, self._optimizer = self._profiler, None, None
        finish, self._asked = self._asked, None
        assert finish is not None
        profiler.stop()

        def export() -> None:
            descriptor, name = tempfile.mkstemp(prefix="hpctrain-trace-", suffix=".json")
            os.close(descriptor)
            try:
                profiler.export_chrome_trace(name)
            except Exception as error:
                Path(name).unlink(missing_ok=True)
                finish(f"torch could not write the trace: {error}")
                return
            finish(Path(name))

        threading.Thread(target=export, name="hpctrain-trace", daemon=True).start()
