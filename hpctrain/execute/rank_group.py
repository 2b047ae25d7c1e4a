"""`RankGroup`: ranks that start together, send frames, call functions, and end together."""

from __future__ import annotations

import math
import shutil
import socket
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hpctrain import timeouts
from hpctrain.control.hub import Hub
from hpctrain.control.local_socket import new_socket_name
from hpctrain.control.wire import Frame
from hpctrain.errors import LaunchError, WorkerError
from hpctrain.execute.calls import Calls, CallsFunctions
from hpctrain.execute.examine import Examiner, in_parts
from hpctrain.execute.group_end import (
    await_death_notice,
    await_exits,
    end_ranks,
    kill_step,
    stop_ranks,
)
from hpctrain.execute.group_start import GroupStart
from hpctrain.execute.health import Health
from hpctrain.execute.node_agents import NodeAgents
from hpctrain.execute.node_report import describe_node, examine_storage
from hpctrain.execute.process import StepProcess
from hpctrain.execute.rendezvous import Rendezvous, WorkerMetadata
from hpctrain.execute.spare_ranks import SpareRanks
from hpctrain.execute.step_launcher import find_mpiexec
from hpctrain.plan.resources import Placement
from hpctrain.rundir.files import make_directory, may_pass
from hpctrain.temporary_checkpoint import remove_dead_checkpoints, remove_temporary_checkpoints

_POLL_S = 0.1


class RankGroup(CallsFunctions):
    """MPI ranks of an attempt, on this machine or on nodes with agents.

    Parameters
    ----------
    placement
        How they lie on nodes.
    how
        How they start.
    idle_nodes
        Nodes of the job that have no ranks, but an agent.
    agents
        Those of the nodes; None if the ranks are on this machine alone.
    owns_agents
        Whether the agents end with the group.
    owns_path
        Whether the directory for logs ends with it.
    begun
        What starts the ranks, where it was started before.
    """

    def __init__(
        self,
        placement: Placement,
        how: GroupStart,
        *,
        idle_nodes: Sequence[str],
        agents: NodeAgents | None,
        owns_agents: bool,
        owns_path: bool,
        begun: StepProcess | None,
    ) -> None:
        self.placement = placement
        self.attempt = how.step.attempt
        self.lost_nodes: Mapping[str, bool] = {}
        """Nodes that are lost; true if they are silent, false if their agent is gone."""
        self.missing_nodes: tuple[str, ...] = ()
        """Nodes whose agents had not come when the start failed."""
        self.health = Health(
            num_nodes=placement.num_nodes + len(idle_nodes),
            gpus_on=placement.gpus_on,
            is_slice=how.step.is_slice,
        )
        """What its nodes have reported of themselves, even if the start failed."""
        self._how, self._paths = how, how.step.paths
        self._idle_nodes = tuple(idle_nodes)
        self._agents, self._owns_agents = agents, owns_agents
        self._owns_path = owns_path
        self._begun = begun
        self._hub: Hub | None = None
        self._step: StepProcess | None = None
        self._is_watched = False
        self._workers: dict[int, WorkerMetadata] = {}
        self._frames: deque[Frame] = deque()
        self._imported: set[str] = set()
        self._calls = Calls(self._receive, self._explain_death)
        self._examiner = Examiner()

    def __len__(self) -> int:
        """Return the number of ranks."""
        return self.placement.num_workers

    @property
    def workers(self) -> list[WorkerMetadata]:
        """Where each rank lives, by rank."""
        return [self._workers[rank] for rank in sorted(self._workers)]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that it has, with ranks or without, by the names that Slurm has for them."""
        return (*self.placement.nodes, *self._idle_nodes)

    @property
    def hostnames(self) -> tuple[str, ...]:
        """The nodes, by node rank."""
        in_order = sorted(self.workers, key=lambda worker: (worker.node_rank, worker.rank))
        return tuple(dict.fromkeys(worker.hostname for worker in in_order))

    def start(
        self,
        timeout_s: float = timeouts.START_OF_WORKER_GROUP_S,
        *,
        check_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the ranks, or start them again, and wait until all have joined one MPI world.

        Parameters
        ----------
        check_stop
            Raises if the wait is to end: called about once a second.

        Raises
        ------
        LaunchError
            If they cannot be started, do not find each other, or do not come in time.
        """
        if self._hub is not None:
            raise ValueError("this WorkerGroup is started already; call shutdown() first.")
        try:
            self._start(timeout_s, check_stop)
        except OSError as error:
            # Of the run directory or of /tmp: full for a moment, or away.
            raise LaunchError(
                f"the ranks cannot be started: {error}", transient=may_pass(error)
            ) from error

    def _start(self, timeout_s: float, check_stop: Callable[[], None]) -> None:
        if self._owns_path:
            self._paths.root.mkdir(mode=0o700, exist_ok=True)
        make_directory(self._paths.logs(self.attempt), below=self._paths.root)
        if self._agents is None:
            self._hub = Hub(attempt=self.attempt)
        else:
            self._how.bring_environment(self.placement, self._idle_nodes)
            spare = self._agents.spare
            if spare is not None and self._begun is None:
                self._begun = self._take_spare(spare, self._agents)
            self._hub = self._agents.gather(
                self.placement,
                self._idle_nodes,
                attempt=self.attempt,
                environment=self._how.step.node_environment,
                spare="" if spare is None else spare.taken,
            )
        self.lost_nodes = self._hub.lost_nodes
        try:
            if self._agents is None:
                self._step = self._start_here(self._hub)
            elif self._begun is not None:
                self._step, self._begun = self._begun, None
            else:
                self._step = self._how.start_on_nodes(
                    self.placement, self._idle_nodes, self._agents
                )
            self._await_ranks(self._step, timeout_s, check_stop)
            if self._step.pidfd is not None:
                self._hub.watch(self._step.pidfd, lambda: None)
                self._is_watched = True
            if self._agents is not None and self._agents.spare is not None:
                self._agents.spare.note_progress()
        except BaseException as error:
            self.missing_nodes = tuple(node for node in self.nodes if node not in self._hub.nodes)
            self.shutdown(patience_s=0)
            if self._agents is not None and isinstance(error, LaunchError):
                self._agents.give_slot_up(str(error))
            raise

    def _take_spare(self, spare: SpareRanks, agents: NodeAgents) -> StepProcess | None:
        return spare.take(
            (self.attempt, self._how.mpi, self.placement),
            size=len(self),
            log=self._paths.launcher_log(self.attempt),
            find=lambda name: agents.waiting(self.placement, self._idle_nodes, spare=name),
        )

    def _prepare_spare(self, spare: SpareRanks, agents: NodeAgents) -> None:
        spare.prepare(
            (self.attempt + 1, self._how.mpi, self.placement),
            lambda name: self._how.start_spare(self.placement, agents, name),
        )

    def start_following(
        self, placement: Placement, idle_nodes: Sequence[str], agents: NodeAgents
    ) -> None:
        """Start ranks of the next attempt beside agents of their own, which wait for it.

        Not collective. None wait any more for one that is as this group.
        """
        assert agents.spare is not None
        if self._agents is not None and self._agents.spare is not None:
            self._agents.spare.omit()
        agents.gather(placement, idle_nodes, attempt=self.attempt)
        agents.spare.begin(
            (self.attempt + 1, self._how.mpi, placement),
            lambda name: self._how.start_spare(placement, agents, name),
        )

    def _start_here(self, hub: Hub) -> StepProcess:
        launcher = find_mpiexec(self._how.mpi)
        node, run_dir = socket.gethostname(), str(self._paths.root)
        remove_dead_checkpoints(tempfile.gettempdir())
        self.health.take({"node": node, **describe_node(tempfile.gettempdir())})
        self.health.take({"node": node, **examine_storage(run_dir, node=node)})
        name = new_socket_name()
        hub.listen_locally(name)
        return self._how.start_here(launcher, self.placement, name)

    def _await_ranks(self, step: StepProcess, timeout_s: float, check: Callable[[], None]) -> None:
        """Wait until all ranks have joined one MPI world."""
        agents = self._agents
        rendezvous = Rendezvous(
            self.poll,
            examine=self.examine,
            step=step,
            agents=None if agents is None else agents.step,
            size=len(self),
            stacks=self._paths.stacks(self.attempt),
            health=self.health,
            find_down=list if agents is None else agents.find_down,
            find_silent=self._find_silent,
            check_stop=check,
            ask_after_s=math.inf if agents is None else agents.node_timeout_s,
        )
        self._workers = rendezvous.workers
        try:
            rendezvous.wait(timeout_s)
        finally:
            if self._how.step.fork_server is not None:
                self._how.step.fork_server.note(rendezvous.not_forked)

    def _find_silent(self) -> list[str]:
        """Return the nodes of the ranks that have lost their power, or their network."""
        return [node for node in self.placement.nodes if self.lost_nodes.get(node)]

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
        self._note_imported(frames)
        return frames + self._examiner.frames()

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Call back from `poll`, and end its wait, when a descriptor becomes readable."""
        self._started_hub().watch(descriptor, callback)

    def unwatch(self, descriptor: int) -> None:
        """Undo `watch`."""
        self._started_hub().unwatch(descriptor)

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
            for part in in_parts(pids, silent):
                self._started_hub().send_agents("examine", run=run, **part)
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

    def await_death_notice(self, silent: Sequence[int]) -> tuple[int, int] | None:
        """Let ranks leave; wait until it is known how one died that was silent.

        Return the rank and its wait status; None if srun or mpiexec prints them, or they are not
        known.
        """
        assert self._step is not None
        pids = {rank: self._workers[rank].pid for rank in silent if rank in self._workers}
        return await_death_notice(
            self._started_hub(), self._step, pids=pids, fork_server=self._how.step.fork_server
        )

    def stop_ranks(self, patience_s: float = 10.0) -> None:
        """Let ranks that wait for a command leave, and wait for the step to end."""
        assert self._hub is not None
        assert self._step is not None
        stop_ranks(self._hub, self._step, self._calls.take, patience_s=patience_s)

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
            end_ranks(self._hub)
        are_dead = patience_s == 0 and bool(self._workers) and self._hub.num_ranks == 0
        if self._step is not None:
            if self._is_watched and self._step.pidfd is not None:
                self._hub.unwatch(self._step.pidfd)
            kill_step(
                self._step,
                are_dead=are_dead,
                has_lost_nodes=bool(self.lost_nodes),
                fork_server=self._how.step.fork_server,
            )
            if self._agents is not None and not (are_dead or self.lost_nodes):
                # Agents that are not known to have lost their ranks serve no further attempt.
                await_exits(self._hub)
        if self._agents is None:
            self._hub.close()
            for worker in self._workers.values():
                remove_temporary_checkpoints(worker.tmp, worker.tmp_owner)
        elif self._owns_agents or not self._workers:
            # After a start that failed, ranks that never sent who they are may still connect.
            self._agents.close(patience_s)
        self._hub = None
        self._calls.abandon()
        self._is_watched = False
        if self._owns_path:
            shutil.rmtree(self._paths.root, ignore_errors=True)

    def _receive(self, timeout_s: float) -> None:
        hub = self._started_hub()
        frames = [frame for frame in hub.poll(timeout_s) if not self._calls.take(frame)]
        self._note_imported(frames)
        self._frames.extend(frames)

    def _note_imported(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            if frame.op == "imported":
                self._imported.update(frame.header["modules"])
                if self._agents is not None and self._agents.spare is not None:
                    self._agents.spare.note_progress()
        if self._imported and self._how.step.fork_server is not None:
            self._how.step.fork_server.prepare_restart(self._imported)
        if self._agents is not None and self._agents.spare is not None:
            self._prepare_spare(self._agents.spare, self._agents)

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
