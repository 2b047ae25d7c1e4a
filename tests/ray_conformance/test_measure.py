"""What a script of Ray's is given besides new import lines, and which edits are documented."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ray_conformance.measure import attempt, edit_as_documented
from tests.ray_conformance.port import blocks_of_module, port
from tests.ray_conformance.stand_ins import shrink

PAGES = [Path(__file__).parents[2] / "docs" / name for name in ("ray-train.rst", "tune.rst")]


@pytest.mark.parametrize(
    ("program", "edited", "on_the_page"),
    [
        (
            'RunConfig(storage_path="s3://somewhere/else", name="x")',
            'RunConfig(storage_path="@FOLDER@/storage", name="x")',
            '-        storage_path="s3://bucket/runs",',
        ),
        (
            'report({"rows": next(iter(shard.iter_batches(batch_format="pandas")))})',
            'report({"rows": next(iter(shard.iter_batches(batch_format="pandas"))).to_dict()})',
            "of a data frame ``.to_dict()``",
        ),
        (
            'with open(path, "rb") as file:\n    preprocessor = pickle.load(file)\nprint()',
            "preprocessor = checkpoint.get_preprocessor()\nprint()",
            "``checkpoint.get_preprocessor()`` reads it",
        ),
        (
            "    # torch.save(...)\n",
            '    open(f"{temp_checkpoint_dir}/model.pt", "w").close()\n',
            "a checkpoint of which no rank wrote a file: save into its directory",
        ),
        (
            "predictor = Predicts.from_checkpoint(checkpoint, TorchPredictor)",
            "predictor = Predicts.from_checkpoint(checkpoint, TorchPredictor, model=model)",
            "``model=`` is needed for a module that cannot be",
        ),
        (
            "from hpctrain import tune\nfrom hpctrain.tune.search import ConcurrencyLimiter\n"
            "algo = Search()\nalgo = ConcurrencyLimiter(algo, max_concurrent=4)\n",
            "from hpctrain import tune\nalgo = Search()\n",
            "Leave ``search = ConcurrencyLimiter(search, ...)`` out",
        ),
        (
            "TuneConfig(\n    reuse_actors=True,\n    num_samples=3,\n)",
            "TuneConfig(\n    num_samples=3,\n)",
            "``TuneConfig(reuse_actors=..., chdir_to_trial_dir=...)`` - refused: leave them out",
        ),
        (
            'tune.RunConfig(name="x", callbacks=[])',
            'tune.RunConfig(name="x", existing="restart", callbacks=[])',
            'RunConfig(name="x", existing="restart")``',
        ),
        (
            'grid[0].metrics["training_iteration"] < one.metrics.get("training_iteration", 0)',
            "len(grid[0].metrics_history) < len(one.metrics_history)",
            "``len(result.metrics_history)`` is the number of reports",
        ),
        (
            "    def on_trial_result(self, iteration, trials, trial, result, **info):\n",
            "    def open(self, trial):\n        pass\n\n"
            "    def close(self, trial, state):\n        pass\n\n"
            "    def log(self, trial, result, checkpoint):\n",
            "with ``open``, ``log`` and ``close``",
        ),
        ("Trainer(dmatrix_params={})", "Trainer(dataset_params={})", "``dmatrix_params`` by"),
    ],
)
def test_an_edit_counts_as_documented_if_the_page_names_it(
    program: str, edited: str, on_the_page: str
) -> None:
    assert edit_as_documented(program) == edited
    assert edit_as_documented(edited) == edited
    text = "\n".join(page.read_text() for page in PAGES)
    assert on_the_page in " ".join(text.split()) or on_the_page in text


def test_a_program_finds_what_it_asks_its_user_to_set(tmp_path: Path) -> None:
    program = """
import os
assert os.environ["WANDB_API_KEY"] and os.environ["WANDB_MODE"] == "offline"
assert os.environ["MLFLOW_ALLOW_FILE_STORE"] == "true"
"""
    assert attempt(program, 60, "") == ("ok", "")


def test_weights_that_would_be_downloaded_are_random() -> None:
    program = "net = models.detection.ssd300_vgg16(pretrained=True)\nother = f(pretrained=True)"
    assert shrink(program) == (
        "net = models.detection.ssd300_vgg16(weights=None, weights_backbone=None)\n"
        "other = f(pretrained=True)"
    )


def test_docstrings_of_a_module_see_what_it_imports_of_typing() -> None:
    module = '''"""A module.

.. testcode::

    def f(x: Optional[int]) -> None: ...
"""
from typing import Optional
from nowhere import something
'''
    names: dict[str, object] = {}
    exec(blocks_of_module(module), names)
    assert callable(names["f"])


def test_aggregates_are_imported_from_where_they_are() -> None:
    assert port("from ray.data.aggregate import Sum\n") == (
        "from hpctrain.data.aggregate import Sum\n"
    )
