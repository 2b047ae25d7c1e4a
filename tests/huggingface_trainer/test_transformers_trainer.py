"""`TransformersTrainer`: one process is two ranks, and no interruption is seen in the model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain import (
    Checkpoint,
    CheckpointConfig,
    ConfigError,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
)
from hpctrain.huggingface import TransformersTrainer
from tests import runs

pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.mpi,
    # transformers, of torch's data loader.
    pytest.mark.filterwarnings("ignore:.*pin_memory"),
]
STEPS = 12
"""Three epochs of 32 rows, eight a step."""


@pytest.fixture(scope="session")
def make_trainer(make_model: Callable[[], Any]) -> Callable[..., Any]:
    """Return a trainer_init_per_worker, which travels by value."""

    def make(train_dataset: Any, eval_dataset: Any, batch_size: int, dies: bool = False) -> Any:
        import os
        import signal

        import torch
        from transformers import Trainer, TrainerCallback, TrainingArguments

        import hpctrain

        context = hpctrain.get_context()
        rank, attempt = context.get_world_rank(), context.world.attempt

        class Watch(TrainerCallback):
            def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                if dies and attempt == 1 and rank == 1 and state.global_step == 4:
                    # The checkpoint of step 3 is there.
                    hpctrain.get_all_reported_checkpoints(timeout_s=60)
                    os.kill(os.getpid(), signal.SIGKILL)

            def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
                path = context.get_storage() / f"rank-{rank}.pt"
                torch.save(given["model"].state_dict(), path)

        model = make_model()
        return Trainer(
            model=model,
            args=TrainingArguments(
                output_dir="unused",
                num_train_epochs=3,
                per_device_train_batch_size=batch_size,
                logging_steps=1,
                eval_strategy="epoch",
                save_steps=3,
                average_tokens_across_devices=False,
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            callbacks=[Watch()],
            optimizers=(torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9), None),
        )

    return make


def fit(
    make: Callable[..., Any],
    rows: list[dict[str, Any]],
    path: Path,
    *,
    num_workers: int = 2,
    dies: bool = False,
    resume_from: Checkpoint | None = None,
    **run_config: Any,
) -> Result:
    return runs.fit(
        make,
        path.parent,
        name=path.name,
        num_workers=num_workers,
        trainer=TransformersTrainer,
        trainer_init_config={"batch_size": 8 // max(num_workers, 1), "dies": dies},
        datasets={"train": rows, "evaluation": rows[:9]},
        resume_from_checkpoint=resume_from,
        **run_config,
    )


def parameters(path: Path, rank: int) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = torch.load(path / f"rank-{rank}.pt", weights_only=True)
    return found


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, values in found.items():
        assert (values == expected[name]).all(), name


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory,
    make_trainer: Callable[..., Any],
    rows: list[dict[str, Any]],
) -> Result:
    """Run two ranks without an interruption."""
    path = tmp_path_factory.mktemp("whole") / "run"
    keep = CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="eval_loss")
    return fit(make_trainer, rows, path, checkpoint_config=keep)


def test_two_ranks_train_what_one_process_does(
    whole: Result, tmp_path: Path, make_trainer: Callable[..., Any], rows: list[dict[str, Any]]
) -> None:
    alone = fit(make_trainer, rows, tmp_path / "alone", num_workers=0)
    assert_equal(parameters(whole.path, 1), parameters(whole.path, 0))
    expected = parameters(alone.path, 0)
    for name, values in parameters(whole.path, 0).items():
        # The same samples in each step; sums of four and four are rounded unlike those of eight.
        assert (values - expected[name]).abs().max() < 1e-5, name
    assert len(alone.metrics_history) == len(whole.metrics_history) == STEPS + 1


def test_each_step_that_logs_is_a_report_and_each_save_a_checkpoint(whole: Result) -> None:
    history = whole.metrics_history
    # The last report is of the whole training.
    assert [metrics["step"] for metrics in history] == [*range(1, STEPS + 1), STEPS]
    assert history[-1]["train_loss"] == whole.return_value["train_loss"]
    assert history[STEPS - 1]["loss"] < history[0]["loss"]
    assert history[3]["eval_loss"] != history[7]["eval_loss"]
    assert history[4]["eval_loss"] == history[3]["eval_loss"], "the newest that there is"
    saved = [metrics["step"] for _, metrics in whole.best_checkpoints]
    assert len(saved) == 2
    assert set(saved) < {3, 6, 9, 12}
    assert whole.checkpoint is not None
    names = {path.name for path in whole.checkpoint.path.iterdir()}
    assert {"model.safetensors", "optimizer.pt", "rng_state_0.pth", "rng_state_1.pth"} < names
    assert not Path("unused", "checkpoint-3").exists()


def test_a_killed_rank_and_a_stop_change_nothing(
    whole: Result, tmp_path: Path, make_trainer: Callable[..., Any], rows: list[dict[str, Any]]
) -> None:
    stopped = fit(
        make_trainer,
        rows,
        tmp_path / "stopped",
        dies=True,
        stop={"step": 7},
        failure_config=FailureConfig(max_failures=1),
    )
    assert "rank 1" in str(stopped.attempts[0].cause)
    steps = [metrics["step"] for metrics in stopped.metrics_history]
    # What came after the checkpoint of step 3 is done, and reported, again.
    assert steps == list(range(1, len(steps) + 1))
    assert 8 <= len(steps) < STEPS
    assert stopped.checkpoint is not None
    assert (stopped.checkpoint.path / "trainer_state.json").exists()
    assert stopped.metrics_history[-1]["step"] == _step(stopped.checkpoint)

    resumed = fit(make_trainer, rows, tmp_path / "resumed", resume_from=stopped.checkpoint)
    assert resumed.metrics_history[0]["step"] == len(steps) + 1
    for rank in (0, 1):
        assert_equal(parameters(resumed.path, rank), parameters(whole.path, 0))
    losses = [metrics["loss"] for metrics in resumed.metrics_history]
    assert losses == [metrics["loss"] for metrics in whole.metrics_history[len(steps) :]]


def _step(checkpoint: Checkpoint) -> int:
    import json

    state = json.loads((checkpoint.path / "trainer_state.json").read_text())
    return int(state["global_step"])


def test_a_function_that_does_not_take_its_arguments_is_refused() -> None:
    def make(train_dataset: Any, eval_dataset: Any, epochs: int) -> Any: ...

    with pytest.raises(
        ConfigError, match=r"called as make\(train_dataset, eval_dataset, lr=\.\.\."
    ):
        TransformersTrainer(make, trainer_init_config={"lr": 1.0})
    with pytest.raises(ConfigError, match="is given 'train' and 'evaluation'"):
        TransformersTrainer(
            make, trainer_init_config={"epochs": 1}, datasets={"train": [], "valid": []}
        )
    not_one: Any = {"datasets_to_split": []}
    with pytest.raises(ConfigError, match="of type dict; type DataConfig is needed"):
        TransformersTrainer(make, trainer_init_config={"epochs": 1}, dataset_config=not_one)


def test_the_library_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(train_dataset: Any, eval_dataset: Any) -> Any: ...

    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"pip install 'hpctrain\[huggingface\]'"):
        TransformersTrainer(
            make,
            scaling_config=ScalingConfig(num_workers=0),
            run_config=RunConfig(storage_path=tmp_path, verbose=0),
        ).fit()
