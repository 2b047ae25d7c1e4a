"""`Checkpoint.path` and `Result.path` are strings, as in Ray Train, and have what a Path has."""

from __future__ import annotations

import copy
import json
import os
import pickle
import sys
from pathlib import Path

import pytest

import hpctrain
from hpctrain import Checkpoint, DataParallelTrainer, Result, RunConfig, ScalingConfig
from hpctrain.errors import ConfigError
from hpctrain.path_string import PathString


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    directory = tmp_path / "50% of a\nmodel"
    directory.mkdir()
    (directory / "model.bin").write_text("weights")
    return Checkpoint(directory)


def test_a_checkpoint_path_is_a_string(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path, plain = checkpoint.path, f"{tmp_path}/50% of a\nmodel"
    assert isinstance(path, str)
    assert (type(str(path)), str(path)) == (str, plain)
    assert path == plain
    assert path + "/model.bin" == plain + "/model.bin"
    assert "at " + path == f"at {path}" == "at " + plain
    assert path.split("/") == plain.split("/")
    assert path.startswith("/")
    assert path.replace("/", "_") == plain.replace("/", "_")
    assert json.loads(json.dumps({path: path})) == {plain: plain}
    assert {plain: 1}[path] == 1
    assert os.path.join(path, "model.bin") == plain + "/model.bin"
    assert os.path.basename(path) == "50% of a\nmodel"
    with open(path + "/model.bin") as file:
        assert file.read() == "weights"


def test_a_checkpoint_path_has_what_a_path_has(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path, real = checkpoint.path, tmp_path / "50% of a\nmodel"
    assert type(path / "model.bin") is type(real)
    assert path / "model.bin" == real / "model.bin"
    assert Path("/elsewhere") / path == real
    assert (path / "model.bin").read_text() == "weights"
    assert (path.name, path.parent, path.parts) == (real.name, real.parent, real.parts)
    assert path.exists()
    assert path.is_dir()
    assert [p.name for p in path.iterdir()] == ["model.bin"]
    assert path.relative_to(tmp_path) == Path(real.name)
    assert isinstance(path, os.PathLike)
    assert type(path.__fspath__()) is str
    assert Path(path) == path == real
    assert real == path
    assert path != real / "x"
    assert path != str(real) + "/"
    with pytest.raises(AttributeError):
        _ = path.no_such_thing  # type: ignore[attr-defined]


def test_it_travels_and_is_copied(checkpoint: Checkpoint) -> None:
    for path in (
        pickle.loads(pickle.dumps(checkpoint)).path,
        pickle.loads(pickle.dumps(checkpoint.path)),
        copy.deepcopy(checkpoint.path),
    ):
        assert type(path) is PathString
        assert path == checkpoint.path
    assert Checkpoint(checkpoint.path) == checkpoint
    assert len({Checkpoint(checkpoint.path), checkpoint}) == 1


def test_the_path_of_a_result_is_one_too(tmp_path: Path) -> None:
    result = DataParallelTrainer(
        lambda: hpctrain.report({"loss": 1.0}, checkpoint=Checkpoint.from_dict({"a": 1})),
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(name="run", storage_path=tmp_path, verbose=0),
    ).fit()
    assert result.checkpoint is not None
    assert json.dumps([result.path, result.checkpoint.path]) == json.dumps(
        [f"{tmp_path}/run", f"{tmp_path}/run/checkpoints/000001"]
    )
    assert Result.from_path(result.path + "/").path == result.path
    assert (result.path / "status.json").exists()


def test_the_filesystem_is_arrows_of_this_machine(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.fs")
    with checkpoint.filesystem.open_input_stream(checkpoint.path + "/model.bin") as stream:
        assert stream.read() == b"weights"
    assert isinstance(checkpoint.filesystem, pyarrow.fs.LocalFileSystem)
    monkeypatch.setitem(sys.modules, "pyarrow.fs", None)
    with pytest.raises(ConfigError, match=r"pip install 'hpctrain\[data\]'"):
        _ = checkpoint.filesystem
