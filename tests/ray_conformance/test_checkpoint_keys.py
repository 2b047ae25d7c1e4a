"""What Ray's scripts keep in dict checkpoints under the keys of ``ray.air.constants``."""

import pickle
from pathlib import Path

import pandas
import pytest

from hpctrain import Checkpoint, CheckpointError
from hpctrain.constants import FS_CHECKPOINT_KEY, MODEL_KEY, PREPROCESSOR_KEY
from hpctrain.preprocessors import BatchMapper, StandardScaler


def test_a_preprocessor_in_a_dict_is_the_checkpoint_s_preprocessor() -> None:
    scaler = StandardScaler(["x"])
    frame = pandas.DataFrame({"x": [1.0, 3.0]})
    fitted = scaler.fit(frame)
    checkpoint = Checkpoint.from_dict({MODEL_KEY: 7, PREPROCESSOR_KEY: fitted})

    stored = checkpoint.get_preprocessor()
    assert stored is not None
    assert list(stored.transform_batch(frame)["x"]) == [-1.0, 1.0]
    data = checkpoint.to_dict()
    assert data["model"] == 7
    assert list(data[PREPROCESSOR_KEY].transform_batch(frame)["x"]) == [-1.0, 1.0]
    again = Checkpoint.from_dict(data).get_preprocessor()
    assert again is not None
    assert repr(again) == repr(stored)


def test_no_preprocessor_in_a_dict_is_none() -> None:
    checkpoint = Checkpoint.from_dict({MODEL_KEY: 7, PREPROCESSOR_KEY: None})
    assert checkpoint.get_preprocessor() is None


def test_a_directory_goes_through_a_dict_to_another_place(tmp_path: Path):
    original = tmp_path / "original"
    (original / "sub").mkdir(parents=True)
    (original / "model.txt").write_text("seven")
    (original / "sub" / "more.txt").write_text("eight")
    Checkpoint(original).set_preprocessor(BatchMapper(lambda frame: frame + 1, "pandas"))
    data = Checkpoint(original).to_dict()
    assert list(data) == [FS_CHECKPOINT_KEY]
    with pytest.raises(KeyError, match=r"was not made by Checkpoint\.from_dict\(\), so its dict"):
        data["model"]
    copy = Path(Checkpoint.from_dict(pickle.loads(pickle.dumps(data))).to_directory(tmp_path / "c"))
    assert (copy / "model.txt").read_text() == "seven"
    assert (copy / "sub" / "more.txt").read_text() == "eight"
    mapper = Checkpoint(copy).get_preprocessor()
    assert mapper is not None
    assert mapper.transform_batch(pandas.DataFrame({"x": [1]}))["x"].tolist() == [2]
    assert Checkpoint(copy).to_dict().keys() == {FS_CHECKPOINT_KEY}


def test_what_is_added_to_the_dict_of_a_directory_stays(tmp_path: Path):
    (tmp_path / "model.txt").write_text("seven")
    data = {**Checkpoint(tmp_path).to_dict(), "epoch": 3}
    again = Checkpoint.from_dict(Checkpoint.from_dict(data).to_dict())
    assert again.to_dict()["epoch"] == 3
    with again.as_directory() as directory:
        assert (Path(directory) / "model.txt").read_text() == "seven"


def test_bytes_that_are_no_files_are_refused_and_other_values_are_kept():
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        Checkpoint.from_dict({FS_CHECKPOINT_KEY: b"garbage"})
    assert Checkpoint.from_dict({FS_CHECKPOINT_KEY: 3}).to_dict() == {FS_CHECKPOINT_KEY: 3}
