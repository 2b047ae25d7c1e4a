from __future__ import annotations

import numpy as np
import pytest
import tensorflow

from hpctrain import ConfigError
from hpctrain.data import DataIterator, from_numpy
from hpctrain.tensorflow import prepare_dataset_shard

X = np.arange(20, dtype="float32").reshape(10, 2)


@pytest.fixture
def shard() -> DataIterator:
    dataset = from_numpy({"x": X, "y": np.arange(10, dtype="int64"), "z": np.ones(10)})
    return dataset.shard(rank=1, world_size=2)


def test_each_pass_over_the_dataset_is_the_next_epoch_of_this_ranks_rows(shard: DataIterator):
    dataset = shard.to_tf("x", "y", batch_size=2, shuffle=True)
    assert shard.epoch == 0
    epochs = [[labels.numpy().tolist() for _, labels in dataset] for _ in range(2)]
    assert [[len(batch) for batch in epoch] for epoch in epochs] == [[2, 2, 1]] * 2
    assert epochs[0] != epochs[1]
    assert shard.epoch == 2
    assert int(dataset.cardinality()) == 3


def test_an_epoch_that_is_resumed_has_the_rest_of_its_batches(shard: DataIterator):
    next(shard.iter_batches(batch_size=2))
    state = shard.state_dict()
    resumed = from_numpy({"y": np.arange(10)}).shard(rank=1, world_size=2)
    resumed.load_state_dict(state)
    batches = [labels.numpy().tolist() for _, labels in resumed.to_tf("y", "y", batch_size=2)]
    assert [len(batch) for batch in batches] == [2, 1]


def test_an_epoch_is_over_before_its_last_batch_is_used(shard: DataIterator):
    batches = iter(shard.to_tf("x", "y", batch_size=2))
    for _ in range(3):
        next(batches)
    assert shard.state_dict()["epoch"] == 1


def test_one_column_is_a_tensor_and_several_are_a_dict(shard: DataIterator):
    dataset = shard.to_tf(["x", "z"], "y", batch_size=4)
    features, labels = dataset.element_spec
    assert features == {
        "x": tensorflow.TensorSpec((None, 2), tensorflow.float32),
        "z": tensorflow.TensorSpec((None,), tensorflow.float64),
    }
    assert labels == tensorflow.TensorSpec((None,), tensorflow.int64)
    features, labels = next(iter(dataset))
    assert labels.numpy().tolist() == [5, 6, 7, 8]
    assert np.array_equal(features["x"], X[5:9])


def test_a_column_that_is_not_there_is_named(shard: DataIterator):
    with pytest.raises(ConfigError, match="'w'"):
        shard.to_tf("w", "y")


def test_a_prepared_dataset_is_not_split_again(shard: DataIterator):
    prepared = prepare_dataset_shard(shard.to_tf("x", "y", batch_size=4))
    off = tensorflow.data.experimental.AutoShardPolicy.OFF
    assert prepared.options().experimental_distribute.auto_shard_policy == off
    assert next(iter(prepared))[1].numpy().tolist() == [5, 6, 7, 8]


def test_a_dataset_gives_all_its_rows_in_every_pass() -> None:
    whole = from_numpy({"x": X, "y": np.arange(10, dtype="int64")})
    pairs = whole.to_tf("x", ["y"], batch_size=4)
    for _ in range(2):
        batches = list(pairs)
        assert [len(features) for features, _ in batches] == [4, 4, 2]
        assert np.concatenate([b["y"] for _, b in batches]).tolist() == list(range(10))
    assert pairs.element_spec[0] == tensorflow.TensorSpec((None, 2), tensorflow.float32)
    dropped = whole.to_tf("x", "y", batch_size=4, drop_last=True)
    assert [len(labels) for _, labels in dropped] == [4, 4]


@pytest.mark.parametrize("of", ["dataset", "shard"])
def test_batches_are_tensors_of_each_column_in_the_types_that_are_asked_for(
    of: str, shard: DataIterator
) -> None:
    rows = shard if of == "shard" else from_numpy({"x": X[5:], "y": np.arange(5, 10), "z": X[5:]})
    batches = rows.iter_tf_batches(batch_size=2, dtypes={"x": tensorflow.float64})
    for _ in range(2):
        found = list(batches)
        assert [len(batch["y"]) for batch in found] == [2, 2, 1]
        assert all(tensorflow.is_tensor(values) for batch in found for values in batch.values())
        assert {batch["x"].dtype for batch in found} == {tensorflow.float64}
        assert {batch["y"].dtype for batch in found} == {tensorflow.int64}
        assert np.array_equal(np.concatenate([batch["x"] for batch in found]), X[5:])


def test_a_dataset_of_texts_gives_tensors_of_bytes() -> None:
    (batch,) = from_numpy({"name": np.array(["a", "ß"])}).iter_tf_batches(batch_size=2)
    assert batch["name"].dtype == tensorflow.string
    assert [text.decode() for text in batch["name"].numpy()] == ["a", "ß"]
