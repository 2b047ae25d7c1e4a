"""What each rank of a run that the user has started does where its run cannot begin, or fails."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpctrain.config import RunConfig, ScalingConfig
from hpctrain.control.wire import Frame
from hpctrain.errors import ConfigError, LaunchError, TrainingFailedError, WorkerError
from hpctrain.launch import spmd
from hpctrain.plan import spec
from hpctrain.world import World
from tests.worlds import make_world


def world(rank: int, size: int = 2) -> World:
    return make_world(rank, size, attempt=0)


class Comm:
    """Stands for MPI's: a broadcast gives rank 0's object, on another rank what the test sets."""

    def __init__(self, rank: int, opening: Any = None) -> None:
        self.rank = rank
        self.opening = opening

    def gather(self, value: Any) -> list[Any] | None:
        return [value, value] if self.rank == 0 else None

    def bcast(self, value: Any) -> Any:
        if self.rank == 0:
            self.opening = value
        return self.opening


@pytest.fixture
def request_of(tmp_path: Path) -> Any:
    request: Any = SimpleNamespace(
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="run", storage_path=str(tmp_path)),
    )
    request.named = lambda: request
    return request


def join(monkeypatch: pytest.MonkeyPatch, rank: int, opening: Any = None) -> Comm:
    comm = Comm(rank, opening)
    monkeypatch.setattr(spmd, "_join", lambda _: (world(rank), comm))
    monkeypatch.setattr(spmd, "see_gpus", lambda _: SimpleNamespace(num=0))
    monkeypatch.setattr(spmd, "check_gpus_of_ranks", lambda *_: None)
    return comm


def raise_(error: BaseException) -> Any:
    def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


def test_an_error_of_rank_0_is_raised_on_every_rank_and_shown_by_one(
    request_of: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(spmd, "_open", raise_(ConfigError("num_workers=3")))
    comm = join(monkeypatch, 0)
    with pytest.raises(ConfigError, match="num_workers=3") as raised:
        spmd.fit_spmd(request_of)
    assert not raised.value.is_shown_elsewhere
    join(monkeypatch, 1, comm.opening)
    with pytest.raises(ConfigError, match="num_workers=3") as raised:
        spmd.fit_spmd(request_of)
    assert raised.value.is_shown_elsewhere


def test_a_full_disk_on_rank_0_is_an_error_of_every_rank(
    request_of: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(spmd, "_open", raise_(OSError(28, "No space left on device")))
    comm = join(monkeypatch, 0)
    with pytest.raises(LaunchError, match=r"rank 0 cannot open the run in .*No space left"):
        spmd.fit_spmd(request_of)
    assert isinstance(comm.opening, LaunchError)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_run_that_is_finished_is_returned_on_every_rank_and_starts_nothing(
    request_of: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rank: int
):
    result: Any = SimpleNamespace(path=tmp_path, status="status", error=None)
    opening = spmd._Opening(paths=request_of, start=None, content=b"", result=result)
    monkeypatch.setattr(spmd, "_open", lambda *_: (opening, None))
    monkeypatch.setattr(spmd, "_run_rank", raise_(AssertionError("a rank was started")))
    join(monkeypatch, rank, opening)
    assert spmd.fit_spmd(request_of).path == tmp_path


def test_another_number_of_ranks_than_workers_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spmd, "_joined", (world(0, size=3), None))
    with pytest.raises(ConfigError, match="num_workers=2, but this process is one of 3 ranks"):
        spmd._join(ScalingConfig(num_workers=2))
    assert spmd._join(ScalingConfig(num_workers=(2, 4)))[0].world_size == 3


class Aborts:
    """Takes the place of ``MPI_Abort``."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.done = threading.Event()

    def __call__(self, code: int) -> None:
        self.codes.append(code)
        self.done.set()


@pytest.fixture
def aborts(monkeypatch: pytest.MonkeyPatch) -> Aborts:
    aborts = Aborts()
    monkeypatch.setattr(spmd.mpi, "abort", aborts)
    monkeypatch.setattr(spmd, "_RANK_0_FIRST_S", 0.01)
    return aborts


def failed(error: BaseException) -> Frame:
    return Frame({"op": "run-failed"}, spec.pack(error, what="the error"), b"")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_raises_the_error_that_rank_0_sent(aborts: Aborts, rank: int):
    run_error = spmd._RunError(world(rank))
    run_error.receive(failed(WorkerError("rank 1 of 2 on node1 failed")))
    error = run_error.error("something else")
    assert isinstance(error, WorkerError)
    assert error.is_shown_elsewhere is (rank > 0)
    assert aborts.codes == []


def test_a_rank_that_receives_nothing_of_rank_0_raises_its_own_error(
    aborts: Aborts, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(spmd.timeouts, "SPMD_END_S", 0.01)
    error = spmd._RunError(world(1)).error("rank 1 failed")
    assert isinstance(error, TrainingFailedError)
    assert str(error) == "rank 1 failed"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_hangs_is_aborted_and_rank_0_shows_the_error(
    aborts: Aborts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: int
):
    monkeypatch.setattr(spmd.timeouts, "SPMD_END_S", 0.01)
    spmd._RunError(world(rank)).receive(failed(WorkerError("rank 1 of 2 on node1 failed")))
    assert aborts.done.wait(30)
    assert aborts.codes == [TrainingFailedError.exit_code]
    shown = capsys.readouterr().err
    expected = "rank 1 of 2 on node1 failed" if rank == 0 else "rank 1 hangs, and ends"
    assert expected in shown


def test_a_rank_that_hangs_when_rank_0_is_gone_is_aborted(
    aborts: Aborts, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(spmd.timeouts, "SPMD_END_S", 0.01)
    spmd._RunError(world(1)).lose_rank_0()
    assert aborts.codes == [TrainingFailedError.exit_code]
