from __future__ import annotations

import re
import threading

import pytest

from hpctrain import ConfigError, RunConfig
from hpctrain.backend import BackendConfig
from hpctrain.plan.spec import (
    RunSpec,
    ValidationSpec,
    WorkerSpec,
    explain_large_pickle,
    pack,
    unpack,
)
from hpctrain.validation_config import ValidationTaskConfig
from tests.plans import SETTINGS

LOCK = threading.Lock()
BIG = b"x" * (11 * 2**20)


def worker_spec(train_loop, **changes) -> WorkerSpec:
    fields = {
        "train_loop_config": None,
        "takes_config": False,
        "backend_config": BackendConfig(),
        "datasets": {},
        "datasets_to_split": "all",
        "preprocessor": None,
        "metadata": {},
    }
    return WorkerSpec(train_loop=train_loop, **{**fields, **changes})


def by_value(function):
    # As if it were of the main script: pickled by value, with what it takes along.
    function.__module__ = "__main__"
    return function


@by_value
def train_with_global():
    return [LOCK for _ in range(2)]


@by_value
def train_with_helper():
    return train_with_global()


@by_value
def train_with_attribute(config):
    return config.LOCK


def test_an_unpicklable_global_is_named():
    with pytest.raises(
        ConfigError,
        match=r"^the training function cannot be sent to the workers, because it was found to be "
        r"non-serializable: .*cannot pickle .*At fault: global variable 'LOCK'\. ",
    ) as caught:
        pack(worker_spec(train_with_global), what="the training function")
    # As Ray Train's.
    assert isinstance(caught.value, TypeError)


def test_an_unpicklable_global_of_a_helper_is_named_with_the_helper():
    with pytest.raises(
        ConfigError,
        match=r"At fault: global variable 'LOCK' of global variable 'train_with_global'\. "
        r"Create it inside the training function instead\.",
    ):
        pack(worker_spec(train_with_helper), what="the training function")


def test_an_unpicklable_captured_variable_is_named():
    handle = threading.Lock()

    @by_value
    def train():
        return handle

    with pytest.raises(ConfigError, match="At fault: captured variable 'handle'"):
        pack(worker_spec(train), what="the training function")


def test_an_attribute_of_the_same_name_is_not_at_fault():
    pack(worker_spec(train_with_attribute), what="the training function")


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [
        ({"train_loop_config": {"lr": 0.1, "lock": LOCK}}, r"train_loop_config\['lock'\]"),
        ({"datasets": {"train": LOCK}}, r"datasets\['train'\]"),
        ({"preprocessor": LOCK}, "preprocessor"),
    ],
)
def test_an_unpicklable_argument_is_named(changes, culprit: str):
    with pytest.raises(ConfigError, match=f"At fault: {culprit}"):
        pack(worker_spec(print, **changes), what="the training function")


def test_an_unpicklable_stop_rule_is_named():
    run_config = RunConfig(stop=by_value(lambda number, metrics: LOCK))
    with pytest.raises(ConfigError, match=r"At fault: .*stop\. Create it where it is first used"):
        pack((run_config, None, None), what="RunConfig (callbacks, stop)")


@by_value
def train_with_big():
    return BIG


@pytest.mark.parametrize(
    ("spec", "culprit"),
    [
        (worker_spec(train_with_big), r"global variable 'BIG' \(11 MiB\)"),
        (worker_spec(print, datasets={"train": BIG}), r"datasets\['train'\] \(11 MiB\)"),
    ],
)
def test_what_makes_a_pickle_large_is_named(spec: WorkerSpec, culprit: str):
    warning = explain_large_pickle(spec, pack(spec, what="it"))
    assert warning is not None
    assert re.search(f"Most of it is {culprit}", warning)


def test_a_small_pickle_is_not_worth_a_word():
    spec = worker_spec(print)
    assert explain_large_pickle(spec, pack(spec, what="it")) is None


def test_what_is_packed_comes_back():
    assert unpack(pack(by_value(lambda x: x + 1), what="it"))(1) == 2


def test_a_run_spec_comes_back_from_its_bytes():
    spec = RunSpec(
        trainer="a.B",
        backend="c.D",
        fingerprint="00",
        digests={"training function": "11"},
        settings=SETTINGS,
        worker=b"w",
        executor=b"",
    )
    assert RunSpec.from_bytes(spec.to_bytes()) == spec


def test_a_validation_that_an_older_version_has_packed_is_a_process():
    task = ValidationTaskConfig()
    stored = ValidationSpec(fn=b"", task_config=task, use_gpu=False, wait_timeout_s=1.0)
    for name in ("slurm_config", "resources", "max_jobs", "job"):
        del stored.__dict__[name]
    found = unpack(pack(stored, what="it"))
    assert (found.job, found.slurm_config, found.resources, found.max_jobs) == (None, None, None, 1)
