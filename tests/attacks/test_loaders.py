"""Hostile files for everything that loads: what a file asks to run does not run, and why is said.

Each payload makes a file, the marker. Keras: tests/tensorflow_trainer/test_loaders.py.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain import (
    Checkpoint,
    CheckpointError,
    ConfigError,
    DataParallelTrainer,
    Result,
    RunConfig,
    ScalingConfig,
)
from hpctrain.data import read_hdf5, read_numpy, read_parquet
from hpctrain.predict.registry import find_predictor
from hpctrain.worker.failure import describe_exception

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
    pytest.mark.filterwarnings("ignore:Detected pickle protocol 4:UserWarning"),
]


class Payload:
    """Runs ``touch MARKER`` when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.marker}",)

    def __call__(self, batch: Any) -> Any:
        return batch


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "ran"


@pytest.fixture
def hostile(marker: Path) -> bytes:
    """Return a pickle, of which this shows that it runs."""
    content = pickle.dumps(Payload(marker))
    pickle.loads(content)
    marker.unlink()
    return content


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory that somebody else can write: what only this user can have written is opened."""
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint").chmod(0o777)
    return tmp_path / "checkpoint"


def refused(load: Callable[[], Any], marker: Path, match: str) -> None:
    """Check that an error of ours says why, with the next step, and that nothing has run."""
    with pytest.raises((CheckpointError, ConfigError), match=f"(?s){match}") as caught:
        load()
    assert not marker.exists()
    assert caught.value.__class__.__module__.startswith("hpctrain.")


def describe(directory: Path, framework: str) -> Checkpoint:
    content = {"framework": framework, "features": ["a", "b"]}
    (directory / "features.json").write_text(json.dumps(content))
    return Checkpoint(directory)


def test_torch_model_pt(directory: Path, marker: Path, hostile: bytes) -> None:
    import torch

    from hpctrain.torch import TorchCheckpoint, TorchPredictor

    checkpoint = describe(directory, "torch")
    net = torch.nn.Linear(2, 1)
    why = r"model\.pt is damaged, or holds more than weights.*would run code"
    for content in (hostile, None):
        if content is None:
            torch.save({"weight": Payload(marker)}, directory / "model.pt")
        else:
            (directory / "model.pt").write_bytes(content)
        refused(TorchCheckpoint(directory).get_state_dict, marker, why)
        refused(TorchCheckpoint(directory).get_model, marker, why)
        refused(lambda: TorchPredictor.from_checkpoint(checkpoint, model=net), marker, why)


def test_torch_model_architecture(
    directory: Path, marker: Path, hostile: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from hpctrain import pickle_trust
    from hpctrain.torch import TorchCheckpoint, TorchPredictor

    TorchCheckpoint.from_model(torch.nn.Linear(2, 1), path=directory)
    path = directory / "model.architecture"
    header = path.read_bytes().partition(b"\n")[0]
    monkeypatch.setattr(pickle_trust, "_made", set())
    path.write_bytes(header + b"\n" + hostile)
    checkpoint = TorchCheckpoint(directory)
    checkpoint.get_model(torch.nn.Linear(2, 1))
    why = "needs model=: .*opening it runs code.*trusted=True"
    refused(checkpoint.get_model, marker, why)
    refused(lambda: TorchPredictor.from_checkpoint(checkpoint), marker, why)


def test_a_pickled_estimator(directory: Path, marker: Path, hostile: bytes) -> None:
    from hpctrain.sklearn import SklearnCheckpoint, SklearnPredictor

    (directory / "model").write_bytes(hostile)
    why = "holds a pickled estimator; opening it runs code.*trusted=True"
    refused(SklearnCheckpoint(directory).get_estimator, marker, why)
    refused(lambda: SklearnPredictor.from_checkpoint(Checkpoint(directory)), marker, why)


def test_safetensors(directory: Path, marker: Path, hostile: bytes) -> None:
    from hpctrain.torch import TorchCheckpoint, load_state

    size = len(hostile).to_bytes(8, "little")
    for content in (hostile, size + hostile):
        (directory / "model.safetensors").write_bytes(content)
        read = TorchCheckpoint(directory).get_state_dict
        refused(read, marker, r"model\.safetensors is damaged")
        refused(lambda: load_state(directory, epoch={}), marker, r"model\.safetensors")


def dotted(module: str, name: str, command: str) -> bytes:
    """Return a pickle of protocol 4 that calls a dotted name of a module."""

    def text(value: str) -> bytes:
        return b"\x8c" + bytes([len(value)]) + value.encode()

    return b"\x80\x04" + text(module) + text(name) + b"\x93" + text(command) + b"\x85R."


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch.distributed.checkpoint.filesystem", "os.system"),
        ("torch.distributed.checkpoint.metadata", "os.system"),
        ("torch.distributed.checkpoint.metadata", "Metadata.__init__.__globals__"),
        ("torch", "os.system"),
        ("torch", "float32.__class__"),
        ("torch.serialization", "os.system"),
        ("pathlib", "os.system"),
        ("pathlib._local", "os.system"),
        ("collections", "_sys.modules"),
        ("builtins", "getattr"),
    ],
)
def test_dcp_metadata(directory: Path, marker: Path, module: str, name: str) -> None:
    from hpctrain.torch import load_state

    content = dotted(module, name, f"touch {marker}")
    if name == "os.system" and not module.endswith("_local") and module != "torch.serialization":
        pickle.loads(content)
        assert marker.exists(), "the payload runs where names are not looked at"
        marker.unlink()
    (directory / ".metadata").write_bytes(content)
    why = rf"would run code: it asks for {module}\.{name}.*Load another"
    refused(lambda: load_state(directory, epoch={}), marker, why)


@pytest.mark.parametrize("is_tensor", [True, False], ids=["tensor", "value"])
def test_dcp_files(directory: Path, marker: Path, hostile: bytes, is_tensor: bool) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    from hpctrain.torch import load_state

    state: dict[str, Any] = {"t": {"x": torch.zeros(4)}}
    if not is_tensor:
        state["v"] = Payload(marker)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=directory, no_dist=True)
    if is_tensor:
        (data,) = directory.glob("*.distcp")
        data.write_bytes(hostile.ljust(data.stat().st_size, b"."))
    refused(lambda: load_state(directory, t={"x": torch.ones(4)}), marker, "Load ")


def test_dcp_files_outside_of_the_checkpoint(directory: Path, marker: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    from hpctrain.torch import load_state

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"t": torch.zeros(4)}, checkpoint_id=directory, no_dist=True)
    metadata = pickle.loads((directory / ".metadata").read_bytes())
    for outside in ("../other", "/etc/passwd"):
        for stored in metadata.storage_data.values():
            stored.relative_path = outside
        (directory / ".metadata").write_bytes(pickle.dumps(metadata))
        why = rf"takes tensors from {outside}, and a checkpoint has its files in its own"
        refused(lambda: load_state(directory, t=torch.ones(4)), marker, why)


def test_lightning(directory: Path, marker: Path, hostile: bytes) -> None:
    import lightning
    import torch

    from hpctrain.lightning import LightningCheckpoint, LightningPredictor

    class Net(lightning.LightningModule):
        def __init__(self, **hyper_parameters: Any) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

    checkpoint = describe(directory, "lightning")
    path = directory / "checkpoint.ckpt"
    state = {"state_dict": Net().state_dict(), "pytorch-lightning_version": "2.6.6"}
    for content in (hostile, {**state, "hyper_parameters": {"x": Payload(marker)}}):
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            torch.save(content, path)
        why = r"checkpoint\.ckpt is damaged, or holds more than weights.*would run code"
        refused(LightningCheckpoint(directory).get_state_dict, marker, why)
        refused(lambda: LightningCheckpoint(directory).get_model(Net), marker, why)
        refused(lambda: LightningPredictor.from_checkpoint(checkpoint, Net), marker, why)
    for names in (
        {"_instantiator": "os.system"},
        {"_instantiator": "lightning.pytorch.cli.instantiate_module", "_class_path": "os.system"},
    ):
        torch.save({**state, "hyper_parameters": names}, path)
        refused(lambda: LightningCheckpoint(directory).get_model(Net), marker, "hyper-parameters")
    # That is the next step.
    assert isinstance(LightningCheckpoint(directory).get_model(lambda: Net()), Net)


def test_transformers(
    directory: Path, marker: Path, hostile: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    from hpctrain.huggingface import TransformersCheckpoint, TransformersPredictor

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    checkpoint = describe(directory, "transformers")
    own = TransformersCheckpoint(directory)
    config = {
        "architectures": ["EvilForSequenceClassification"],
        "model_type": "evil",
        "auto_map": {
            "AutoConfig": "evil.Config",
            "AutoModelForSequenceClassification": "evil.Model",
        },
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "evil.py").write_text(f"import os\nos.system('touch {marker}')\n")
    (directory / "pytorch_model.bin").write_bytes(hostile)
    why = r"cannot be loaded.*trust_remote_code=True"
    auto = transformers.AutoModelForSequenceClassification
    refused(lambda: own.get_model(auto), marker, why)
    refused(lambda: TransformersPredictor.from_checkpoint(checkpoint), marker, why)
    settings = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.T", None]}}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    refused(lambda: own.get_tokenizer(transformers.AutoTokenizer), marker, why)
    refused(lambda: TransformersPredictor.from_checkpoint(checkpoint), marker, why)
    # A known architecture, with weights that are a pickle.
    (directory / "tokenizer_config.json").unlink()
    small = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    small.architectures = ["BertForSequenceClassification"]
    small.save_pretrained(directory)
    refused(lambda: own.get_model(auto), marker, "cannot be loaded")


def test_jax_and_orbax(directory: Path, marker: Path, hostile: bytes) -> None:
    from hpctrain.jax import JaxCheckpoint, JaxPredictor

    checkpoint = JaxCheckpoint.from_state({"params": {"w": np.ones((2, 2))}}, path=directory)
    files = [path for path in (directory / "state").rglob("*") if path.is_file()]
    messages = []
    for path in files:
        sound = path.read_bytes()
        path.write_bytes(hostile)
        try:
            assert np.array_equal(checkpoint.get_state()["params"]["w"], np.ones((2, 2)))
            JaxPredictor.from_checkpoint(checkpoint, lambda params, x: x)
        except CheckpointError as error:
            messages.append(str(error))
        assert not marker.exists(), path
        path.write_bytes(sound)
    assert messages
    assert all("Load another checkpoint" in message for message in messages)


def test_skops(directory: Path, marker: Path, hostile: bytes) -> None:
    import skops.io
    from sklearn.linear_model import LinearRegression
    from sklearn.preprocessing import FunctionTransformer

    from hpctrain.sklearn import SklearnCheckpoint, SklearnPredictor

    checkpoint = describe(directory, "sklearn")
    path = directory / "model.skops"
    path.write_bytes(hostile)
    refused(SklearnCheckpoint(directory).get_estimator, marker, "is damaged, or of another")
    skops.io.dump(FunctionTransformer(os.system), path)
    for load in (
        SklearnCheckpoint(directory).get_estimator,
        lambda: SklearnPredictor.from_checkpoint(checkpoint),
    ):
        refused(load, marker, r"(posix|os)\.system, and creating them would run.*trusted=\[")
    # A class that a module of scikit-learn has imported, and that is not its own.
    skops.io.dump(LinearRegression().fit([[0.0], [1.0]], [0.0, 1.0]), path)
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    schema = content["schema.json"].replace(
        b"sklearn.linear_model._base", b"sklearn.datasets._openml"
    )
    content["schema.json"] = schema.replace(b'"LinearRegression"', b'"TemporaryDirectory"')
    with zipfile.ZipFile(path, "w") as archive:
        for name, part in content.items():
            archive.writestr(name, part)
    why = "TemporaryDirectory, and creating them would run"
    refused(SklearnCheckpoint(directory).get_estimator, marker, why)


@pytest.mark.parametrize("framework", ["xgboost", "lightgbm"])
def test_boosted_trees(directory: Path, marker: Path, hostile: bytes, framework: str) -> None:
    from hpctrain.lightgbm import LightGBMPredictor
    from hpctrain.xgboost import XGBoostPredictor

    predictor: Any = XGBoostPredictor if framework == "xgboost" else LightGBMPredictor
    checkpoint = describe(directory, framework)
    (directory / predictor.model_files[0]).write_bytes(hostile)
    refused(lambda: predictor.from_checkpoint(checkpoint), marker, r"is damaged.*Use another")


def test_hdf5_holds_no_code_and_reads_other_files_that_it_names(
    tmp_path: Path, marker: Path, hostile: bytes
) -> None:
    import h5py

    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["secret"] = np.arange(3)
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["pickled"] = np.frombuffer(hostile, np.uint8)[:3]
        file["opaque"] = np.array([hostile] * 3, dtype=np.void(len(hostile)).dtype)
        file["link"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "secret")
        layout = h5py.VirtualLayout((3,), np.int64)
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "secret", shape=(3,))
        file.create_virtual_dataset("virtual", layout)
    rows = read_hdf5(tmp_path / "rows.h5", columns=["pickled", "link", "virtual"]).to_numpy()
    assert rows["link"].tolist() == rows["virtual"].tolist() == [0, 1, 2]
    (tmp_path / "other.h5").write_bytes(hostile)
    refused(lambda: read_hdf5(tmp_path / "rows.h5", columns=["link"]).to_numpy(), marker, "rows.h5")
    refused(lambda: read_hdf5(tmp_path / "other.h5"), marker, "cannot be read as HDF5")
    assert not marker.exists()


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_numpy_object_arrays(tmp_path: Path, marker: Path, suffix: str) -> None:
    path, array = tmp_path / f"rows.{suffix}", np.array([Payload(marker)], dtype=object)
    if suffix == "npy":
        np.save(path, array, allow_pickle=True)
    else:
        np.savez(path, x=array)
    refused(lambda: read_numpy(path).to_numpy(), marker, r"rows\.np")


def test_parquet_types_of_python(tmp_path: Path, marker: Path, hostile: bytes) -> None:
    import pyarrow
    import pyarrow.parquet

    metadata = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": hostile,
    }
    field = pyarrow.field("x", pyarrow.int64(), metadata=metadata)
    table = pyarrow.table([pyarrow.array([1, 2])], schema=pyarrow.schema([field]))
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    try:
        assert read_parquet(tmp_path / "rows.parquet").to_numpy()["x"].tolist() == [1, 2]
    finally:
        assert not marker.exists()


def test_preprocessors(directory: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hpctrain import pickle_trust
    from hpctrain.preprocessors import BatchMapper, Preprocessor

    mapper = BatchMapper(Payload(marker), batch_format="numpy")  # type: ignore[arg-type]
    Checkpoint(directory).set_preprocessor(mapper)
    text = mapper.serialize()
    # This process has pickled it; whoever gets it from elsewhere has not.
    monkeypatch.setattr(pickle_trust, "_made", set())
    why = r"holds a pickle; opening it runs code.*trusted=True"
    refused(Checkpoint(directory).get_preprocessor, marker, why)
    refused(lambda: Preprocessor.deserialize(text), marker, why)
    with pytest.raises(CheckpointError):
        # What it gave is no function; it has run by then.
        Checkpoint(directory).get_preprocessor(trusted=True)
    assert marker.exists()


def test_a_dict_checkpoint_is_opened_by_to_dict_alone(
    directory: Path, marker: Path, hostile: bytes
) -> None:
    (directory / "dict_checkpoint.pkl").write_bytes(hostile)
    checkpoint = Checkpoint(directory)
    checkpoint.get_metadata(), checkpoint.get_preprocessor()
    refused(lambda: find_predictor(checkpoint), marker, "its predictor is unknown")
    checkpoint.to_dict()
    assert marker.exists()


def test_a_loop_and_training_arguments_are_opened_by_restore_and_get_alone(
    directory: Path, marker: Path, hostile: bytes
) -> None:
    import torch

    from hpctrain.huggingface import TransformersCheckpoint
    from hpctrain.torch import TorchCheckpoint, load_state, save_state

    net = torch.nn.Linear(2, 1)
    save_state(directory, model=net)
    for name in ("loop.pt", "loop-rank-00000.pt", "training_args.bin"):
        (directory / name).write_bytes(b"")
        torch.save(Payload(marker), directory / name)
    load_state(directory, model=net)
    TorchCheckpoint(directory).get_state_dict()
    assert not marker.exists()
    TransformersCheckpoint(directory).get_training_arguments()
    assert marker.exists()


def test_the_framework_of_a_checkpoint_names_no_module(directory: Path, marker: Path) -> None:
    for name in ("os:system", "evil", "hpctrain.torch:TorchPredictor"):
        checkpoint = describe(directory, name)
        refused(lambda c=checkpoint: find_predictor(c), marker, "its predictor is unknown")


def test_a_run_is_read_without_what_it_pickled(
    tmp_path: Path, marker: Path, hostile: bytes
) -> None:
    def train() -> None:
        raise ValueError("no")

    trainer = DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(name="run", storage_path=tmp_path),
    )
    with pytest.raises(ValueError, match="no"):
        trainer.fit()
    root = tmp_path / "run"
    (root / "return_value.pkl").write_bytes(hostile)
    (root / "spec.pkl").write_bytes(hostile)
    failure = describe_exception(
        ValueError("no"), rank=0, hostname="node", pid=1, report=0, phase="train"
    )
    stored = replace(failure, exception=base64.b64encode(hostile).decode()).to_json()
    (root / "failures" / "1").mkdir(parents=True)
    (root / "failures" / "1" / "rank-00000.json").write_text(json.dumps(stored))
    result = Result.from_path(root)
    assert result.error is not None
    for name in ("metrics", "metrics_history", "checkpoint", "best_checkpoints", "attempts"):
        getattr(result, name)
    assert not marker.exists()
    # This one opens it, and says so.
    _ = result.return_value
    assert marker.exists()
