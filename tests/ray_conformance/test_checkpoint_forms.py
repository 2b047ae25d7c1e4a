"""Forms of a checkpoint that Ray 2.6 has: bytes, URIs, other classes, a dict with weights."""

import gc
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.fs
import pytest
import torch

import hpctrain
from hpctrain import Checkpoint, CheckpointError, ConfigError, RunConfig, ScalingConfig
from hpctrain.data import from_pandas
from hpctrain.preprocessors import StandardScaler
from hpctrain.torch import TorchCheckpoint, TorchPredictor


def test_bytes_hold_all_files(tmp_path: Path):
    (tmp_path / "sub dir").mkdir()
    (tmp_path / "sub dir" / "100%.txt").write_text("deep")
    made = Checkpoint.from_bytes(Checkpoint(tmp_path).to_bytes())
    with made.as_directory() as directory:
        assert (Path(directory) / "sub dir" / "100%.txt").read_text() == "deep"
    assert Checkpoint.from_bytes(Checkpoint.from_dict({"x": 1}).to_bytes()).to_dict() == {"x": 1}
    with pytest.raises(CheckpointError, match="7 bytes that are not a checkpoint"):
        Checkpoint.from_bytes(b"garbage")


def test_a_uri_leads_back_to_the_directory(tmp_path: Path):
    directory = tmp_path / "a b%c"
    directory.mkdir()
    checkpoint = Checkpoint(directory)
    assert checkpoint.uri.startswith("file:///")
    assert Checkpoint.from_uri(checkpoint.uri) == checkpoint
    with pytest.raises(ConfigError, match="a directory that all nodes see"):
        Checkpoint.from_uri("s3://bucket/checkpoint")


def test_what_only_a_handle_keeps_has_no_uri_until_it_is_copied(tmp_path: Path):
    checkpoint = Checkpoint.from_dict({"x": 1})
    assert checkpoint.uri is None
    assert Checkpoint.from_checkpoint(checkpoint).uri is None
    target = tmp_path / "a b"
    assert checkpoint.to_uri(target.as_uri()) == str(target)
    copied = Checkpoint.from_uri(target.as_uri())
    assert copied.path == target
    assert copied.uri == target.as_uri()
    assert Checkpoint.from_uri(str(target)) == copied
    assert copied.to_dict() == {"x": 1}
    with pytest.raises(ConfigError, match="a directory that all nodes see"):
        checkpoint.to_uri("gs://bucket/checkpoint")


def test_memory_keeps_a_copy_for_this_process():
    checkpoint = Named.from_dict({"x": 1})
    uri = checkpoint.to_uri("memory://bucket/checkpoint")
    path = checkpoint.path
    del checkpoint
    gc.collect()
    assert not path.exists()
    made = Checkpoint.from_uri(uri + "/")
    assert isinstance(made, Named)
    assert made.to_dict() == {"x": 1}
    made.set_metadata({"step": 3})
    again = Checkpoint.from_uri(uri)
    assert again.uri == uri
    assert again.get_metadata() == {}
    with pytest.raises(ConfigError, match="has put no checkpoint there"):
        Checkpoint.from_uri("memory://bucket")


class Named(Checkpoint):
    def __init__(self, *args, **kwargs):
        self.note = None
        super().__init__(*args, **kwargs)


def test_a_handle_is_made_of_any_form(tmp_path: Path):
    made = Named(data_dict={"x": 1})
    gc.collect()
    assert made.to_dict() == {"x": 1}
    assert repr(made) == f"Checkpoint({str(made.path)!r})"
    assert isinstance(Checkpoint.from_directory(made.to_directory(tmp_path / "copy")), Named)
    assert Named(local_path=tmp_path).path == tmp_path
    (tmp_path / "plain").mkdir()
    assert Named(uri=(tmp_path / "plain").as_uri()).path == tmp_path / "plain"
    assert list((tmp_path / "plain").iterdir()) == []
    assert (
        TorchCheckpoint(data_dict={"model": {"w": torch.ones(2)}}).get_state_dict()["w"].sum() == 2
    )
    for forms in ({}, {"path": tmp_path, "data_dict": {}}):
        with pytest.raises(ConfigError, match="Give it one of them"):
            Checkpoint(**forms)


def test_another_class_keeps_the_temporary_directory():
    made = TorchCheckpoint.from_checkpoint(Checkpoint.from_dict({"model": {"w": torch.ones(2)}}))
    gc.collect()
    assert isinstance(made, TorchCheckpoint)
    assert made.get_state_dict()["w"].tolist() == [1.0, 1.0]


def test_a_dict_with_weights_makes_a_predictor():
    weights = torch.nn.DataParallel(linear()).state_dict()
    assert set(weights) == {"module.weight", "module.bias"}
    checkpoint = Checkpoint.from_dict({"model": weights, "epoch": 3})
    predictor = TorchPredictor.from_checkpoint(checkpoint, model=torch.nn.Linear(1, 1))
    predicted = predictor.predict(np.array([[2.0]], np.float32))
    assert predicted["predictions"].tolist() == [[7.0]]


def test_a_dict_that_would_run_code_is_not_opened(tmp_path: Path):
    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    checkpoint = Checkpoint.from_dict({"model": linear().state_dict(), "extra": Trap()})
    Path(checkpoint.path).chmod(0o777)
    with pytest.raises(CheckpointError, match="reading it would run code: it holds"):
        TorchPredictor.from_checkpoint(checkpoint, model=linear())
    assert not (tmp_path / "ran").exists()
    with pytest.raises(CheckpointError, match="has no weights"):
        TorchCheckpoint.from_checkpoint(Checkpoint.from_dict({"epoch": 3})).get_state_dict()


def linear():
    model = torch.nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(3.0)
        model.bias.fill_(1.0)
    return model


def test_a_result_knows_the_config_and_its_context_has_trials_names(tmp_path: Path):
    def train(config):
        from hpctrain import session

        context = hpctrain.get_context()
        assert session.get_world_size() == context.get_world_size() == 1
        assert session.get_trial_name() == context.get_trial_id() == "trial"
        assert session.get_trial_dir() == str(context.get_storage())
        with pytest.raises(ConfigError, match="no placement groups"):
            session.get_trial_resources()
        session.report({"lr": config["lr"]})

    result = hpctrain.DataParallelTrainer(
        train,
        train_loop_config={"lr": 0.5},
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(name="trial", storage_path=tmp_path, verbose=0),
    ).fit()
    assert result.config == {"train_loop_config": {"lr": 0.5}}
    assert hpctrain.Result.from_path(result.path).config == result.config


def test_the_handle_that_was_made_of_a_model_knows_it():
    model = linear()
    checkpoint = TorchCheckpoint.from_model(model)
    with torch.no_grad():
        model.weight.fill_(5.0)
    inputs = np.array([[2.0]], np.float32)
    predicted = TorchPredictor.from_checkpoint(checkpoint).predict(inputs)
    assert predicted["predictions"].tolist() == [[7.0]]
    assert checkpoint.get_model() is not model
    assert TorchCheckpoint.from_checkpoint(checkpoint).get_model().weight.item() == 3.0
    for other in (TorchCheckpoint(checkpoint.path), pickle.loads(pickle.dumps(checkpoint))):
        predicted = TorchPredictor.from_checkpoint(other).predict(inputs)
        assert predicted["predictions"].tolist() == [[7.0]]


def test_the_handle_that_was_made_of_a_dict_with_a_model_knows_it():
    model = linear()
    checkpoint = Checkpoint.from_dict({"model": model})
    with torch.no_grad():
        model.weight.fill_(5.0)
    inputs = np.array([[2.0]], np.float32)
    predicted = TorchPredictor.from_checkpoint(checkpoint).predict(inputs)
    assert predicted["predictions"].tolist() == [[7.0]]
    assert TorchCheckpoint.from_checkpoint(checkpoint).get_model().weight.item() == 3.0
    other = Checkpoint(checkpoint.path)
    predicted = TorchPredictor.from_checkpoint(other).predict(inputs)
    assert predicted["predictions"].tolist() == [[7.0]]


def test_a_model_that_is_as_it_was_given_comes_back_itself():
    model = linear()
    checkpoint = Checkpoint.from_dict({"epoch": 1, "model": model})
    assert TorchPredictor.from_checkpoint(checkpoint).model is model
    # Its weights are the same, and it is in another mode by now.
    assert TorchPredictor.from_checkpoint(checkpoint).model is not model
    model.train()
    assert TorchCheckpoint.from_checkpoint(checkpoint).get_model() is model
    del model
    gc.collect()
    assert TorchCheckpoint.from_checkpoint(checkpoint).get_model().weight.item() == 3.0


def test_a_file_that_somebody_else_put_in_its_place_is_not_opened(tmp_path: Path):
    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    checkpoint = Checkpoint.from_dict({"model": linear()})
    (checkpoint.path / "dict_checkpoint.pkl").write_bytes(pickle.dumps({"model": Trap()}))
    Path(checkpoint.path).chmod(0o777)
    with pytest.raises(ConfigError, match=r"needs model=: its dict_checkpoint\.pkl holds a pickle"):
        TorchPredictor.from_checkpoint(checkpoint)
    assert not (tmp_path / "ran").exists()


def test_a_preprocessor_that_ray_pickled_is_not_passed_over(tmp_path: Path) -> None:
    scaler = StandardScaler(columns=["a"]).fit(from_pandas(pd.DataFrame({"a": [1.0, 3.0]})))
    (tmp_path / "_preprocessor").write_bytes(pickle.dumps(scaler))
    checkpoint = Checkpoint.from_directory(tmp_path)
    tmp_path.chmod(0o775)
    with pytest.raises(CheckpointError, match=r"_preprocessor holds a pickled.*trusted=True"):
        checkpoint.get_preprocessor()
    reads = [checkpoint.get_preprocessor(trusted=True)]
    tmp_path.chmod(0o755)
    reads.append(checkpoint.get_preprocessor())
    # Packed and unpacked by this process, too.
    reads.append(Checkpoint.from_dict(checkpoint.to_dict()).get_preprocessor())
    reads.append(Checkpoint.from_directory(checkpoint.to_directory()).get_preprocessor())
    for read in reads:
        assert read is not None
        assert read.transform_batch(pd.DataFrame({"a": [2.0]}))["a"].tolist() == [0.0]


@pytest.mark.parametrize("content", [b"", pickle.dumps(3), b"cno.such.module\nThing\n."])
def test_a_pickle_of_something_else_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "_preprocessor").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"hpctrain can use: .* Fit it again"):
        Checkpoint.from_directory(tmp_path).get_preprocessor(trusted=True)


def test_a_checkpoint_is_opened_with_the_filesystem_of_another(tmp_path: Path) -> None:
    made = Checkpoint(tmp_path)
    assert TorchCheckpoint(path=made.path, filesystem=made.filesystem) == made
    assert Checkpoint(tmp_path, filesystem=None) == made
    for other in (pyarrow.fs.SubTreeFileSystem("/", made.filesystem), "s3"):
        with pytest.raises(ConfigError, match="leave filesystem out"):
            Checkpoint(tmp_path, filesystem=other)
