"""What is no tensor comes back as it was, through JSON, or is refused."""

from __future__ import annotations

import json
import random
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.torch.state.state_dict.json_values import decode, encode


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, -0.1, float("inf"), "text", b"\x00\xff", 1 + 2j, (), [], {}),
        (1, (2, [3, {"a": (4,)}])),
        {1: "a", (2, 3): "b"},
        {"$type": "mine"},
        Counter({30: 1, 80: 2}),
        {1, 2},
        frozenset({"x"}),
        random.Random(0).getstate(),
        torch.float16,
        torch.device("cuda:1"),
        np.float32(0.1),
        np.int64(2**40),
    ],
)
def test_a_value_comes_back_with_its_type(value: Any) -> None:
    back = decode(json.loads(json.dumps(encode(value, name="v"))))
    assert back == value
    assert type(back) is type(value)


def test_arrays_come_back_and_can_be_written_to() -> None:
    array = np.arange(6, dtype=np.uint32).reshape(2, 3)
    back = decode(json.loads(json.dumps(encode(array, name="v"))))
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)
    back[0, 0] = 7


def test_an_ordered_dict_comes_back_in_its_order() -> None:
    value = OrderedDict([("b", 1), ("a", 2)])
    assert list(decode(encode(value, name="v"))) == ["b", "a"]


def test_what_would_have_to_be_pickled_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"scheduler\.lambdas\[1\] is a builtins\.function"):
        encode({"lambdas": [1, lambda step: step]}, name="scheduler")


def test_a_type_of_a_newer_version_is_refused() -> None:
    with pytest.raises(CheckpointError, match="'quaternion'"):
        decode({"$type": "quaternion", "value": []})
