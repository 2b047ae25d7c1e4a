"""`WorkerGroup`: a set of MPI ranks that run functions."""

from __future__ import annotations

import math
import shutil
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain import timeouts
from hpctrain.checks import check_count
from hpctrain.config import ScalingConfig
from hpctrain.control.hub import Hub
from hpctrain.control.local_socket import new_socket_name
from hpctrain.control.wire import Frame
from hpctrain.errors import ConfigError, LaunchError, WorkerError
from hpctrain.execute.calls import Calls, CallsFunctions
from hpctrain.execute.examine import Examiner
from hpctrain.execute.explain import names_a_death
from hpctrain.execute.health import Health
from hpctrain.execute.node_agents import NodeAgents
from hpctrain.execute.node_report import describe_node, examine_storage
from hpctrain.execute.process import StepProcess
from hpctrain.execute.rank_forks import RankForks
from hpctrain.execute.rank_step import start_ranks
from hpctrain.execute.rendezvous import Rendezvous, WorkerMetadata
from hpctrain.execute.step_launcher import find_mpiexec, find_step_launcher
from hpctrain.log import log
from hpctrain.own_time import Deadline
from hpctrain.plan.launch_plan import StepLauncher
from hpctrain.plan.resources import Placement, place_on_one_node
from hpctrain.rundir.files import make_directory, may_pass
from hpctrain.rundir.paths import RunPaths
from hpctrain.temporary_checkpoint import remove_dead_checkpoints, remove_temporary_checkpoints
from hpctrain.worker.leftovers import unlink_mapped_segments

if TYPE_CHECKING:
    from hpctrain.execute.node_environment import Brought, NodeEnvironment
    from hpctrain.execute.rank_container import RankContainer
    from hpctrain.execute.slot_step import SlotStep

_POLL_S = 0.1
_LOOK_AGAIN_S = 0.01


class WorkerGroup(CallsFunctions):
    """MPI ranks, started together by mpiexec on this machine or by srun inside an allocation.

    A group that is made without `placement` and `path` starts at once, another one by `start`.

    Parameters
    ----------
    num_workers
        Number of ranks.
    num_cpus_per_worker, num_gpus_per_worker
        What each of them has, where `placement` does not set it; compute threads are as many as
        CPUs.
    placement
        How they lie on nodes; by default all on this machine.
    idle_nodes
        Nodes of the job that have no ranks, but an agent.
    in_allocation
        Whether to start them on the nodes of the allocation that this process is in, each of which
        has an agent.
    agents
        The agents of the allocation's nodes, where they are to outlive this group.
    mpi
        As in `SlurmConfig`.
    srun_args
        Further options of the step.
    is_slice
        Whether ranks of other runs are on the same nodes of the allocation.
    container
        The container that ranks of an allocation run in; None for this process's own Python.
    node_environment
        The packed environment that agents and ranks of an allocation start in; None for that of
        this process.
    note
        Gets how nodes got that environment.
    fork_server
        What forks ranks; None starts an interpreter for each.
    begun
        What starts the ranks, where it was started before: with `agents`, and for this attempt.
    environment
        Variables that ranks get on top of this process's own.
    path
        Directory for logs, which exists; by default a temporary one that ends with the group.
    attempt
        Number that every frame of these ranks carries.
    log_to_file
        Whether each rank's output goes to a file of its own.

    Examples
    --------
    >>> group = WorkerGroup(num_workers=2)              # doctest: +SKIP
    >>> group.execute(os.getpid)                        # doctest: +SKIP
    [4101, 4102]
    >>> group.shutdown()                                # doctest: +SKIP
    """

    def __init__(
        self,
        num_workers: int = 1,
        num_cpus_per_worker: int = 1,
        num_gpus_per_worker: int = 0,
        *,
        placement: Placement | None = None,
        idle_nodes: Sequence[str] = (),
        in_allocation: bool = False,
        agents: NodeAgents | None = None,
        mpi: str = "auto",
        srun_args: tuple[str, ...] = (),
        is_slice: bool = False,
        container: RankContainer | None = None,
        node_environment: NodeEnvironment | None = None,
        note: Callable[[Brought], None] = lambda brought: None,
        fork_server: RankForks | None = None,
        begun: StepProcess | None = None,
        environment: Mapping[str, str] | None = None,
        path: Path | None = None,
        attempt: int = 1,
        log_to_file: bool = True,
    ) -> None:
        self._resources = {"CPU": num_cpus_per_worker, "GPU": num_gpus_per_worker}
        self._is_placed_here = placement is None
        self.placement = placement or self._place(num_workers)
        self.attempt = attempt
        self.lost_nodes: Mapping[str, bool] = {}
        """Nodes that are lost; true if they are silent, false if their agent is gone."""
        self.missing_nodes: tuple[str, ...] = ()
        """Nodes whose agents had not come when the start failed."""
        self._idle_nodes = tuple(idle_nodes)
        self._mpi = mpi
        self._srun_args = srun_args
        self._is_slice = is_slice
        self._container = container
        self._node_environment = node_environment
        self._note = note
        self._fork_server = fork_server
        self._begun = begun
        self._environment = dict(environment or {})
        self._log_to_file = log_to_file
        self._num_threads = num_cpus_per_worker
        self._own_path = path is None
        self._paths = RunPaths(path or Path(tempfile.mkdtemp(prefix="hpctrain-group-")))
        self.health = Health(
            num_nodes=self.placement.num_nodes + len(idle_nodes), gpus_on=self.placement.gpus_on
        )
        """What its nodes have reported of themselves, even if the start failed."""
        self._hub: Hub | None = None
        self._step: StepProcess | None = None
        self._is_watched = False
        self._agents: NodeAgents | None = None
        if in_allocation:
            self._agents = agents or NodeAgents(self._paths)
        self._own_agents = agents is None
        self._workers: dict[int, WorkerMetadata] = {}
        self._frames: deque[Frame] = deque()
        self._calls = Calls(self._receive, self._explain_death)
        self._examiner = Examiner()
        if self._is_placed_here and self._own_path:
            self.start()

    def _place(self, num_workers: int) -> Placement:
        return place_on_one_node(
            ScalingConfig(
                num_workers=num_workers,
                use_gpu=self._resources["GPU"] > 0,
                resources_per_worker={k: v for k, v in self._resources.items() if v},
            )
        )

    def __len__(self) -> int:
        """Return the number of ranks."""
        return self.placement.num_workers

    @property
    def workers(self) -> list[WorkerMetadata]:
        """Where each rank lives, by rank."""
        return [self._workers[rank] for rank in sorted(self._workers)]

    @property
    def hostnames(self) -> tuple[str, ...]:
        """The nodes, by node rank."""
        return tuple(
            dict.fromkeys(
                w.hostname for w in sorted(self.workers, key=lambda w: (w.node_rank, w.rank))
            )
        )

    def start(self, timeout_s: float = timeouts.START_OF_WORKER_GROUP_S) -> None:
        """Start the ranks, or start them again, and wait until all have joined one MPI world.

        Raises
        ------
        LaunchError
            If they cannot be started, do not find each other, or do not come in time.
        """
        if self._hub is not None:
            raise ValueError("this WorkerGroup is started already; call shutdown() first.")
        try:
            self._start(timeout_s)
        except OSError as error:
            # Of the run directory or of /tmp: full for a moment, or away.
            raise LaunchError(
                f"the ranks cannot be started: {error}", transient=may_pass(error)
            ) from error

    def _start(self, timeout_s: float) -> None:
        if self._own_path:
            self._paths.root.mkdir(mode=0o700, exist_ok=True)
        make_directory(self._paths.logs(self.attempt), below=self._paths.root)
        if self._agents is None:
            self._hub = Hub(attempt=self.attempt)
        else:
            if self._node_environment is not None:
                self._bring(self._node_environment)
            self._hub = self._agents.gather(
                self.placement,
                self._idle_nodes,
                attempt=self.attempt,
                environment=self._node_environment,
            )
        self.lost_nodes = self._hub.lost_nodes
        try:
            if self._agents is None:
                self._start_here()
            elif self._begun is not None:
                self._step, self._begun = self._begun, None
            else:
                library = None if self._container is None else self._check(self._container)
                if (slot := self._agents.slot_step) is not None:
                    self._start_step(slot.launcher(), self._agents.socket, local=True, slot=slot)
                else:
                    launcher = self._agents.mpiexec
                    launcher = launcher or find_step_launcher(self._mpi, library=library)
                    self._refuse_shared_gpus(launcher)
                    self._start_step(launcher, self._agents.socket, local=False)
            assert self._step is not None
            rendezvous = Rendezvous(
                self.poll,
                examine=self.examine,
                step=self._step,
                agents=None if self._agents is None else self._agents.step,
                size=len(self),
                stacks=self._paths.stacks(self.attempt),
                health=self.health,
                find_down=list if self._agents is None else self._agents.find_down,
                find_silent=self._find_silent,
                ask_after_s=math.inf if self._agents is None else self._agents.node_timeout_s,
            )
            self._workers = rendezvous.workers
            try:
                rendezvous.wait(timeout_s)
            finally:
                if self._fork_server is not None:
                    self._fork_server.note(rendezvous.not_forked)
            if self._step.pidfd is not None:
                self._hub.watch(self._step.pidfd, lambda: None)
                self._is_watched = True
        except BaseException as error:
            named = (*self.placement.nodes, *self._idle_nodes)
            self.missing_nodes = tuple(node for node in named if node not in self._hub.nodes)
            self.shutdown(patience_s=0)
            if self._agents is not None and isinstance(error, LaunchError):
                self._agents.give_slot_step_up(str(error))
            raise

    def _bring(self, environment: NodeEnvironment) -> None:
        nodes = (*self.placement.nodes, *self._idle_nodes) if self.placement.nodes else ()
        brought = environment.bring(
            nodes, self.placement.num_nodes, log=self._paths.environment_log(self.attempt)
        )
        if brought is not None:
            self._note(brought)

    def _check(self, container: RankContainer) -> str:
        """Return which MPI library a container has, once it has started on each node."""
        nodes = (*self.placement.nodes, *self._idle_nodes) if self.placement.nodes else ()
        container.check(
            nodes, self.placement.num_nodes, log=self._paths.container_log(self.attempt)
        )
        return container.library

    def node_use(self) -> Mapping[str, Mapping[str, Any]]:
        """Return what ranks use of their nodes, as their agents have measured it."""
        return {} if self._hub is None else self._hub.node_use()

    @property
    def share_a_terminal(self) -> bool:
        """Whether Ctrl-C reaches all ranks: they are in sessions of their own."""
        return False

    def broadcast(self, op: str, body: bytes = b"", **details: Any) -> None:
        """Send a command to every rank."""
        self._started_hub().send(op, body, **details)

    def poll(self, timeout_s: float = _POLL_S) -> list[Frame]:
        """Return what ranks have sent since the last call, waiting up to `timeout_s` for it."""
        hub = self._started_hub()
        if self._frames:
            frames = list(self._frames)
            self._frames.clear()
            return frames
        frames = [frame for frame in hub.poll(timeout_s) if not self._calls.take(frame)]
        return frames + self._examiner.frames()

    def examine(self, pids: Mapping[int, int], silent: Sequence[int]) -> None:
        """Ask for a look at ranks from outside their processes; frames ``examined`` come back.

        Parameters
        ----------
        pids
            Their processes.
        silent
            Those of them that did not answer where they are.
        """
        run = str(self._paths.root)
        if self._agents is not None:
            self._started_hub().send_agents("examine", run=run, silent=silent, pids=pids)
        else:
            header = {"attempt": self.attempt, "run": run, "silent": silent}
            self._examiner.begin(Frame(header, b"", b""), pids)

    def exit_status(self) -> int | None:
        """Return the exit status of srun or mpiexec, or None while it runs."""
        assert self._step is not None
        return self._step.returncode()

    def launcher_output(self) -> str:
        """Return the last lines that srun or mpiexec printed."""
        return "" if self._step is None else self._step.last_lines()

    def await_death_notice(self) -> None:
        """Let ranks leave; wait until srun or mpiexec prints how one died that was silent."""
        assert self._step is not None
        self.broadcast("end")
        deadline = Deadline(timeouts.DEATH_NOTICE_S)
        while self._step.returncode() is None and not deadline.is_over:
            if names_a_death(self._step.last_lines()):
                return
            self._step.wait(_LOOK_AGAIN_S)

    def stop_ranks(self, patience_s: float = 10.0) -> None:
        """Let ranks that wait for a command leave, and wait for the step to end."""
        assert self._hub is not None
        assert self._step is not None
        self._hub.send("exit")
        deadline = Deadline(patience_s)
        while self._step.returncode() is None and not deadline.is_over:
            for frame in self._hub.poll(_POLL_S):
                if frame.op == "answer":
                    self._calls.take(frame)

    def _find_silent(self) -> list[str]:
        """Return the nodes of the ranks that have lost their power, or their network."""
        return [node for node in self.placement.nodes if self.lost_nodes.get(node)]

    def shutdown(self, patience_s: float = 5.0) -> None:
        """End the ranks: let them leave if they can, kill them after `patience_s` seconds."""
        if self._begun is not None:
            self._begun.kill()
            self._begun = None
        if self._hub is None:
            return
        if patience_s > 0 and self._step is not None and self._workers:
            self.stop_ranks(patience_s)
        self.lost_nodes = dict(self.lost_nodes)
        if patience_s == 0:
            for pid in self._hub.local_pids:
                # It may be in MPI_Init, and is to end.
                unlink_mapped_segments(pid)
            # Ranks take a SIGTERM for Slurm's warning, and launchers are slow with SIGKILL.
            self._hub.send("end")
            self._await_ends(timeouts.RANKS_EXIT_S)
        all_dead = patience_s == 0 and self._workers and self._hub.num_ranks == 0
        if self._step is not None:
            if self._is_watched and self._step.pidfd is not None:
                self._hub.unwatch(self._step.pidfd)
            if all_dead:
                # What is left of the launcher holds nothing, and takes a while: the next group need
                # not wait. The interpreter does, as this is no daemon.
                threading.Thread(target=self._step.kill).start()
            else:
                self._step.kill(
                    **({"patience_s": timeouts.LOST_NODE_STEP_S} if self.lost_nodes else {})
                )
                if self._fork_server is not None:
                    # They are no descendants of the launcher, and end once it is gone.
                    self._fork_server.await_idle()
        if self._agents is None:
            self._hub.close()
            for worker in self._workers.values():
                remove_temporary_checkpoints(worker.tmp, worker.pid)
        elif self._own_agents or not self._workers:
            # After a start that failed, ranks that never sent who they are may still connect.
            self._agents.close(patience_s)
        self._hub = None
        self._calls.abandon()
        self._is_watched = False
        if self._own_path:
            shutil.rmtree(self._paths.root, ignore_errors=True)

    def add_workers(self, num_workers: int) -> None:
        """Start so many more ranks, of a group on this machine.

        The ranks of a group are one MPI world, so all of them start anew: what functions have left
        in the processes is gone, which is logged.

        Parameters
        ----------
        num_workers
            How many more.

        Raises
        ------
        ConfigError
            If it is not a number above 0, or the group's nodes were given by the caller.
        LaunchError
            If they cannot be started.
        """
        check_count("add_workers(num_workers=...)", num_workers, at_least=1)
        self._start_anew(len(self) + num_workers, f"add_workers({num_workers})")

    def remove_workers(self, worker_indexes: Sequence[int]) -> None:
        """End ranks, of a group on this machine; the others start anew, as in `add_workers`.

        Parameters
        ----------
        worker_indexes
            Their numbers. The others are numbered anew, without gaps.

        Raises
        ------
        ConfigError
            If none would be left, or the group's nodes were given by the caller.
        LaunchError
            If the others cannot be started.
        ValueError
            If there is no such rank.
        """
        removed = {self._check_rank(rank) for rank in worker_indexes}
        call = f"remove_workers({sorted(removed)})"
        if len(removed) == len(self):
            raise ConfigError(f"{call} would leave no rank. Call shutdown().")
        if removed:
            self._start_anew(len(self) - len(removed), call)

    def _start_anew(self, num_workers: int, call: str) -> None:
        if not self._is_placed_here:
            raise ConfigError(
                f"{call}: the nodes of this group were given to it. Call shutdown(), and make "
                f"another one for {num_workers} ranks."
            )
        placement = self._place(num_workers)
        log(f"{call}: all ranks start anew, as one MPI world of {num_workers}.")
        self.shutdown()
        self.placement = placement
        self.health = Health(num_nodes=placement.num_nodes, gpus_on=placement.gpus_on)
        self.start()

    def _await_ends(self, timeout_s: float) -> None:
        assert self._hub is not None
        deadline = Deadline(timeout_s)
        while self._hub.num_ranks and not deadline.is_over:
            self._hub.poll(_LOOK_AGAIN_S)

    def _start_here(self) -> None:
        assert self._hub is not None
        launcher = find_mpiexec(self._mpi)
        node, run_dir = socket.gethostname(), str(self._paths.root)
        remove_dead_checkpoints(tempfile.gettempdir())
        self.health.take({"node": node, **describe_node(tempfile.gettempdir())})
        self.health.take({"node": node, **examine_storage(run_dir, node=node)})
        name = new_socket_name()
        self._hub.listen_locally(name)
        self._start_step(launcher, name, local=True)

    def _refuse_shared_gpus(self, launcher: StepLauncher) -> None:
        if self._is_slice and self.placement.gpus_per_task and launcher.kind != "srun":
            raise LaunchError(
                f"{launcher.program} would give these ranks GPUs that other runs of the allocation "
                f"have. Only srun keeps them apart: use an MPI library that speaks a PMI of "
                f"srun --mpi=list, or SlurmConfig(mpi=...) with one of these."
            )

    def _start_step(
        self, launcher: StepLauncher, name: str, *, local: bool, slot: SlotStep | None = None
    ) -> None:
        self._step = start_ranks(
            launcher,
            self.placement,
            paths=self._paths,
            attempt=self.attempt,
            socket=name,
            num_threads=self._num_threads,
            environment=self._environment,
            srun_args=self._srun_args,
            log_to_file=self._log_to_file,
            local=local,
            on_hosts=self._agents is not None and self._agents.mpiexec is not None,
            is_slice=self._is_slice,
            container=self._container,
            node_environment=self._node_environment,
            fork_server=self._fork_server,
            slot=slot,
        )

    def _receive(self, timeout_s: float) -> None:
        self._frames.extend(
            f for f in self._started_hub().poll(timeout_s) if not self._calls.take(f)
        )

    def _explain_death(self, rank: int, function: str) -> WorkerError:
        hostname = self._workers[rank].hostname
        return WorkerError(
            f"rank {rank} of {len(self)} on {hostname} died during the call of {function}. Log: "
            f"{self._paths.rank_log(self.attempt, rank)}",
            rank=rank,
            hostname=hostname,
        )

    def _started_hub(self) -> Hub:
        if self._hub is None:
            raise ValueError("this WorkerGroup is not started; call start() first.")
        return self._hub
