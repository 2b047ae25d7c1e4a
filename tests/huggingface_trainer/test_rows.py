"""Datasets of hpctrain for a `transformers.Trainer`: every row once an epoch, after a stop too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpctrain
from hpctrain import Checkpoint, CheckpointError, ConfigError, Result
from hpctrain.data import Dataset, from_numpy
from hpctrain.huggingface import (
    AccelerateTrainer,
    ReportCallback,
    TransformersTrainer,
    prepare_trainer,
)
from tests import runs

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory")


@pytest.fixture
def dataset() -> Dataset:
    tokens = np.random.default_rng(5).integers(0, 30, (22, 6))
    return from_numpy({"input_ids": tokens, "label": tokens[:, 0] % 3, "row": np.arange(22)})


def arguments(**changes: Any) -> Any:
    from transformers import TrainingArguments

    given = {
        "output_dir": "unused",
        "num_train_epochs": 2,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    return TrainingArguments(**{**given, **changes})


def make_watched(make_model: Callable[[], Any], seen: Path, **changes: Any) -> Callable[..., Any]:
    """Return a trainer_init_per_worker whose trainers write the rows of each batch into a file."""
    from transformers import Trainer, default_data_collator

    class Watched(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if model.training:
                with seen.open("a") as file:
                    print(json.dumps(inputs["row"].tolist()), file=file)
            inputs.pop("row")
            return super().compute_loss(model, inputs, *args, **kwargs)

    def make(train_dataset: Any, eval_dataset: Any) -> Any:
        return Watched(
            model=make_model(),
            args=arguments(remove_unused_columns=False, **changes),
            data_collator=default_data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
        )

    return make


def read(seen: Path) -> list[list[int]]:
    return [json.loads(line) for line in seen.read_text().splitlines()]


def fit(make: Callable[..., Any], path: Path, name: str, **given: Any) -> Result:
    return runs.fit(make, path, num_workers=0, name=name, trainer=TransformersTrainer, **given)


def test_every_row_comes_once_an_epoch_in_another_order_and_goes_on_after_a_stop(
    tmp_path: Path, make_model: Callable[[], Any], dataset: Dataset
) -> None:
    seen = tmp_path / "rows"
    make = make_watched(make_model, seen, eval_strategy="epoch")
    datasets = {"train": dataset, "evaluation": dataset}
    whole = fit(make, tmp_path, "whole", datasets=datasets)
    batches = read(seen)
    assert [len(batch) for batch in batches] == [4, 4, 4, 4, 4, 2] * 2
    first, second = (
        [row for batch in part for row in batch] for part in (batches[:6], batches[6:])
    )
    assert sorted(first) == sorted(second) == list(range(22))
    assert first != second
    assert "eval_loss" in whole.metrics

    seen.unlink()
    stopped = fit(
        make,
        tmp_path,
        "stopped",
        datasets=datasets,
        stop={"step": 7},
    )
    assert stopped.checkpoint is not None
    steps = stopped.metrics["step"]
    assert 7 <= steps < 12
    resumed = fit(
        make, tmp_path, "resumed", datasets=datasets, resume_from_checkpoint=stopped.checkpoint
    )
    assert read(seen) == batches
    assert resumed.metrics_history[0]["step"] == steps + 1
    assert resumed.metrics["eval_loss"] == whole.metrics["eval_loss"]


def test_rows_that_a_filter_leaves_come_once_an_epoch_in_full_batches(
    tmp_path: Path, make_model: Callable[[], Any], dataset: Dataset
) -> None:
    seen = tmp_path / "rows"
    left = dataset.filter(lambda batch: batch["row"] >= 11)
    make = make_watched(make_model, seen, train_sampling_strategy="sequential")
    result = fit(make, tmp_path, "filtered", datasets={"train": left})
    assert read(seen) == [[11, 12, 13, 14], [15, 16, 17, 18], [19, 20, 21]] * 2
    assert result.metrics["step"] == 6


def test_rows_of_evaluation_are_read_in_order_after_a_filter_too(dataset: Dataset) -> None:
    from hpctrain.huggingface.rows import EvaluationRows

    rows = EvaluationRows(dataset)
    assert len(rows) == 22
    assert [row["row"] for row in rows.__getitems__([3, 4, 5, 9, 0, 1])] == [3, 4, 5, 9, 0, 1]
    assert type(rows[7]["label"]) is int
    even = EvaluationRows(dataset.filter(lambda batch: batch["row"] % 2 == 0))
    assert [row["row"] for row in even.__getitems__(range(len(even)))] == list(range(0, 22, 2))


def in_loop(train: Callable[[], Any], path: Path, **given: Any) -> Result:
    return runs.fit(train, path, num_workers=0, name="loop", trainer=AccelerateTrainer, **given)


def test_a_script_of_its_own_keeps_its_output_directory_with_the_callback_alone(
    tmp_path: Path, make_model: Callable[[], Any], rows: list[dict[str, Any]]
) -> None:
    from transformers import Trainer

    def train() -> None:
        trainer = Trainer(
            model=make_model(),
            args=arguments(
                output_dir=str(tmp_path / "own"),
                save_strategy="epoch",
                save_total_limit=1,
            ),
            train_dataset=rows,
            callbacks=[ReportCallback()],
        )
        checkpoint = hpctrain.get_checkpoint()
        if checkpoint:
            with checkpoint.as_directory() as directory:
                # As scripts for Ray Train say it.
                folder = Path(directory, ReportCallback.CHECKPOINT_NAME)
                trainer.train(resume_from_checkpoint=str(folder))
        else:
            trainer.train()

    first = in_loop(train, tmp_path)
    assert first.checkpoint is not None
    assert (first.checkpoint.path / "model.safetensors").exists()
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["checkpoint-16"]


def test_the_best_model_is_loaded_at_the_end_from_the_run(
    tmp_path: Path, make_model: Callable[[], Any], dataset: Dataset
) -> None:
    def make(train_dataset: Any, eval_dataset: Any) -> Any:
        import torch
        from transformers import TrainerCallback

        class Keep(TrainerCallback):
            def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
                torch.save(given["model"].state_dict(), tmp_path / "at-the-end.pt")
                (tmp_path / "best").write_text(str(state.best_model_checkpoint))

        trainer = make_watched(
            make_model,
            tmp_path / "rows",
            eval_strategy="epoch",
            save_strategy="epoch",
            load_best_model_at_end=True,
            metric_for_best_model="grows",
            greater_is_better=False,
            learning_rate=0.5,
        )(train_dataset, eval_dataset)
        grows = iter([1.0, 2.0])
        trainer.compute_metrics = lambda _: {"grows": next(grows)}
        trainer.add_callback(Keep)
        return trainer

    result = fit(make, tmp_path, "run", datasets={"train": dataset, "evaluation": dataset})
    best = Path((tmp_path / "best").read_text())
    assert best == result.path / "checkpoints" / "000006"
    import torch
    from safetensors.torch import load_file

    at_the_end = torch.load(tmp_path / "at-the-end.pt", weights_only=True)
    assert all(
        (at_the_end[name] == saved).all()
        for name, saved in load_file(best / "model.safetensors").items()
    )


def test_what_cannot_work_is_said(
    tmp_path: Path, make_model: Callable[[], Any], dataset: Dataset
) -> None:
    from transformers import Trainer

    def shared_out() -> None:
        part = hpctrain.get_dataset_shard("train")
        prepare_trainer(
            Trainer(model=make_model(), args=arguments(use_cpu=True), train_dataset=part)
        )

    with pytest.raises(ConfigError, match=r"Leave it whole: DataConfig\(datasets_to_split=\[\]\)"):
        in_loop(shared_out, tmp_path / "twice", datasets={"train": [{"input_ids": [1]}] * 4})

    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "weights").touch()
    with pytest.raises(CheckpointError, match=r"has no trainer_state\.json"):
        fit(
            make_watched(make_model, tmp_path / "rows"),
            tmp_path,
            "other-kind",
            datasets={"train": dataset},
            resume_from_checkpoint=Checkpoint(tmp_path / "other"),
        )

    def none(train_dataset: Any, eval_dataset: Any) -> Any:
        return make_model()

    with pytest.raises(ConfigError, match="returned a BertForSequenceClassification"):
        fit(none, tmp_path, "no-trainer")
