from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch

from hpctrain import Checkpoint, CheckpointError, ConfigError
from hpctrain.torch import TorchCheckpoint, TorchPredictor

X = np.random.default_rng(0).normal(size=(6, 3)).astype("f4")


class Net(torch.nn.Module):
    def __init__(self, width: int = 3):
        super().__init__()
        self.linear = torch.nn.Linear(width, 1)
        self.drop = torch.nn.Dropout(0.9)

    def forward(self, x):
        return self.drop(self.linear(x)).squeeze(1)


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


def by_hand(net: Net) -> np.ndarray:
    with torch.inference_mode():
        return net.linear(torch.from_numpy(X)).squeeze(1).numpy()


def test_the_weights_come_back_without_pickle(net, tmp_path):
    checkpoint = TorchCheckpoint.from_model(net, path=tmp_path, features=["a", "b", "c"], label="y")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        ".checkpoint-class.json",
        "features.json",
        "model.architecture",
        "model.safetensors",
    ]
    assert json.loads((tmp_path / "features.json").read_text()) == {
        "framework": "torch",
        "features": ["a", "b", "c"],
        "label": "y",
    }
    loaded = checkpoint.get_model(Net)
    assert torch.equal(loaded.linear.weight, net.linear.weight)


def test_a_model_is_scored_in_evaluation_mode(net):
    checkpoint = TorchCheckpoint.from_model(net)
    predicted = TorchPredictor.from_checkpoint(checkpoint, model=Net).predict(X)
    assert list(predicted) == ["predictions"]
    assert np.array_equal(predicted["predictions"], by_hand(net))


def test_weights_that_share_memory_are_kept():
    tied = Net()
    state = {**tied.state_dict(), "same": tied.linear.weight}
    assert torch.equal(
        TorchCheckpoint.from_state_dict(state).get_state_dict()["same"], tied.linear.weight
    )


@pytest.mark.parametrize("dtype", ["f4", "f8", ">f8"])
def test_features_are_put_side_by_side_in_the_type_of_the_weights(net, dtype):
    checkpoint = TorchCheckpoint.from_model(net, features=["a", "b", "c"])
    predictor = TorchPredictor.from_checkpoint(checkpoint, model=Net)
    columns = X.astype(dtype)
    frame = pd.DataFrame({"c": columns[:, 2], "b": columns[:, 1], "a": columns[:, 0]})
    assert np.array_equal(predictor.predict(frame)["predictions"], by_hand(net))
    with pytest.raises(ConfigError, match="has no 'b'"):
        predictor.predict(frame.drop(columns="b"))
    with pytest.raises(ConfigError, match="2 columns, but the model was trained on 3"):
        predictor.predict(X[:, :2])


def test_the_only_column_is_the_input(net):
    predictor = TorchPredictor(net)
    predicted = predictor.predict({"pixels": X})
    assert np.array_equal(predicted["predictions"], by_hand(net))


def test_memory_that_must_not_be_written_to_is_no_matter(net):
    frozen = X.copy()
    frozen.flags.writeable = False
    predicted = TorchPredictor(net).predict(frozen)
    assert np.array_equal(predicted["predictions"], by_hand(net))


def test_several_columns_without_names_of_features_are_a_dict_of_tensors():
    class Sum(torch.nn.Module):
        def forward(self, inputs):
            return {"sum": inputs["a"] + inputs["b"], "half": (inputs["a"] / 2).bfloat16()}

    columns = {"a": np.array([2, 4]), "b": np.array([1.0, 2.0])}
    predicted = TorchPredictor(Sum()).predict(columns, dtype={"a": torch.float64})
    assert predicted["sum"].tolist() == [3, 6]
    assert predicted["sum"].dtype == np.float64
    assert predicted["half"].tolist() == [1, 2]


def test_a_model_that_returns_something_else_gets_a_next_step():
    class Pair(torch.nn.Module):
        def forward(self, x):
            return x, x

    with pytest.raises(ConfigError, match=r"returned a tuple.*Override call_model"):
        TorchPredictor(Pair()).predict(X)

    class First(TorchPredictor):
        def call_model(self, inputs):
            return super().call_model(inputs)[0]

    assert np.array_equal(First(Pair()).predict(X)["predictions"], X)


def test_a_state_dict_that_torch_saved_is_read_too(net, tmp_path):
    torch.save(net.state_dict(), tmp_path / "model.pt")
    predictor = TorchPredictor.from_checkpoint(Checkpoint(tmp_path), model=Net)
    assert np.array_equal(predictor.predict(X)["predictions"], by_hand(net))


def test_a_pickled_model_of_ones_own_is_opened_and_another_only_if_it_is_trusted(net, tmp_path):
    torch.save(net, tmp_path / "model.pt")
    checkpoint = Checkpoint(tmp_path)
    for model in (None, Net):
        predictor = TorchPredictor.from_checkpoint(checkpoint, model=model)
        assert np.array_equal(predictor.predict(X)["predictions"], by_hand(net))
    tmp_path.chmod(0o775)
    for model in (None, Net):
        why = r"would run code.*can be written by others.*chmod -R go-w.*model.state_dict\(\)"
        with pytest.raises(CheckpointError, match=why):
            TorchPredictor.from_checkpoint(checkpoint, model=model)
        predictor = TorchPredictor.from_checkpoint(checkpoint, model=model, trusted=True)
        assert np.array_equal(predictor.predict(X)["predictions"], by_hand(net))


def test_a_state_dict_holds_no_architecture(net, tmp_path):
    torch.save(net.state_dict(), tmp_path / "model.pt")
    for checkpoint in (
        Checkpoint(tmp_path),
        TorchCheckpoint.from_state_dict(net.state_dict()),
        Checkpoint.from_dict({"model": net.state_dict()}),
    ):
        with pytest.raises(ConfigError, match="needs model=: a checkpoint holds weights and no"):
            TorchPredictor.from_checkpoint(checkpoint)


def test_weights_of_another_architecture_are_refused(net):
    checkpoint = TorchCheckpoint.from_model(net)
    with pytest.raises(CheckpointError, match=r"not those of Net[^$]*size mismatch"):
        TorchPredictor.from_checkpoint(checkpoint, model=lambda: Net(4))


def test_a_checkpoint_of_a_model_brings_its_module(net):
    checkpoint = TorchCheckpoint.from_model(net)
    other = TorchCheckpoint(checkpoint.path)
    predicted = TorchPredictor.from_checkpoint(other).predict(X)
    assert np.array_equal(predicted["predictions"], by_hand(net))


def test_a_checkpoint_without_a_model_says_what_it_has(tmp_path):
    (tmp_path / "model.txt").touch()
    with pytest.raises(
        ConfigError,
        match=r"none of model.safetensors, model.pt, state.json, dict_checkpoint.pkl. It has "
        r"model.txt",
    ):
        TorchPredictor.from_checkpoint(Checkpoint(tmp_path), model=Net)


def test_what_is_no_tensor_is_refused():
    with pytest.raises(ConfigError, match="no tensors: epoch"):
        TorchCheckpoint.from_state_dict({"w": torch.ones(2), "epoch": 3})


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_none_is_promised(net):
    with pytest.raises(ConfigError, match="torch sees no GPU here"):
        TorchPredictor(net, use_gpu=True)


def test_weights_named_by_distributed_data_parallel_fit_the_model(net):
    named = {f"module.{name}": tensor for name, tensor in net.state_dict().items()}
    checkpoint = TorchCheckpoint.from_state_dict(named)
    predicted = TorchPredictor.from_checkpoint(checkpoint, model=Net).predict(X)
    assert list(predicted) == ["predictions"]
    assert np.array_equal(predicted["predictions"], by_hand(net))


class Shell(torch.nn.Module):
    """Has one part, which is called as DistributedDataParallel calls its own."""

    def __init__(self):
        super().__init__()
        self.module = Net()


def test_a_model_whose_only_part_is_called_module_keeps_its_names():
    shell = Shell()
    loaded = TorchCheckpoint.from_state_dict(shell.state_dict()).get_model(Shell)
    assert torch.equal(loaded.module.linear.weight, shell.module.linear.weight)


def test_weights_that_are_not_all_of_distributed_data_parallel_are_refused(net):
    state = net.state_dict()
    mixed = {"module.linear.weight": state["linear.weight"], "linear.bias": state["linear.bias"]}
    with pytest.raises(CheckpointError, match=r"module\.linear\.weight"):
        TorchCheckpoint.from_state_dict(mixed).get_model(Net)


def test_a_model_with_a_part_called_module_is_kept_whole():
    shell = Shell()
    kept = TorchCheckpoint.from_model(shell).get_model(Shell())
    assert torch.equal(kept.module.linear.weight, shell.module.linear.weight)


class Beside(Shell):
    """Has another part beside it."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(1, 1)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_dict_of_a_model_with_a_part_called_module_keeps_its_names(prefix):
    named = {f"{prefix}{name}": tensor for name, tensor in Beside().state_dict().items()}
    checkpoint = Checkpoint.from_dict({"model": named})
    kept = TorchPredictor.from_checkpoint(checkpoint, model=Beside).model
    for name, tensor in kept.state_dict().items():
        assert torch.equal(tensor, named[f"{prefix}{name}"])


def test_a_sharded_model_is_refused(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        model = torch.nn.Linear(2, 2)
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(ConfigError, match=r"sharded .*report_state\(\).*export_state\(\)"):
            TorchCheckpoint.from_model(model, path=tmp_path / "c")
    finally:
        torch.distributed.destroy_process_group()


def test_a_wrapped_model_is_kept_without_its_wrapper(net):
    kept = TorchCheckpoint.from_model(torch.nn.DataParallel(net)).get_model(Net())
    assert kept.state_dict().keys() == net.state_dict().keys()
