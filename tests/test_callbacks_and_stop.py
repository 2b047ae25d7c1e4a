"""Callbacks, the stop rule, datasets, metadata and restore, with real ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hpctrain import (
    Checkpoint,
    ConfigError,
    DataConfig,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunContext,
    UserCallback,
    WorkerError,
)
from tests.runs import fit

pytestmark = pytest.mark.mpi


class Listening(UserCallback):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def after_report(
        self,
        run_context: RunContext,
        metrics: Sequence[Mapping[str, Any]],
        checkpoint: Checkpoint | None,
    ) -> None:
        self.heard.append(([m["rank"] for m in metrics], checkpoint and checkpoint.path.name))

    def after_exception(
        self, run_context: RunContext, worker_exceptions: Mapping[int, BaseException]
    ) -> None:
        self.heard.append(worker_exceptions)

    def on_finish(self, run_context: RunContext, result: Result) -> None:
        self.heard.append((run_context.name, result.state))


class Raising(UserCallback):
    def after_report(self, *_: Any) -> None:
        raise RuntimeError("a tracker without a network")


class Fatal(Raising):
    fatal = True


def test_callbacks_hear_every_rank_and_one_that_raises_does_not_end_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def train() -> None:
        import hpctrain

        rank = hpctrain.get_context().get_world_rank()
        hpctrain.report({"rank": rank})
        hpctrain.report({"rank": rank}, Checkpoint.from_dict({"a": 1}) if rank == 1 else None)

    listening = Listening()
    result = fit(train, tmp_path, callbacks=[Raising(), listening])
    assert result.state == "finished"
    assert listening.heard == [([0, 1], None), ([0, 1], "000002"), ("run", "finished")]
    assert (
        "Raising.after_report: RuntimeError: a tracker without a network" in capfd.readouterr().err
    )


def test_a_fatal_callback_ends_the_run(tmp_path: Path) -> None:
    def train() -> None:
        import hpctrain
        import hpctrain.collective

        hpctrain.report({"rank": 0})
        hpctrain.collective.barrier()

    with pytest.raises(RuntimeError, match="a tracker without a network"):
        fit(train, tmp_path, callbacks=[Fatal()])
    assert Result.from_path(tmp_path / "run").state == "failed"


def test_after_exception_hears_what_each_rank_raised(tmp_path: Path) -> None:
    def train() -> None:
        import hpctrain

        if hpctrain.get_context().get_world_rank() == 1:
            raise KeyError("weights")

    listening = Listening()
    with pytest.raises(WorkerError):
        fit(train, tmp_path, callbacks=[listening])
    exceptions, end = listening.heard
    assert isinstance(exceptions[1], KeyError)
    assert end == ("run", "failed")


@pytest.mark.parametrize(
    "stop", [{"step": 3}, lambda report, metrics: metrics["step"] >= 3], ids=["mapping", "function"]
)
def test_the_stop_rule_lets_all_ranks_leave_after_the_same_report(
    tmp_path: Path, stop: Any
) -> None:
    def train() -> int:
        import hpctrain
        import hpctrain.collective

        step = 0
        while not hpctrain.should_stop():
            step += 1
            hpctrain.report({"step": step})
            # As collectives of a framework do: nobody may leave before another.
            hpctrain.collective.barrier(timeout_s=60)
        return step

    result = fit(train, tmp_path, stop=stop)
    assert result.state == "finished"
    assert result.return_value >= 3
    assert result.metrics["step"] == result.return_value


def test_a_rank_that_fails_although_the_goal_is_met_costs_the_budget(tmp_path: Path) -> None:
    def train() -> str:
        import time

        import hpctrain

        attempt = hpctrain.get_context().world.attempt
        for _ in range(3000):
            time.sleep(0.01)
            hpctrain.report({"x": 100})
            if hpctrain.should_stop():
                if attempt < 3:
                    raise ValueError("the last save fails")
                return f"told in attempt {attempt}"
        return "never told"

    def run(name: str, max_failures: int) -> Result:
        failure_config = FailureConfig(max_failures=max_failures)
        return fit(train, tmp_path, name=name, stop={"x": 50}, failure_config=failure_config)

    with pytest.raises(WorkerError, match="the last save fails"):
        run("one-failure", max_failures=0)
    assert len(Result.from_path(tmp_path / "one-failure").attempts) == 1
    # The goal is met before these attempts begin.
    assert run("three-attempts", max_failures=2).return_value == "told in attempt 3"


def test_datasets_are_split_and_metadata_travels(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def train() -> Any:
        import hpctrain

        context = hpctrain.get_context()
        mine = list(hpctrain.get_dataset_shard("train"))
        whole = list(hpctrain.get_dataset_shard("valid"))
        with pytest.raises(KeyError, match="dataset 'test' was not given"):
            hpctrain.get_dataset_shard("test")
        with hpctrain.checkpoint_dir() as directory:
            (Path(directory) / f"rank{context.get_world_rank()}").write_text(str(mine))
            checkpoint = Checkpoint.from_directory(directory)
            if context.get_world_rank() == 0:
                checkpoint.update_metadata({"epoch": 1, "by": "the function"})
            hpctrain.report({"rows": len(mine)}, checkpoint)
        return whole, context.get_metadata()

    result = fit(
        train,
        tmp_path,
        datasets={"train": list(range(5)), "valid": lambda: [7, 8]},
        dataset_config=DataConfig(datasets_to_split=["train"]),
        metadata={"git": "abc", "by": "the trainer"},
    )
    assert result.return_value == ([7, 8], {"git": "abc", "by": "the trainer"})
    assert result.checkpoint is not None
    assert (result.checkpoint.path / "rank0").read_text() == "[0, 1, 2]"
    assert (result.checkpoint.path / "rank1").read_text() == "[3, 4]"
    assert result.checkpoint.get_preprocessor() is None
    # Of the trainer and of the function, whose values win, as with Ray Train.
    assert result.checkpoint.get_metadata() == {"git": "abc", "by": "the function", "epoch": 1}
    assert "different content" not in capfd.readouterr().err
    # Whoever replaces it in a copy replaces all of it.
    copy = Checkpoint(result.checkpoint.to_directory(tmp_path / "copy"))
    assert copy.get_metadata() == result.checkpoint.get_metadata()
    copy.set_metadata({"epoch": 2})
    assert copy.get_metadata() == {"epoch": 2}


def test_restore_continues_a_run_without_its_script(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> int:
        import hpctrain

        checkpoint = hpctrain.get_checkpoint()
        first = checkpoint.to_dict()["step"] + 1 if checkpoint else 0
        for step in range(first, 4):
            if step == 2 and hpctrain.get_context().world.attempt == 1:
                raise RuntimeError("stops here once")
            hpctrain.report({"step": step}, Checkpoint.from_dict({"step": step}))
        return first

    with pytest.raises(WorkerError):
        fit(train, tmp_path, train_loop_config={"lr": 1}, datasets={"train": [1, 2]})
    path = tmp_path / "run"
    assert DataParallelTrainer.can_restore(path)
    assert not DataParallelTrainer.can_restore(tmp_path)
    with pytest.raises(
        ConfigError, match=r"has \['valid'\], but the run was begun with \['train'\]"
    ):
        DataParallelTrainer.restore(path, datasets={"valid": []})
    with pytest.raises(ConfigError, match="is not a run that"):
        DataParallelTrainer.restore(tmp_path)
    result = DataParallelTrainer.restore(path).fit()
    assert result.return_value == 2
    assert [m["step"] for m in result.metrics_history] == [0, 1, 2, 3]


def test_resume_from_checkpoint_begins_another_run(tmp_path: Path) -> None:
    def train() -> Any:
        import hpctrain

        checkpoint = hpctrain.get_checkpoint()
        assert checkpoint is not None
        return checkpoint.to_dict()

    start = Checkpoint.from_dict({"step": 9})
    result = fit(train, tmp_path, resume_from_checkpoint=start)
    assert result.return_value == {"step": 9}
