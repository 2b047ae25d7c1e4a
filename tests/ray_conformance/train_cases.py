"""What both Ray Train and hpctrain are asked: each case is given the names of the modules.

``python tests/ray_conformance/train_cases.py`` with a real Ray writes ``train_answers.json``;
``test_train.py`` compares.
"""

from __future__ import annotations

import importlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Case = Callable[["Library", Path], Any]
ANSWERS = Path(__file__).with_name("train_answers.json")


class Library:
    """The modules of one of the two."""

    def __init__(self, train: str, data: str) -> None:
        self.name = train
        self.train = importlib.import_module(train)
        self.torch = importlib.import_module(f"{train}.torch")
        self.data = importlib.import_module(data)


def three_epochs(config: dict[str, Any]) -> None:
    """Read a shard three times, and save a checkpoint of rank 0 after each."""
    import importlib
    import tempfile
    from pathlib import Path

    train = importlib.import_module(config["train"])
    context = train.get_context()
    shard = train.get_dataset_shard("train")
    batches = shard.iter_batches(batch_size=4)
    tensors = shard.iter_torch_batches(batch_size=3)
    for epoch, score in enumerate([1, 3, 2]):
        seen = {
            "batches": len([batch["x"] for batch in batches]),
            "tensors": [len(batch["x"]) for batch in tensors],
            "rows": len(list(shard.iter_rows())),
            "size": [context.get_world_size(), context.get_local_world_size()],
            "node": context.get_node_rank(),
        }
        with tempfile.TemporaryDirectory() as directory:
            # The directory of the other rank stays empty.
            if context.get_world_rank() == 0:
                Path(directory, "model.txt").write_text(str(epoch))
            checkpoint = train.Checkpoint.from_directory(directory)
            train.report({"epoch": epoch, "score": score, **seen}, checkpoint=checkpoint)


def a_run_of_three_epochs(library: Library, folder: Path) -> Any:
    """Return what the result of a run with two workers says."""
    import pandas

    train = library.train
    trainer = library.torch.TorchTrainer(
        three_epochs,
        train_loop_config={"train": library.name},
        scaling_config=train.ScalingConfig(num_workers=2),
        datasets={"train": library.data.from_pandas(pandas.DataFrame({"x": range(16)}))},
        run_config=train.RunConfig(
            storage_path=str(folder),
            checkpoint_config=train.CheckpointConfig(
                num_to_keep=2, checkpoint_score_attribute="score"
            ),
        ),
    )
    result = trainer.fit()
    asked = ("epoch", "score", "batches", "tensors", "rows", "size", "node")
    return {
        "metrics": {name: result.metrics[name] for name in asked},
        "best": [metrics["score"] for _, metrics in result.best_checkpoints],
        "kept": [
            Path(checkpoint.path, "model.txt").read_text()
            for checkpoint, _ in result.best_checkpoints
        ],
        "last": Path(result.checkpoint.path, "model.txt").read_text(),
        "path": Path(result.path).parent == folder,
        "error": result.error,
    }


def fail_once(config: dict[str, Any]) -> None:
    """Fail after the first report; go on from its checkpoint."""
    import importlib
    import tempfile
    from pathlib import Path

    train = importlib.import_module(config["train"])
    checkpoint = train.get_checkpoint()
    begin = 0
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            begin = int(Path(directory, "epoch").read_text()) + 1
    for epoch in range(begin, 3):
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "epoch").write_text(str(epoch))
            train.report(
                {"epoch": epoch, "begin": begin}, train.Checkpoint.from_directory(directory)
            )
        if epoch == 0 or config["always"]:
            raise ValueError("no luck")


def _fit_with_failures(library: Library, folder: Path, *, always: bool) -> Any:
    train = library.train
    return library.torch.TorchTrainer(
        fail_once,
        train_loop_config={"train": library.name, "always": always},
        scaling_config=train.ScalingConfig(num_workers=1),
        run_config=train.RunConfig(
            storage_path=str(folder), failure_config=train.FailureConfig(max_failures=1)
        ),
    ).fit()


def a_run_that_fails_once(library: Library, folder: Path) -> Any:
    """Return the metrics of the second attempt, and whether there is an error."""
    result = _fit_with_failures(library, folder, always=False)
    return [result.metrics["epoch"], result.metrics["begin"], result.error]


def a_run_that_fails_always(library: Library, folder: Path) -> Any:
    """Return what the exception is, and whether it says why."""
    error_type = importlib.import_module(library.name).TrainingFailedError
    try:
        _fit_with_failures(library, folder, always=True)
    except error_type as error:
        return ["TrainingFailedError", "no luck" in str(error)]
    return "no exception"


CASES: dict[str, Case] = {
    one.__name__: one
    for one in (a_run_of_three_epochs, a_run_that_fails_once, a_run_that_fails_always)
}


def answers(library: Library) -> dict[str, Any]:
    """Return what a library answers to each case."""
    found: dict[str, Any] = {}
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = case(library, Path(folder).resolve())
    return found


def main() -> None:
    """Ask a real Ray, and write what it answers."""
    import ray

    ray.init(num_cpus=4, include_dashboard=False)
    found = {"recorded with": f"ray {ray.__version__}", **answers(Library("ray.train", "ray.data"))}
    ANSWERS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
