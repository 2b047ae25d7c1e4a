"""Every public name of Ray Data 2.60 is here, or an error says what to use instead.

``record_data.py`` wrote the names down.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hpctrain.data
from hpctrain.data import Dataset, from_items
from hpctrain.data.operations import scheduling
from hpctrain.data.operations.refused import INSTEAD as METHODS_INSTEAD
from hpctrain.errors import ConfigError, UnavailableNameError
from hpctrain.ray_names import INSTEAD

NAMES = json.loads(Path(__file__).with_name("data_names.json").read_text())


@pytest.mark.parametrize("name", NAMES["ray.data"])
def test_a_name_of_the_package_is_there_or_says_what_to_use_instead(name: str):
    if name in INSTEAD["hpctrain.data"]:
        with pytest.raises(UnavailableNameError, match=f"^hpctrain.data has no {name}: "):
            getattr(hpctrain.data, name)
    else:
        assert name in hpctrain.data.__all__
        getattr(hpctrain.data, name)


@pytest.mark.parametrize("name", NAMES["Dataset"])
def test_a_method_of_a_dataset_is_there_or_says_what_to_use_instead(name: str):
    dataset = from_items([1])
    if name in METHODS_INSTEAD:
        assert not hasattr(dataset, name)
        with pytest.raises(ConfigError, match=rf"^a Dataset has no {name}\(\): .+"):
            getattr(dataset, name)
    else:
        assert callable(getattr(Dataset, name))


def test_what_is_refused_is_not_there():
    assert not set(METHODS_INSTEAD) & set(dir(Dataset))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = from_items([1]).nothing


def test_strategies_of_actors_and_tasks_are_taken_and_said_to_mean_nothing(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(scheduling, "_said", set())
    rows = from_items([{"x": 1}])
    for compute in (
        hpctrain.data.ActorPoolStrategy(min_size=1, max_size=4),
        hpctrain.data.ActorPoolStrategy(size=2),
        hpctrain.data.TaskPoolStrategy(3),
    ):
        assert rows.map_batches(lambda batch: batch, compute=compute).count() == 1
    assert capfd.readouterr().err.count("compute has no effect") == 1
