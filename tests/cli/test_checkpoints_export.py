"""``hpctrain checkpoints export`` of fabricated runs; tests/torch_state has what it writes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

from hpctrain.checkpoint_files import MANIFEST_NAME
from hpctrain.cli.export import render, to_json
from hpctrain.cli.json_output import schema
from hpctrain.cli.main import app
from hpctrain.rundir.staging import StagedPart, seal, staging_directory
from hpctrain.rundir.store import CheckpointStore
from hpctrain.torch import Exported, save_state
from tests.cli.test_json_output import check

GOLDEN = Path(__file__).parent / "golden"
_PLAIN = Exported(
    path=Path("/data/exports/digits"),
    format="safetensors",
    files=("model.safetensors",),
    num_tensors=6,
    num_bytes=93_352,
    aliases={},
    left_out=(),
    other_parts=(),
    is_verified=True,
)
_MUCH = Exported(
    path=Path("/data/exports/llama"),
    format="safetensors",
    files=(
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ),
    num_tensors=723,
    num_bytes=141 * 10**9,
    aliases={
        "lm_head.weight": "model.embed_tokens.weight",
        "decoder.embed_tokens.weight": "model.embed_tokens.weight",
    },
    left_out=tuple(f"model.layers.{number}._extra_state" for number in range(80)),
    other_parts=("ema", "optimizer", "scheduler"),
    is_verified=False,
)
CASES = {"a small model": _PLAIN, "a large one": _MUCH}
SOURCE = Path("/scratch/runs/digits/checkpoints/000013")


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, ["checkpoints", *words])


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose name has a colon, with the checkpoints ``first`` and ``000002`` of a model."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "hpctrain_runs" / "lr:0.1"
    run.mkdir(parents=True)
    store = CheckpointStore(run / "checkpoints")
    store.prepare()
    (run / "plan.json").write_text("{}")
    for report, name in ((1, "first"), (2, None)):
        part = staging_directory(run / "checkpoints", attempt=1, report=report, rank=0)
        part.mkdir(parents=True)
        torch.manual_seed(report)
        save_state(part, model=nn.Linear(3, report), step={"step": report})
        parts = {0: StagedPart(files=tuple(seal(part)), name=name)}
        store.commit(attempt=1, report=report, world_size=1, metrics={}, parts=parts)
    return run


@pytest.mark.parametrize(
    ("named", "rows"),
    [("lr:0.1", 2), ("lr:0.1:first", 1), ("hpctrain_runs/lr:0.1:000002", 2)],
)
def test_a_run_or_one_of_its_checkpoints_is_exported(run: Path, named: str, rows: int) -> None:
    done = invoke("export", named, "out.pt", "--format", "torch")
    assert done.exit_code == 0, done.stderr
    assert "torch: 2 tensors" in done.stdout
    assert "not part of the model: step" in done.stdout
    assert torch.load(Path() / "out.pt", weights_only=True)["bias"].shape == (rows,)


def test_the_directory_of_a_checkpoint_will_do_from_anywhere(run: Path) -> None:
    done = invoke("export", str(run / "checkpoints" / "first"), "o", "--json")
    assert done.exit_code == 0, done.stderr
    said = json.loads(done.stdout)
    check(said, schema("checkpoints export"))
    assert (said["files"], said["verified"]) == (["model.safetensors"], True)


def test_runs_are_listed_without_a_verb(run: Path) -> None:
    short, long = (invoke(*verb, "lr:0.1", "--json") for verb in ((), ("list",)))
    assert short.exit_code == long.exit_code == 0, short.stderr
    assert json.loads(short.stdout) == json.loads(long.stdout)
    first = invoke("--storage", "hpctrain_runs", "--json", "lr:0.1")
    assert json.loads(first.stdout) == json.loads(short.stdout)


def test_what_is_wrong_is_said_before_anything_is_written(run: Path) -> None:
    def said(*words: str, code: int = 2) -> str:
        done = invoke("export", *words)
        assert done.exit_code == code, done.stdout + done.stderr
        return str(done.stderr)

    assert "has no checkpoint 'last'. It has first, 000002." in said("lr:0.1:last", "out")
    assert "there is no run nothing" in said("nothing", "out")
    assert "one of safetensors, dcp, torch" in said("lr:0.1", "out", "--format", "onnx")
    (Path() / "out").mkdir()
    assert "out exists. Give another path; --force" in said("lr:0.1", "out")
    path = run / "checkpoints" / "000002" / "state-00001-of-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert "is damaged: block 0" in said("lr:0.1", "model", code=4)
    (run / "checkpoints" / "000002" / MANIFEST_NAME).unlink()
    assert "manifest is missing" in said("lr:0.1:000002", "model")
    assert sorted(os.listdir(".")) == ["hpctrain_runs", "out"]
    # The newest that is a checkpoint.
    done = invoke("export", "lr:0.1", "out", "--force")
    assert "checkpoints/first\n" in done.stdout, done.stderr


def test_a_run_that_only_others_may_write_is_exported(run: Path) -> None:
    for path in (run, *run.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = sorted(path.stat().st_mtime_ns for path in run.rglob("*"))
    done = invoke("export", "lr:0.1", "out")
    assert done.exit_code == 0, done.stderr
    assert sorted(path.stat().st_mtime_ns for path in run.rglob("*")) == before
    for path in (run, *run.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.mark.parametrize("width", [80, 120])
def test_the_text_is_as_in_the_golden_file(width: int, request: pytest.FixtureRequest) -> None:
    text = "".join(
        f"== {name}\n{render(SOURCE, case, width=width)}\n" for name, case in CASES.items()
    )
    assert max(map(len, text.splitlines())) <= width
    golden = GOLDEN / f"checkpoints-export-{width}.txt"
    if request.config.getoption("rewrite_golden"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_the_json_is_what_the_schema_says(case: Exported) -> None:
    check({"format": 1, **to_json(SOURCE, case)}, schema("checkpoints export"))


def test_names_of_others_cannot_write_into_the_terminal() -> None:
    for width in (80, None):
        assert "\x1b" not in render(Path("/run\x1b[2J"), _MUCH, width=width)
