"""Workers of elastic runs that are killed, and what becomes of the others."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain import ConfigError, Result, RunConfig, ScalingConfig, WorkerError
from hpctrain.execute.process import process_start_time
from hpctrain.horovod import HorovodConfig, HorovodTrainer, elastic_state
from tests import runs
from tests.waiting import wait_until

pytest.importorskip("horovod", reason="hpctrain install horovod")
pytestmark = pytest.mark.mpi

NUM_RANKS = 3
STEPS = 9
PATIENCE_S = 60.0


def elastic_training() -> Callable[[dict[str, Any]], Any]:
    """Return a training function that reports each step, commits every third, and is killed."""

    def die_once(config: dict[str, Any], step: int) -> None:
        import os
        import signal
        from pathlib import Path

        import hpctrain

        rank = hpctrain.get_context().get_world_rank()
        for killed, at_step in config["kill"]:
            done = Path(config["marks"]) / f"killed-{killed}-at-{at_step}"
            if (killed, at_step) == (rank, step) and not done.exists():
                done.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    class Opened:
        """A connection that is opened with the training function, as by a module of the user's."""

        def __getstate__(self) -> bool:
            return True

        def __setstate__(self, state: bool) -> None:
            import socket

            self._here, self._there = socket.socketpair()

        def check(self) -> None:
            self._here.sendall(b"x")

    opened = Opened()

    def train_loop(config: dict[str, Any]) -> Any:
        import os

        import horovod.torch as hvd
        import torch
        from torch import nn

        import hpctrain.horovod
        from hpctrain import Checkpoint

        torch.manual_seed(hvd.rank())
        model = nn.Linear(4, 1).double()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            named_parameters=model.named_parameters(),
        )
        generator = torch.Generator().manual_seed(3)
        inputs = torch.randn(STEPS, 12, 4, generator=generator).double()
        targets = torch.randn(STEPS, 12, 1, generator=generator).double()

        @hvd.elastic.run
        def train(state: Any) -> Any:
            while state.step < STEPS:
                die_once(config, state.step)
                rank, size = hvd.rank(), hvd.size()
                optimizer.zero_grad()
                loss = (
                    (model(inputs[state.step, rank::size]) - targets[state.step, rank::size]) ** 2
                ).mean()
                loss.backward()
                optimizer.step()
                loss = hvd.allreduce(loss.detach(), name="loss").item()
                saved = None
                if rank == 0 and state.step % 3 == 2:
                    saved = Checkpoint.from_dict({"step": state.step})
                hpctrain.report({"step": state.step, "loss": loss}, saved)
                state.step += 1
                if state.step % 3 == 0:
                    state.commit()
            mine = torch.cat([p.detach().flatten() for p in model.parameters()])
            return hvd.allgather_object((os.getpid(), mine.tolist()), name="mine")

        begun_as = os.getpid(), hvd.rank()
        state = hpctrain.horovod.elastic_state(model, optimizer, step=0)
        trained = train(state)
        opened.check()
        return begun_as, trained

    return train_loop


def fit(storage: Path, *, kill: list[tuple[int, int]], num_workers: int = NUM_RANKS) -> Result:
    return runs.fit(
        elastic_training(),
        storage,
        num_workers=num_workers,
        trainer=HorovodTrainer,
        train_loop_config={"kill": kill, "marks": str(storage)},
        horovod_config=HorovodConfig(max_replacements=1),
        resources_per_worker={"CPU": 1},
    )


def losses(result: Result) -> list[tuple[int, float]]:
    return [(metrics["step"], metrics["loss"]) for metrics in result.metrics_history]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return fit(tmp_path_factory.mktemp("undisturbed"), kill=[])


def test_without_a_death_an_elastic_run_is_a_run(undisturbed: Result) -> None:
    (pid, rank), everything = undisturbed.return_value
    assert rank == 0
    assert pid == everything[0][0]
    assert len({tuple(parameters) for _, parameters in everything}) == 1
    assert [step for step, _ in losses(undisturbed)] == list(range(STEPS))


def test_killed_workers_are_replaced_and_all_go_on_from_the_last_commit(
    undisturbed: Result, tmp_path: Path
) -> None:
    # Rank 0, which the others get their state from, and later one that is not.
    killed = [(0, 4), (1, 8)]
    result = fit(tmp_path, kill=killed)
    assert sorted(path.name for path in tmp_path.glob("killed-*")) == sorted(
        f"killed-{rank}-at-{step}" for rank, step in killed
    )
    # Where ranks change places, and tensors are fused otherwise, sums are rounded otherwise.
    assert losses(result) == [(s, pytest.approx(x, rel=1e-12)) for s, x in losses(undisturbed)]
    (pid, _), everything = result.return_value
    parameters = [of_rank for _, of_rank in everything]
    expected = undisturbed.return_value[1][0][1]
    assert parameters == [parameters[0]] * NUM_RANKS
    assert parameters[0] == pytest.approx(expected, rel=1e-10)
    # What rank 0 of MPI returned is of its own worker, the new one where the first was killed.
    assert pid in [of_rank for of_rank, _ in everything]
    assert len(result.attempts) == 1, "no rank was started again"
    assert result.checkpoint.to_dict() == {"step": STEPS - 1}


def test_an_attempt_fails_after_as_many_replacements_as_were_asked_for(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"worker of rank 1 .*signal 9 after report \d"):
        fit(tmp_path, kill=[(1, 4), (1, 5)], num_workers=2)


def test_what_an_elastic_training_function_raises_arrives_with_its_traceback(
    tmp_path: Path,
) -> None:
    def raise_on_rank_1() -> None:
        import hpctrain

        if hpctrain.get_context().get_world_rank() == 1:
            raise KeyError("no such column")

    with pytest.raises(WorkerError, match=r"(?s)rank 1 .*in raise_on_rank_1.*no such column") as e:
        HorovodTrainer(
            raise_on_rank_1,
            horovod_config=HorovodConfig(max_replacements=1),
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=tmp_path, launcher="local", verbose=0),
        ).fit()
    assert isinstance(e.value.worker_failures[1], KeyError)


def test_an_elastic_run_stops_where_it_was_asked_to_even_if_nobody_listens(tmp_path: Path) -> None:
    def train() -> None:
        import itertools

        import hpctrain.horovod

        hpctrain.horovod.elastic_state()
        try:
            for step in itertools.count():
                hpctrain.report({"step": step})
        finally:
            hpctrain.heartbeat()
            print("unwound")

    result = HorovodTrainer(
        train,
        horovod_config=HorovodConfig(max_replacements=1),
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(
            storage_path=tmp_path, name="run", launcher="local", verbose=0, stop={"step": 3}
        ),
    ).fit()
    assert result.state == "finished"
    assert len(result.metrics_history) >= 4
    assert "unwound" in (result.path / "logs/1/rank-00000.out").read_text()


def test_reports_are_refused_where_nobody_counts_them(tmp_path: Path) -> None:
    def train() -> None:
        import hpctrain

        hpctrain.report({"step": 0})

    with pytest.raises(WorkerError, match=r"hpctrain\.horovod\.elastic_state"):
        HorovodTrainer(
            train,
            horovod_config=HorovodConfig(max_replacements=1),
            scaling_config=ScalingConfig(num_workers=1),
            run_config=RunConfig(storage_path=tmp_path, launcher="local", verbose=0),
        ).fit()


def test_what_cannot_be_elastic_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="transport='gloo'"):
        HorovodConfig(transport="mpi", max_replacements=1)
    elastic = HorovodConfig(max_replacements=1)
    with pytest.raises(ConfigError, match="ElasticSampler"):
        HorovodTrainer(lambda: None, horovod_config=elastic, datasets={"train": [1]})
    with pytest.raises(ConfigError, match="num_workers=1"):
        HorovodTrainer(
            lambda: None, horovod_config=elastic, scaling_config=ScalingConfig(num_workers=0)
        )


def test_an_elastic_state_is_refused_in_a_run_that_is_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_replacements"):
        HorovodTrainer(
            elastic_state,
            scaling_config=ScalingConfig(num_workers=0),
            run_config=RunConfig(storage_path=tmp_path, verbose=0),
        ).fit()


KEEPER = """
import os, signal, subprocess, sys
argv = [sys.executable, "-m", "hpctrain.horovod.elastic_worker", sys.argv[1], str(os.getpid())]
print(subprocess.Popen(argv, pass_fds=[int(sys.argv[1])]).pid, flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("is_up", [True, False], ids=["that is up", "that only starts"])
def test_a_worker_does_not_outlive_its_rank(is_up: bool) -> None:
    # This end stays open here: it is not the end of the connection that ends the worker.
    ours, theirs = socket.socketpair()
    with ours, theirs:
        keeper = subprocess.Popen(
            [sys.executable, "-c", KEEPER, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert keeper.stdout is not None
        worker = int(keeper.stdout.readline())
        if is_up:
            wait_until(lambda: ignores(worker, signal.SIGTERM))
        keeper.communicate("\n", timeout=PATIENCE_S)
        assert keeper.returncode == -signal.SIGKILL
        wait_until(lambda: process_start_time(worker) is None)


def ignores(pid: int, number: signal.Signals) -> bool:
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return bool(int(status["SigIgn"], 16) >> (number - 1) & 1)
