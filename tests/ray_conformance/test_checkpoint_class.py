"""A checkpoint of a class of one's own stays of that class, as in Ray 2.6."""

import json
from pathlib import Path

import pytest

import hpctrain
from hpctrain import (
    Checkpoint,
    ConfigError,
    DataParallelTrainer,
    Result,
    RunConfig,
    ScalingConfig,
)
from hpctrain.checkpoint_class import CLASS_NAME


class Kept(Checkpoint):
    def __init__(self, path):
        self.opened = True
        super().__init__(path)


class Other(Checkpoint):
    pass


def test_a_dict_becomes_its_class_again():
    data = Kept.from_dict({"x": 1}).to_dict()
    assert data == {"x": 1}
    made = Checkpoint.from_dict(data)
    assert isinstance(made, Kept)
    assert made.opened
    assert isinstance(Kept.from_dict(Checkpoint.from_dict({"x": 1}).to_dict()), Kept)
    assert type(Checkpoint.from_dict({"x": 1}).to_dict()) is dict
    with pytest.raises(ConfigError, match="is a Kept, not a Other"):
        Other.from_dict(data)


def test_a_directory_becomes_its_class_again(tmp_path: Path):
    Kept.from_dict({"x": 1}).to_directory(tmp_path)
    assert type(Checkpoint.from_directory(tmp_path)) is Kept
    assert type(Kept.from_directory(Checkpoint.from_dict({"x": 1}).to_directory())) is Kept
    with pytest.raises(ConfigError, match="is a Kept, not a Other"):
        Other.from_directory(tmp_path)
    again = Checkpoint.from_dict(Kept(tmp_path).to_dict())
    assert type(again) is Kept
    assert again.to_dict() == {"x": 1}


def test_a_directory_of_files_goes_through_a_dict_as_its_class(tmp_path: Path):
    (tmp_path / "weights.txt").write_text("1")
    made = Checkpoint.from_dict(Kept.from_directory(tmp_path).to_dict())
    assert type(made) is Kept
    assert (made.path / "weights.txt").read_text() == "1"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "7", '{"class": 3}', '{"class": "os:system"}', '{"class": "no:No"}']
)
def test_a_name_that_is_no_class_here_is_passed_over(tmp_path: Path, content: str):
    (tmp_path / CLASS_NAME).write_text(content)
    assert type(Checkpoint.from_directory(tmp_path)) is Checkpoint


def test_no_module_is_imported_for_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "trap_module.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / CLASS_NAME).write_text(json.dumps({"class": "trap_module:Trap"}))
    assert type(Checkpoint.from_directory(tmp_path)) is Checkpoint
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_of_a_run_is_of_its_class(tmp_path: Path):
    def train():
        hpctrain.report({"x": 1}, Kept.from_dict({"x": 1}))
        assert type(hpctrain.get_checkpoint()).__name__ == "Kept"

    run = RunConfig(storage_path=tmp_path, name="run", verbose=0)
    trainer = DataParallelTrainer(
        train, scaling_config=ScalingConfig(num_workers=0), run_config=run
    )
    result = trainer.fit()
    assert type(result.checkpoint) is Kept
    assert [type(one) for one, _ in result.best_checkpoints] == [Kept]
    assert type(Result.from_path(tmp_path / "run").checkpoint) is Kept


def test_a_class_that_takes_more_than_a_path_by_now_loses_no_run(tmp_path: Path):
    class Edited(Checkpoint):
        pass

    Edited.from_dict({"x": 1}).to_directory(tmp_path)

    def init(self: Edited, path: Path, needed: int) -> None:
        raise AssertionError

    Edited.__init__ = init  # type: ignore[assignment,method-assign]
    opened = Checkpoint.from_directory(tmp_path)
    assert type(opened) is Checkpoint
    assert opened.to_dict() == {"x": 1}
    with pytest.raises(TypeError, match="needed"):
        Edited.from_directory(tmp_path)
