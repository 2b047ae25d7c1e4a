"""A failing rank ends the run within seconds, and says what happened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hpctrain import (
    Checkpoint,
    FailureConfig,
    Result,
    TrainingFailedError,
    WorkerError,
)
from tests.runs import fit

# A start of four ranks, a failure, and the end of the others, on a machine that is busy. The others
# would wait for ten minutes.
pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]


def _save_then(end: str) -> Any:
    def train() -> None:
        import ctypes
        import os
        import signal

        import hpctrain
        import hpctrain.collective

        rank = hpctrain.get_context().get_world_rank()
        hpctrain.report({"step": 0}, Checkpoint.from_dict({"step": 0}) if rank == 0 else None)
        hpctrain.collective.barrier()
        if rank == 2:
            if end == "raise":
                raise ValueError("the loss is NaN")
            if end == "os._exit":
                os._exit(7)
            if end == "segfault":
                ctypes.string_at(0)
            if end == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        # The others hang here, as in any collective.
        hpctrain.collective.barrier(timeout_s=600)

    return train


def test_an_exception_carries_traceback_rank_node_log_and_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(WorkerError) as caught:
        fit(_save_then("raise"), tmp_path, num_workers=4)
    message = str(caught.value)
    assert (
        f"rank 2 of 4 on {os.uname().nodename} failed after report 1: ValueError: the loss"
        in message
    )
    assert "logs/1/rank-00002.out" in message
    assert "Last complete checkpoint:" in message
    assert "checkpoints/000001" in message
    assert 'raise ValueError("the loss is NaN")' in message
    assert "hpctrain/worker" not in message.partition("Traceback")[2], "only the user's own frames"
    assert caught.value.rank == 2
    assert isinstance(caught.value.__cause__, ValueError)
    assert "the loss is NaN" in (tmp_path / "run/logs/1/rank-00002.out").read_text()
    result = Result.from_path(tmp_path / "run")
    assert result.state == "failed"
    assert isinstance(result.error, WorkerError)
    assert result.error.rank == 2
    assert (tmp_path / "run/failures/1/rank-00002.json").exists()


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        # Whether memory is among the causes in brackets depends on the machine's cgroups.
        ("os._exit", "its process ended (os._exit, a crash, or "),
        ("segfault", "Segmentation fault, a crash in compiled code"),
        ("kill", "killed by SIGKILL"),
    ],
)
def test_a_rank_that_dies_without_a_word_is_named(tmp_path: Path, end: str, reason: str) -> None:
    with pytest.raises(WorkerError, match=r"rank 2 of 4 .* without an exception") as caught:
        fit(_save_then(end), tmp_path, num_workers=4)
    assert reason in str(caught.value)
    assert "checkpoints/000001" in str(caught.value)
    briefs = {"segfault": "crashed (Segmentation fault)", "kill": "was killed (SIGKILL)"}
    assert caught.value.brief.endswith(briefs.get(end, "ended without an error"))


def test_a_module_that_only_the_driver_has_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys
    import types

    module = types.ModuleType("only_here")
    exec("def train():\n    pass\n", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(WorkerError, match=r"phase importing.*No module named 'only_here'"):
        fit(module.train, tmp_path, num_workers=2)


def test_reports_that_differ_in_number_are_an_error_with_and_without_a_checkpoint(
    tmp_path: Path,
) -> None:
    def make(with_checkpoint: bool) -> Any:
        def train() -> None:
            import hpctrain

            saved = Checkpoint.from_dict({"a": 1}) if with_checkpoint else None
            if hpctrain.get_context().get_world_rank() == 0:
                hpctrain.report({"step": 0}, saved)

        return train

    for with_checkpoint in (False, True):
        with pytest.raises(
            TrainingFailedError, match="rank 1 returned after 0 reports, but rank 0"
        ):
            fit(make(with_checkpoint), tmp_path / str(with_checkpoint), num_workers=2)


def test_bad_reports_name_the_rule(tmp_path: Path) -> None:
    def not_a_dict() -> None:
        import hpctrain

        hpctrain.report(0.5)  # type: ignore[arg-type]

    def missing_directory() -> None:
        import hpctrain

        hpctrain.report({"a": 1}, Checkpoint.from_directory("/no/such/directory"))

    with pytest.raises(WorkerError, match="metrics are a dict of names and numbers"):
        fit(not_a_dict, tmp_path / "a", num_workers=1)
    with pytest.raises(WorkerError, match=r"/no/such/directory'\) does not exist"):
        fit(missing_directory, tmp_path / "b", num_workers=1)


def test_a_failed_rank_is_restarted_from_the_newest_checkpoint_within_its_budget(
    tmp_path: Path,
) -> None:
    def train() -> int:
        import hpctrain

        context = hpctrain.get_context()
        checkpoint = hpctrain.get_checkpoint()
        first = checkpoint.to_dict()["step"] + 1 if checkpoint else 0
        for step in range(first, 4):
            if step == 2 and context.world.attempt == 1 and context.get_world_rank() == 1:
                raise RuntimeError("once")
            saved = Checkpoint.from_dict({"step": step})
            hpctrain.report({"step": step}, saved if context.get_world_rank() == 0 else None)
        return context.world.attempt

    result = fit(train, tmp_path, num_workers=2, failure_config=FailureConfig(max_failures=1))
    assert result.state == "finished"
    assert result.return_value == 2
    assert [m["step"] for m in result.metrics_history] == [0, 1, 2, 3]
    assert [a.cause for a in result.attempts][1] == "finished"
