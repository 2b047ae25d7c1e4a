"""`BackendExecutor`: ranks, a backend and a training function, without a run around them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from hpctrain import timeouts
from hpctrain.backend import BackendConfig
from hpctrain.checkpoint import Checkpoint, refuse_missing
from hpctrain.config import FailureConfig, RunConfig, SyncConfig
from hpctrain.errors import ConfigError
from hpctrain.execute.attempt_executor import AttemptExecutor
from hpctrain.execute.attempt_loop import AttemptLoop
from hpctrain.execute.executor_record import UnwrittenRecord
from hpctrain.execute.recorder import Recorder
from hpctrain.execute.worker_group import WorkerGroup
from hpctrain.plan import spec
from hpctrain.plan.resources import Placement
from hpctrain.plan.spec import RankSettings, RunSpec, WorkerSpec
from hpctrain.rundir.files import write_atomic
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunEvent, RunState
from hpctrain.rundir.status import RunStatus
from hpctrain.rundir.trust import digest_spec
from hpctrain.train_function import takes_config
from hpctrain.worker.context import active_worker

_POLL_S = 0.1
_ATTEMPT = 1
_NAME = "backend-executor"


class BackendExecutor:
    """Starts workers, sets a backend up on them, and runs a training function once.

    It is what a trainer does between its start and its result, for code that wants to do the rest
    itself: nothing is restarted, and the directory ends with it. Trainers are for everything else.

    Parameters
    ----------
    backend_config
        Of the backend whose hooks run on the workers.
    num_workers, num_cpus_per_worker, num_gpus_per_worker
        How many workers, and what each of them has.
    placement
        How they lie on nodes; by default all on this machine.
    in_allocation
        Whether they start on the nodes of the allocation that this process is in.

    Examples
    --------
    >>> executor = BackendExecutor(TorchConfig(), num_workers=2)    # doctest: +SKIP
    >>> executor.start()                                            # doctest: +SKIP
    >>> executor.start_training(train_func)                         # doctest: +SKIP
    >>> while (metrics := executor.get_next_results()) is not None: # doctest: +SKIP
    ...     print(metrics[0])
    >>> executor.finish_training()                                  # doctest: +SKIP
    >>> executor.shutdown()                                         # doctest: +SKIP
    """

    def __init__(
        self,
        backend_config: BackendConfig,
        num_workers: int = 1,
        num_cpus_per_worker: int = 1,
        num_gpus_per_worker: int = 0,
        *,
        placement: Placement | None = None,
        in_allocation: bool = False,
    ) -> None:
        if not isinstance(backend_config, BackendConfig):
            raise ConfigError(
                f"BackendExecutor({backend_config!r}): a BackendConfig comes first, such as "
                f"hpctrain.torch.TorchConfig()."
            )
        self._backend_config = backend_config
        self._num_workers = num_workers
        self._cpus, self._gpus = num_cpus_per_worker, num_gpus_per_worker
        self._placement = placement
        self._in_allocation = in_allocation
        self._group: WorkerGroup | None = None
        self._root: Path | None = None
        self._attempt: AttemptExecutor | None = None

    def start(
        self,
        initialization_hook: Callable[[], Any] | None = None,
        *,
        timeout_s: float = timeouts.START_OF_WORKER_GROUP_S,
    ) -> None:
        """Start the workers; call a function on each of them, if one is given. Not collective.

        Raises
        ------
        LaunchError
            If they cannot be started.
        """
        if self._group is not None:
            raise ValueError("this BackendExecutor is started already; call shutdown() first.")
        # Where nodes share no /tmp, the working directory is what they share.
        beside = os.getcwd() if self._in_allocation else None
        self._root = Path(tempfile.mkdtemp(prefix="hpctrain-executor-", dir=beside))
        self._group = WorkerGroup(
            self._num_workers,
            self._cpus,
            self._gpus,
            placement=self._placement,
            in_allocation=self._in_allocation,
            path=self._root,
            attempt=_ATTEMPT,
        )
        try:
            self._group.start(timeout_s)
            if initialization_hook is not None:
                self._group.execute(initialization_hook)
        except BaseException:
            self.shutdown(graceful_termination=False)
            raise

    def is_started(self) -> bool:
        """Return whether there are workers. Not collective."""
        return self._group is not None

    def get_worker_group(self) -> WorkerGroup:
        """Return the workers; call functions on them before the training starts. Not collective."""
        if self._group is None:
            raise ValueError("this BackendExecutor has no workers; call start() first.")
        return self._group

    def start_training(
        self,
        train_func: Callable[..., Any],
        train_loop_config: Mapping[str, Any] | None = None,
        *,
        datasets: Mapping[str, Any] | None = None,
        datasets_to_split: Literal["all"] | Sequence[str] = "all",
        metadata: Mapping[str, Any] | None = None,
        checkpoint: Checkpoint | None = None,
        sync_config: SyncConfig | None = None,
    ) -> None:
        """Set the backend up on all workers, and let them call the training function.

        Not collective. Returns at once.

        Parameters
        ----------
        train_func, train_loop_config
            As for a `DataParallelTrainer`.
        datasets, datasets_to_split, metadata
            As for a `DataParallelTrainer`.
        checkpoint
            What ``get_checkpoint()`` returns at first.
        sync_config
            How checkpoints are written, and how long ranks wait for them; None: ``SyncConfig()``.

        Raises
        ------
        ConfigError
            If the function cannot be a training function, or cannot be pickled, or the checkpoint
            does not exist.
        """
        if checkpoint is not None:
            refuse_missing(checkpoint)
        group = self.get_worker_group()
        if self._attempt is not None:
            raise ValueError("this BackendExecutor trains already; make another one.")
        worker = WorkerSpec(
            train_loop=_Gathered(train_func, takes_config(train_func)),
            train_loop_config=train_loop_config,
            takes_config=True,
            backend_config=self._backend_config,
            datasets=dict(datasets or {}),
            datasets_to_split=datasets_to_split,
            preprocessor=None,
            metadata=dict(metadata or {}),
        )
        sync = sync_config or SyncConfig()
        content = RunSpec(
            trainer=f"{__name__}.BackendExecutor",
            backend=type(self._backend_config).__qualname__,
            fingerprint="",
            digests={},
            settings=RankSettings(
                name=_NAME,
                cwd=os.getcwd(),
                sys_path=tuple(str(Path(p).absolute()) for p in sys.path),
                cpus_per_worker=group.placement.cpus_per_task,
                gpus_per_worker=group.placement.gpus_per_task,
                commit_timeout_s=sync.sync_timeout,
                scratch_dir=None if sync.scratch_dir is None else str(sync.scratch_dir),
                sync_artifacts=sync.sync_artifacts,
                max_writers=sync.max_writers,
                max_bytes_per_s=sync.max_bytes_per_s,
            ),
            worker=spec.pack(worker, what="the training function"),
            executor=b"",
        ).to_bytes()
        paths = self._paths()
        write_atomic(paths.spec, content, mode=0o600)
        self._recorder = self._begin(paths, group, sync)
        self._attempt = AttemptExecutor(
            group,
            spec_digest=digest_spec(content),
            checkpoint=None if checkpoint is None else Path(checkpoint.path),
        )
        self._loop = AttemptLoop(
            self._recorder, self._attempt, failure_config=FailureConfig(), may_end_hangs=False
        )
        self._attempt.start_training()

    def _begin(self, paths: RunPaths, group: WorkerGroup, sync: SyncConfig) -> Recorder:
        """Return what records the reports, in the directory that `shutdown` deletes."""
        status = RunStatus(name=_NAME, state=RunState.STARTING, launcher="local")
        recorder = Recorder(
            paths=paths,
            run_config=RunConfig(name=_NAME, sync_config=sync),
            status=status,
            record_cls=UnwrittenRecord,
        )
        recorder.run_record.begin()
        recorder.begin_attempt(None)
        recorder.run_record.advance(
            RunEvent.JOINED, world_size=len(group), nodes=group.hostnames, phase="importing"
        )
        return recorder

    def get_next_results(self) -> list[dict[str, Any]] | None:
        """Wait for the next report; return the metrics of each rank, or None at the end.

        Not collective. A checkpoint of the report is complete then: see `get_checkpoint`.

        Raises
        ------
        WorkerError
            If a rank failed.
        TrainingFailedError
            If ranks did not make the same calls.
        """
        attempt, loop = self._training(), self._loop
        while not attempt.is_finished():
            round_ = attempt.get_next_results(_POLL_S)
            loop.turn([] if round_ is None else [round_])
            if round_ is not None:
                return [round_.metrics(rank) for rank in range(len(attempt.ranks))]
        loop.conclude()
        return None

    def get_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint, or None. Not collective.

        It is deleted by `shutdown`: copy it with ``to_directory()``.
        """
        self._training()
        return self._recorder.checkpoints.latest

    def finish_training(self) -> list[Any]:
        """Wait for the end; return what the training function returned, by rank. Not collective.

        Raises
        ------
        WorkerError, TrainingFailedError
            As in `get_next_results`.
        """
        while self.get_next_results() is not None:
            pass
        content = self._training().finish_training()
        values: list[Any] = spec.unpack(content)
        return values

    def shutdown(self, graceful_termination: bool = True) -> None:
        """End the workers, and delete their directory. Not collective."""
        if self._group is not None:
            self._group.shutdown(patience_s=timeouts.RANKS_END_S if graceful_termination else 0.0)
        if self._attempt is not None:
            self._recorder.checkpoints.close()
            self._recorder.run_record.directory.close()
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)
        self._group = self._root = self._attempt = None

    def _paths(self) -> RunPaths:
        assert self._root is not None
        return RunPaths(self._root)

    def _training(self) -> AttemptExecutor:
        if self._attempt is None:
            raise ValueError("this BackendExecutor trains nothing; call start_training() first.")
        return self._attempt


class _Gathered:
    """A training function whose value on every rank reaches rank 0."""

    def __init__(self, function: Callable[..., Any], takes_config: bool) -> None:
        self._function = function
        self._takes_config = takes_config

    def __call__(self, config: dict[str, Any]) -> list[Any] | None:
        """Call the function, then gather. Collective."""
        value = self._function(config) if self._takes_config else self._function()
        # Of classes of the main script, which MPI's pickles do not carry.
        packed = spec.pack(value, what="the return value")
        gathered = active_worker("train_func").comm.gather(packed)
        return None if gathered is None else [spec.unpack(one) for one in gathered]
