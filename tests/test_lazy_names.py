from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

import hpctrain
import hpctrain.callbacks
from hpctrain.errors import UnavailableNameError


def test_a_name_that_is_almost_right_is_corrected():
    with pytest.raises(ImportError) as refusal:
        exec("from hpctrain.callbacks import MLFlowLoggerCallback")
    assert str(refusal.value) == (
        "hpctrain.callbacks has no MLFlowLoggerCallback. Did you mean 'MLflowLoggerCallback'?"
    )
    with pytest.raises(UnavailableNameError, match="Did you mean 'ScalingConfig'"):
        hpctrain.ScallingConfig  # noqa: B018


def test_names_that_tools_ask_for_are_attributes_that_are_not_there():
    for name in ("setup_module", "setUpModule", "pytest_plugins", "__wrapped__", "__path__x"):
        assert not hasattr(hpctrain.callbacks, name)
        assert not hasattr(hpctrain, name)


def test_a_module_that_is_no_package_lacks_a_name_too():
    from hpctrain.tune import stopper

    assert not hasattr(stopper, "__wrapped__")


def test_a_module_of_the_package_is_no_misspelled_name():
    program = "import sys; from hpctrain import timeouts; print('difflib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


# Changing one makes the digest of every training function that refers to it another one, and the
# spec of a run that waits in the queue unreadable.
HOMES = {
    "backend": "Backend BackendConfig",
    "callback": "RunContext UserCallback",
    "checkpoint": "Checkpoint CheckpointUploadMode ReportedCheckpoint",
    "config": ("CheckpointConfig FailureConfig LoggingConfig RunConfig ScalingConfig SyncConfig"),
    "container": "Container",
    "data_config": "DataConfig",
    "execute.backend_executor": "BackendExecutor",
    "execute.worker_group": "WorkerGroup",
    "launch.handle": "RunHandle wait",
    "result": "Result",
    "slurm_config": "SlurmConfig",
    "trainer": "BaseTrainer DataParallelTrainer",
    "validation_config": "ValidationConfig ValidationFn ValidationTaskConfig",
    "worker.context": (
        "PreemptionInfo TrainContext artifact_dir checkpoint_dir get_all_reported_checkpoints "
        "get_checkpoint get_context get_dataset_shard get_preemption_info heartbeat report "
        "should_stop"
    ),
    "world": "Communicator World",
}


@pytest.mark.parametrize("module", HOMES)
def test_pickles_find_public_names_where_they_have_always_been(module: str):
    for name in HOMES[module].split():
        public = getattr(hpctrain, name)
        assert (public.__module__, public.__qualname__) == (f"hpctrain.{module}", name)
        assert pickle.loads(pickle.dumps(public)) is public


def test_every_public_name_has_a_home_that_stays():
    homes = {name for names in HOMES.values() for name in names.split()}
    others = {
        name
        for name in hpctrain.__all__
        if getattr(getattr(hpctrain, name), "__module__", "").startswith("hpctrain.")
        and getattr(hpctrain, name).__module__ != "hpctrain.errors"
    }
    assert others == homes
