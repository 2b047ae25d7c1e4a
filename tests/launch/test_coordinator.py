"""The coordinator of ranks that the user has started; here they are not there."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hpctrain.config import RunConfig
from hpctrain.errors import TrainingFailedError, WorkerError
from hpctrain.execute import attempt_executor
from hpctrain.launch import coordinator
from hpctrain.launch.coordinator import Coordinator
from hpctrain.plan import spec
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import read_status
from hpctrain.testing.fake_ranks import FakeRanks
from hpctrain.world import World
from tests.plans import make_plan
from tests.worlds import make_world


class FakeExistingRanks(FakeRanks):
    """Stands for `ExistingRanks`: real ones are in tests/launch/test_existing_ranks.py."""

    def __init__(
        self, paths: RunPaths, *, attempt: int, world: World, on_complete: Callable[..., None]
    ) -> None:
        super().__init__(world.world_size, share_a_terminal=True)
        self.connect = lambda: on_complete(("node0", "node1"))
        self.dismissed: list[tuple[str, Any]] = []

    def dismiss(self, op: str, body: bytes, *, patience_s: float) -> None:
        self.dismissed.append((op, spec.unpack(body)))


@pytest.fixture
def made(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(coordinator, "ExistingRanks", FakeExistingRanks)
    monkeypatch.setattr(attempt_executor.timeouts, "FURTHER_FAILURES_S", 0.01)
    plan = make_plan("spmd")
    request = SimpleNamespace(
        paths=paths, run_config=RunConfig(name="run", verbose=0), resume_from=None
    )
    submission: Any = SimpleNamespace(request=request, plan=plan)
    return Coordinator(submission, make_world(0, 2, num_nodes=2, attempt=0))


def ranks_of(made: Coordinator) -> FakeExistingRanks:
    ranks: Any = made.ranks
    assert isinstance(ranks, FakeExistingRanks)
    return ranks


def end(ranks: FakeExistingRanks) -> None:
    for rank in (0, 1):
        ranks.send("done", rank, b"value" if rank == 0 else b"")


def test_the_result_of_a_run_is_sent_to_all_ranks(made: Coordinator, paths: RunPaths):
    ranks = ranks_of(made)
    assert (made.attempt_start.attempt, made.attempt_start.first_report) == (1, 0)
    ranks.connect()
    status = read_status(paths)
    assert status is not None
    assert (status.state, status.nodes) == (RunState.RUNNING, ("node0", "node1"))
    end(ranks)
    made.run()
    ((op, result),) = ranks.dismissed
    assert (op, result.state, result.error) == ("finished", "finished", None)
    assert paths.return_value.read_bytes() == b"value"


def test_the_error_of_a_rank_is_sent_to_all_ranks(made: Coordinator, paths: RunPaths):
    ranks = ranks_of(made)
    ranks.connect()
    ranks.fail(1, "no more")
    made.run()
    ((op, error),) = ranks.dismissed
    assert op == "run-failed"
    assert isinstance(error, WorkerError)
    assert "no more" in str(error)
    status = read_status(paths)
    assert status is not None
    assert status.state is RunState.FAILED
    (ended,) = (e for e in read_events(paths) if e["event"] == "attempt-ended")
    assert ended["kind"] == "worker"


def test_ranks_get_an_error_that_each_can_open_where_the_end_cannot_be_recorded(
    made: Coordinator, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("of a class that others may not have")

    ranks = ranks_of(made)
    ranks.connect()
    end(ranks)
    monkeypatch.setattr(made._recorder, "end", refuse)
    made.run()
    ((op, error),) = ranks.dismissed
    assert op == "run-failed"
    assert type(error) is TrainingFailedError
    assert "ZeroDivisionError: of a class" in str(error)


def test_a_run_that_met_its_end_with_an_error_of_a_callback_is_finished_for_its_ranks(
    made: Coordinator, monkeypatch: pytest.MonkeyPatch
):
    ranks = ranks_of(made)
    ranks.connect()
    end(ranks)

    def fail(step: Any) -> None:
        raise ValueError("no such server")

    monkeypatch.setattr(made._recorder, "finish_validations", fail)
    made.run()
    ((op, result),) = ranks.dismissed
    # They have all returned: nothing is to be aborted.
    assert op == "finished"
    assert "ValueError: no such server" in str(result.error)
