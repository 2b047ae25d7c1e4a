from __future__ import annotations

import gc
import pickle
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain.checkpoint import Checkpoint
from hpctrain.checkpoint_files import MANIFEST_NAME
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.preprocessors import Normalizer, StandardScaler
from hpctrain.torch import TorchCheckpoint


@pytest.fixture
def committed(tmp_path: Path) -> Checkpoint:
    directory = tmp_path / "000001"
    directory.mkdir()
    (directory / "model.bin").write_bytes(b"weights")
    (directory / MANIFEST_NAME).write_text("{}")
    return Checkpoint(directory)


def test_a_directory_that_does_not_exist_is_refused_with_its_full_path_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    checkpoint = Checkpoint("model")
    assert checkpoint.path == tmp_path / "model"
    assert checkpoint.uri is None
    uses = [
        lambda: checkpoint.as_directory().__enter__(),
        checkpoint.to_directory,
        checkpoint.to_bytes,
        checkpoint.to_dict,
        lambda: checkpoint.to_uri("memory://model"),
        checkpoint.get_metadata,
        lambda: checkpoint.set_metadata({}),
        checkpoint.get_preprocessor,
        lambda: checkpoint.set_preprocessor(Normalizer(["x"])),
        lambda: Checkpoint.from_directory("model"),
        lambda: Checkpoint.from_uri((tmp_path / "model").as_uri()),
        lambda: Checkpoint(local_path="model"),
        lambda: TorchCheckpoint("model"),
    ]
    missing = rf"Checkpoint\('{tmp_path}/model'\) does not exist\. Save into a directory first"
    for use in uses:
        with pytest.raises(ConfigError, match=missing):
            use()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_may_be_made_after_its_handle(tmp_path: Path):
    checkpoint = Checkpoint(tmp_path / "model")
    checkpoint = pickle.loads(pickle.dumps(checkpoint))
    (tmp_path / "model").mkdir()
    checkpoint.set_metadata({"step": 3})
    assert checkpoint.get_metadata() == {"step": 3}
    with checkpoint.as_directory() as directory:
        assert directory == str(tmp_path / "model")


def test_a_file_is_no_checkpoint(tmp_path: Path):
    (tmp_path / "model.pt").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"model\.pt'\) is not a directory\. Save into a direct"):
        Checkpoint(tmp_path / "model.pt")


def test_two_handles_on_one_directory_are_equal(tmp_path: Path):
    assert Checkpoint(tmp_path) == Checkpoint.from_directory(str(tmp_path))
    assert len({Checkpoint(tmp_path), Checkpoint(tmp_path)}) == 1
    assert Checkpoint(tmp_path) != tmp_path


def test_a_dict_comes_back_from_a_checkpoint_made_of_it():
    checkpoint = Checkpoint.from_dict({"epoch": 3, "weights": [0.5]})
    assert checkpoint.to_dict() == {"epoch": 3, "weights": [0.5]}


def test_the_directory_of_a_dict_lives_as_long_as_its_handle():
    checkpoint = Checkpoint.from_dict({"epoch": 3})
    path = checkpoint.path
    copy = pickle.loads(pickle.dumps(checkpoint))
    del copy
    gc.collect()
    assert path.is_dir()
    del checkpoint
    gc.collect()
    assert not path.exists()


def test_a_temporary_directory_is_deleted_where_nothing_could_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with suppress(ConfigError):
        Checkpoint.from_dict({"x": threading.Lock()})
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_a_dict_that_cannot_be_pickled_is_refused_by_name():
    with pytest.raises(ConfigError, match="the checkpoint cannot be sent to the workers"):
        Checkpoint.from_dict({"lock": threading.Lock()})


def test_a_checkpoint_of_files_is_no_dict_of_values(tmp_path: Path):
    data = Checkpoint(tmp_path).to_dict()
    with pytest.raises(KeyError, match=r"was not made by Checkpoint\.from_dict\(\)"):
        data["step"]


def test_a_handle_is_pickled_as_its_path_and_needs_its_directory_to_be_opened(tmp_path: Path):
    directory = tmp_path / "model"
    directory.mkdir()
    content = pickle.dumps(Checkpoint(directory))
    assert len(content) < 500
    assert pickle.loads(content) == Checkpoint(directory)
    directory.rmdir()
    with pytest.raises(ConfigError, match="does not exist"):
        pickle.loads(content)


def test_a_copy_has_the_users_files_only(committed: Checkpoint, tmp_path: Path):
    target = committed.to_directory(tmp_path / "a" / "copy")
    assert [path.name for path in Path(target).iterdir()] == ["model.bin"]


def test_a_committed_checkpoint_is_not_overwritten_by_a_copy(committed: Checkpoint, tmp_path: Path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/model.bin").write_bytes(b"other")
    with pytest.raises(CheckpointError, match=f"{committed.path} is committed and does not change"):
        Checkpoint(tmp_path / "other").to_directory(committed.path)
    assert (committed.path / "model.bin").read_bytes() == b"weights"


def test_a_copy_without_a_target_goes_into_a_new_directory(committed: Checkpoint):
    copy = Checkpoint(committed.to_directory())
    assert (copy.path / "model.bin").read_bytes() == b"weights"
    assert copy != committed


def test_reading_a_checkpoint_copies_nothing(committed: Checkpoint):
    with committed.as_directory() as directory:
        assert Path(directory) == committed.path


def test_metadata_is_set_and_merged(tmp_path: Path):
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.get_metadata() == {}
    checkpoint.set_metadata({"epoch": 1})
    checkpoint.update_metadata({"loss": 0.5})
    assert Checkpoint(tmp_path).get_metadata() == {"epoch": 1, "loss": 0.5}


def test_a_committed_checkpoint_refuses_metadata(committed: Checkpoint):
    message = r"is committed and does not change\. Set metadata before report\(\), or copy it"
    with pytest.raises(CheckpointError, match=message):
        committed.set_metadata({"epoch": 1})
    with pytest.raises(CheckpointError, match=message):
        committed.update_metadata({"epoch": 1})


def test_a_committed_checkpoint_refuses_a_preprocessor(committed: Checkpoint):
    with pytest.raises(CheckpointError, match="Set the preprocessor before report"):
        committed.set_preprocessor(Normalizer(["x"]))


def test_a_preprocessor_that_is_as_it_was_given_comes_back_itself(tmp_path: Path):
    scaler = StandardScaler(["x"]).fit({"x": np.array([1.0, 3.0])})
    checkpoint = Checkpoint(tmp_path)
    checkpoint.set_preprocessor(scaler)
    assert checkpoint.get_preprocessor() is scaler
    other = Checkpoint.from_dict({"epoch": 1, "_preprocessor": scaler})
    assert other.get_preprocessor() is scaler
    assert Checkpoint.from_checkpoint(other).get_preprocessor() is scaler
    assert Checkpoint(tmp_path).get_preprocessor() is not scaler
    scaler.stats_ = {"mean(x)": 4.0, "std(x)": 1.0}
    before: Any = checkpoint.get_preprocessor()
    assert before is not scaler
    assert before.stats_["mean(x)"] == 2.0


def test_a_preprocessor_travels_with_its_checkpoint(tmp_path: Path):
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.get_preprocessor() is None
    checkpoint.set_preprocessor(StandardScaler(["x"]).fit({"x": [1.0, 3.0]}))
    stored = Checkpoint(tmp_path).get_preprocessor()
    assert stored is not None
    assert stored.stats_ == {"mean(x)": 2.0, "std(x)": 1.0}
