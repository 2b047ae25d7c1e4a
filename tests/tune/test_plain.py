"""Configurations as JSON holds them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hpctrain.tune.plain import is_plain, readable


class _Unshown:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("value", [{"a": [1, None, True, 1.5]}, [], "text", {"": {}}])
def test_json_holds_exactly_what_is_plain(value: Any) -> None:
    assert is_plain(value)
    assert repr(json.loads(json.dumps(readable(value)))) == repr(value)


@pytest.mark.parametrize("value", [(1,), {"a": {1: 2}}, {1}, b"", np.float64(1), [np.arange(2)]])
def test_all_else_is_there_to_be_read(value: Any) -> None:
    assert not is_plain(value)
    assert json.dumps(readable(value))


def test_what_holds_itself_is_deep_or_cannot_be_shown_is_not_plain() -> None:
    itself: dict[str, Any] = {}
    itself |= {"a": itself, "b": [itself]}
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    for value in (itself, deep, _Unshown(), {1: 2}):
        assert not is_plain(value)
        json.dumps(readable(value))
    assert readable(itself) == {"a": "...", "b": ["..."]}
    assert readable({(1, 2): _Unshown()}) == {"(1, 2)": "a _Unshown that cannot be shown"}
