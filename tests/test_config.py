from __future__ import annotations

import importlib
import inspect
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hpctrain.callback import UserCallback
from hpctrain.config import (
    CheckpointConfig,
    DataConfig,
    FailureConfig,
    LoggingConfig,
    RunConfig,
    ScalingConfig,
    SlurmConfig,
    SyncConfig,
    time_limit_minutes,
)
from hpctrain.errors import ConfigError

ALL = (
    SlurmConfig,
    ScalingConfig,
    FailureConfig,
    CheckpointConfig,
    SyncConfig,
    DataConfig,
    RunConfig,
)
BACKENDS = (
    "horovod.config.HorovodConfig",
    "huggingface.config.AccelerateConfig",
    "jax.config.JaxConfig",
    "lightgbm.config.LightGBMConfig",
    "lightning.config.LightningConfig",
    "tensorflow.config.TensorflowConfig",
    "torch.config.TorchConfig",
    "xgboost.config.XGBoostConfig",
)


@pytest.mark.parametrize("kind", ALL)
def test_a_configuration_does_not_change(kind: type):
    config = kind()
    for field in fields(kind):
        with pytest.raises(FrozenInstanceError):
            setattr(config, field.name, getattr(config, field.name))


@pytest.mark.parametrize("kind", ALL)
def test_a_configuration_can_be_pickled_and_stays_equal(kind: type):
    assert pickle.loads(pickle.dumps(kind())) == kind()


@pytest.mark.parametrize("kind", ALL)
def test_a_configuration_takes_keywords_only(kind: type):
    with pytest.raises(ConfigError, match=rf"{kind.__name__}\(1\): pass values by name"):
        kind(1)


@pytest.mark.parametrize("kind", ALL)
def test_an_unknown_keyword_is_refused_with_the_one_that_was_meant(kind: type):
    for field in fields(kind):
        typo = f"{field.name}s"
        message = rf"{kind.__name__} has no field '{typo}'\. Did you mean '\w+'\?"
        with pytest.raises(ConfigError, match=message):
            kind(**{typo: 1})
        # As Python itself would raise.
        with pytest.raises(TypeError):
            kind(**{typo: 1})
    with pytest.raises(ConfigError, match=r"no field 'zzz'\. It has \w+"):
        kind(zzz=1)


@pytest.mark.parametrize("name", BACKENDS)
def test_the_configuration_of_a_backend_refuses_an_unknown_keyword(name: str):
    module, _, kind = f"hpctrain.{name}".rpartition(".")
    with pytest.raises(ConfigError, match=rf"{kind} has no field 'zzz'"):
        getattr(importlib.import_module(module), kind)(zzz=1)


def test_a_configuration_shows_its_fields_to_editors():
    assert "partition" in inspect.signature(SlurmConfig).parameters


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"setup": "module load cuda"},
            r"SlurmConfig\(setup='module load cuda'\) is a string\. It is a list of strings: "
            r"setup=\['module load cuda'\]\.",
        ),
        ({"sbatch_args": "--x"}, "It is a list of strings: sbatch_args="),
        ({"srun_args": "--x"}, "It is a list of strings: srun_args="),
        ({"skip_directives": "mem"}, "It is a list of strings: skip_directives="),
        ({"nodes": 0}, r"SlurmConfig\(nodes=\.\.\.\) is 0\. It must be 1 or more\."),
        ({"nodes": 1.5}, r"SlurmConfig\(nodes=\.\.\.\) is 1\.5\. A whole number of 1 or more"),
        ({"spare_nodes": -1}, r"SlurmConfig\(spare_nodes=\.\.\.\) is -1\. It must be 0 or more"),
        ({"tasks_per_node": True}, r"tasks_per_node=\.\.\.\) is True\. A whole number"),
        (
            {"sbatch_args": ["mail-type=END"]},
            r"sbatch_args=\.\.\.\) holds 'mail-type=END'\. Each entry is one option as on a "
            r"command line, such as '--mail-type=END'",
        ),
        ({"srun_args": ["END"]}, r"srun_args=\.\.\.\) holds 'END'"),
        (
            {"gpu_request": "many"},
            r"gpu_request=\.\.\.\) is 'many'\. One of 'auto', 'gpus-per-node', ",
        ),
        ({"partition": "a\nb"}, r"SlurmConfig\(partition='a\\nb'\): one non-empty line is needed"),
        ({"account": ""}, r"SlurmConfig\(account=''\): one non-empty line .* leave the choice"),
        ({"time": "soon"}, r"SlurmConfig\(time='soon'\): Slurm reads minutes, minutes:seconds, "),
        ({"time": 1.5}, r"SlurmConfig\(time=1\.5\): Slurm reads minutes"),
        ({"time": 0}, r"SlurmConfig\(time=0\) is 0 minutes\. Ask for more than 0\."),
        ({"time": timedelta(hours=-1)}, r"is -60 minutes\. Ask for more than 0\."),
    ],
)
def test_an_impossible_slurm_config_is_refused(arguments: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        SlurmConfig(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_workers": -1}, r"ScalingConfig\(num_workers=\.\.\.\) is -1\. It must be 0 or more"),
        ({"num_workers": 2.0}, r"num_workers=\.\.\.\) is 2\.0\. A whole number of 0 or more"),
        ({"num_workers": None}, r"num_workers=\.\.\.\) is None\. A whole number"),
        ({"num_workers": (2, 4, 6)}, r"num_workers=\(2, 4, 6\)\): one number, or the fewest and"),
        ({"num_workers": (0, 4)}, r"num_workers=\(fewest, \.\.\.\)\) is 0\. It must be 1 or more"),
        ({"num_workers": (4, 2)}, r"the fewest workers come first, .* num_workers=\(2, 4\)"),
        ({"num_workers": (1, "4")}, r"num_workers=\(\.\.\., most\)\) is '4'\. A whole number"),
        (
            {"elastic_resize_monitor_interval_s": 0},
            r"interval_s=\.\.\.\) is 0\. A number of",
        ),
        ({"use_gpu": "no"}, r"use_gpu=\.\.\.\) holds 'no' of type str\. A bool is needed"),
        ({"slurm": {}}, r"slurm=\.\.\.\) holds \{\} of type dict\. A SlurmConfig is needed"),
        (
            {"placement_strategy": "pack"},
            r"placement_strategy=\.\.\.\) is 'pack'\. One of 'PACK', 'SPREAD', ",
        ),
        (
            {"resources_per_worker": [("CPU", 1)]},
            r"resources_per_worker=\.\.\.\) holds .* of type list\. A Mapping is needed",
        ),
        ({"label_selector": "milan"}, "of type str. A Mapping is needed"),
        ({"trainer_resources": 1}, "of type int. A Mapping is needed"),
        (
            {"resources_per_worker": {"TPU": 1, "disk": 2}},
            r"has the keys \['TPU', 'disk'\]\. Slurm has CPU, GPU and memory \(bytes\); request "
            r"anything else with SlurmConfig\(sbatch_args=\.\.\.\)",
        ),
        ({"resources_per_worker": {"CPU": -1}}, r"\{'CPU': -1\}\): a number that is not negative"),
        ({"resources_per_worker": {"CPU": "4"}}, r"\{'CPU': '4'\}\): a number that is not neg"),
        ({"resources_per_worker": {"CPU": True}}, r"\{'CPU': True\}\): a number"),
        ({"resources_per_worker": {"memory": float("nan")}}, r"\{'memory': nan\}\): a number"),
        ({"resources_per_worker": {"memory": float("inf")}}, r"\{'memory': inf\}\): a number"),
        (
            {"resources_per_worker": {"GPU": 0.5}, "use_gpu": True},
            r"\{'GPU': 0\.5\}\): a rank has whole CPUs, GPUs and bytes\. Use 1, or fewer workers",
        ),
        (
            {"resources_per_worker": {"CPU": 0}},
            "a rank is a process and needs at least one CPU. Leave CPU out, or ask for 1",
        ),
        (
            {"resources_per_worker": {"GPU": 2}},
            r"use_gpu=False\) with resources_per_worker GPU=2\..*set use_gpu=True, or drop GPU",
        ),
        (
            {"resources_per_worker": {"GPU": 0}, "use_gpu": True},
            r"use_gpu=True\) with resources_per_worker GPU=0\. Set use_gpu=False, or ask for at",
        ),
        ({"accelerator_type": "a100"}, r"accelerator_type='a100'\) needs use_gpu=True"),
        (
            {"trainer_resources": {"CPU": 2, "GPU": 1}},
            r"trainer_resources=\{'CPU': 2, 'GPU': 1\}\): only workers have GPUs",
        ),
    ],
)
def test_an_impossible_scaling_config_is_refused(arguments: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        ScalingConfig(**arguments)


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (
            FailureConfig,
            {"max_failures": -2},
            r"max_failures=\.\.\.\) is -2\. It must be -1 or more",
        ),
        (FailureConfig, {"max_failures": "3"}, r"max_failures=\.\.\.\) is '3'\. A whole number"),
        (CheckpointConfig, {"num_to_keep": 0}, r"num_to_keep=\.\.\.\) is 0\. It must be 1 or more"),
        (
            CheckpointConfig,
            {"checkpoint_score_attribute": 3},
            r"score_attribute=\.\.\.\) holds 3 of type int\. A str is needed",
        ),
        (
            CheckpointConfig,
            {"checkpoint_score_attribute": ""},
            r"score_attribute=\.\.\.\) is ''\. Leave it out, or give a value",
        ),
        (CheckpointConfig, {"checkpoint_at_end": "yes"}, r"end=\.\.\.\) holds 'yes' of type str"),
        (CheckpointConfig, {"keep_every_s": 0}, r"keep_every_s=\.\.\.\) is 0\. A number of sec"),
        (
            CheckpointConfig,
            {"checkpoint_score_order": "best"},
            r"score_order=\.\.\.\) is 'best'\. One of 'max', 'min' is needed",
        ),
        (
            FailureConfig,
            {"hang_timeout_s": 0},
            r"hang_timeout_s=\.\.\.\) is 0\. A number of seconds",
        ),
        (
            FailureConfig,
            {"slow_node_factor": 1.1},
            r"slow_node_factor=1\.1\) is too small\. Give how many times as long .* 1\.25 or more",
        ),
        (
            FailureConfig,
            {"slow_node_factor": True},
            r"slow_node_factor=True\) is not a finite number",
        ),
        (
            FailureConfig,
            {"slow_node_factor": float("nan")},
            r"=nan\) is not a finite number\. Give how",
        ),
        (
            FailureConfig,
            {"slow_node_factor": "2"},
            r"slow_node_factor='2'\) is not a finite number",
        ),
        (FailureConfig, {"start_timeout_s": None}, r"start_timeout_s=\.\.\.\) is None\. A number"),
        (SyncConfig, {"sync_timeout": 0}, r"SyncConfig\(sync_timeout=\.\.\.\) is 0\. A number"),
        (SyncConfig, {"sync_timeout": "1 h"}, r"sync_timeout=\.\.\.\) is '1 h'\. A number of"),
        (SyncConfig, {"sync_timeout": float("inf")}, r"sync_timeout=\.\.\.\) is inf\. A number of"),
        (SyncConfig, {"max_writers": 0}, r"max_writers=\.\.\.\) is 0\. It must be 1 or more"),
        (SyncConfig, {"max_writers": 1.5}, r"max_writers=\.\.\.\) is 1\.5\. A whole number"),
        (
            SyncConfig,
            {"max_bytes_per_s": 500},
            r"max_bytes_per_s=500\) is too small\. Give bytes a second of each rank, 1e\+06",
        ),
        (SyncConfig, {"max_bytes_per_s": "1G"}, r"max_bytes_per_s='1G'\) is not a finite number"),
        (SyncConfig, {"scratch_dir": ""}, r"scratch_dir=\.\.\.\) is ''\. Leave it out"),
        (SyncConfig, {"sync_artifacts": "no"}, r"sync_artifacts=\.\.\.\) holds 'no' of type str"),
        (
            DataConfig,
            {"datasets_to_split": "train"},
            r"='train'\): `datasets_to_split` should be 'all' or a list of dataset names\. Give",
        ),
        (
            DataConfig,
            {"datasets_to_split": 3},
            r"datasets_to_split=3\): `datasets_to_split` should be 'all' or a list",
        ),
        (
            RunConfig,
            {"name": "a/b"},
            r"RunConfig\(name='a/b'\): a run is a directory and a Slurm job name\. Use 1 to 128",
        ),
        (RunConfig, {"name": ""}, r"RunConfig\(name=''\)"),
        (RunConfig, {"name": "..", "storage_path": "."}, r"beginning with a letter or digit"),
        (RunConfig, {"name": "x" * 129}, "Use 1 to 128 letters"),
        (
            RunConfig,
            {"storage_path": "s3://bucket/runs"},
            r"storage_path='s3://bucket/runs'\) is a URL\..*give a directory there",
        ),
        (RunConfig, {"storage_path": 5}, r"holds 5 of type int\. A str or PathLike is needed"),
        (RunConfig, {"failure_config": 3}, r"holds 3 of type int\. A FailureConfig is needed"),
        (RunConfig, {"checkpoint_config": {}}, r"A CheckpointConfig is needed"),
        (RunConfig, {"sync_config": 1.0}, r"A SyncConfig is needed"),
        (RunConfig, {"callbacks": UserCallback()}, r"of type UserCallback\. A Sequence is needed"),
        (
            RunConfig,
            {"callbacks": [print]},
            r"callbacks=\[\.\.\.\]\) holds .* of type builtin_function_or_method\. A UserCallback",
        ),
        (RunConfig, {"stop": 0.9}, r"stop=\.\.\.\) holds 0\.9 of type float\. A Mapping is needed"),
        (RunConfig, {"log_to_file": 0}, r"log_to_file=\.\.\.\) holds 0 of type int"),
        (RunConfig, {"verbose": 4}, r"verbose=\.\.\.\) is 4\. One of 0, 1, 2 is needed"),
        (RunConfig, {"launcher": "ray"}, r"launcher=\.\.\.\) is 'ray'\. One of 'auto', 'local', "),
    ],
)
def test_an_impossible_value_is_refused(kind: type, arguments: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        kind(**arguments)


@pytest.mark.parametrize(
    ("time", "minutes"),
    [
        ("30", 30),
        ("30:30", 30.5),
        ("2:00:00", 120),
        ("1-12", 2160),
        ("1-12:30", 2190),
        ("1-12:30:30", 2190.5),
        ("0-1", 60),
        (45, 45),
        (timedelta(hours=2), 120),
    ],
)
def test_a_time_limit_is_read_as_slurm_reads_it(time: object, minutes: float):
    assert time_limit_minutes(time) == minutes  # type: ignore[arg-type]


@pytest.mark.parametrize("time", ["1:2:3:4", "-5", "1h", "", "1-", "1--2"])
def test_a_time_limit_that_slurm_does_not_read_is_refused(time: str):
    with pytest.raises(ConfigError, match="Slurm reads minutes"):
        time_limit_minutes(time)


def test_a_worker_has_one_cpu_and_with_use_gpu_one_gpu_unless_told_otherwise():
    plain = ScalingConfig(num_workers=4)
    assert (plain.num_cpus_per_worker, plain.num_gpus_per_worker) == (1, 0)
    assert plain.mem_bytes_per_worker is None
    assert plain.total_resources == {"CPU": 4}
    rich = ScalingConfig(
        num_workers=4,
        use_gpu=True,
        resources_per_worker={"CPU": 8.0, "GPU": 2, "memory": 2.0**30},
    )
    assert (rich.num_cpus_per_worker, rich.num_gpus_per_worker) == (8, 2)
    assert rich.mem_bytes_per_worker == 2**30
    assert rich.total_resources == {"CPU": 32, "GPU": 8}
    assert ScalingConfig(use_gpu=True).num_gpus_per_worker == 1


def test_a_debugger_run_has_the_resources_of_one_worker():
    assert ScalingConfig(num_workers=0).total_resources == {"CPU": 1}


def test_resources_of_the_coordinator_are_taken_and_said_once_to_mean_nothing(capfd):
    config = ScalingConfig(num_workers=2, trainer_resources={"CPU": 7, "memory": 123})
    replace(config, num_workers=3)
    said = capfd.readouterr().err
    assert said.count("trainer_resources={'CPU': 7, 'memory': 123}) has no effect here") == 1
    assert config.total_resources == {"CPU": 2}


def test_a_configuration_keeps_its_own_copy_of_what_it_was_given():
    resources = {"CPU": 2}
    config = ScalingConfig(resources_per_worker=resources, trainer_resources={"CPU": 0})
    resources["CPU"] = 0
    assert config.num_cpus_per_worker == 2
    setup = ["module load a"]
    slurm = SlurmConfig(setup=setup)
    setup.append("exit 1")
    assert slurm.setup == ("module load a",)


def test_datasets_to_split_are_all_or_those_named():
    assert DataConfig().datasets_to_split == "all"
    assert DataConfig(datasets_to_split=["train"]).datasets_to_split == ("train",)
    assert DataConfig(datasets_to_split=[]).datasets_to_split == ()


def test_a_storage_path_may_be_a_path():
    assert RunConfig(storage_path=Path("/scratch/runs")).storage_path == "/scratch/runs"


def test_a_run_may_be_stopped_by_a_mapping_or_a_function():
    assert RunConfig(stop={"accuracy": 0.9}).stop == {"accuracy": 0.9}
    assert callable(RunConfig(stop=lambda number, metrics: number > 3).stop)


def test_what_ray_tune_takes_for_a_run_is_taken():
    assert RunConfig(stop={"done": True, "loss": 0.5}).stop == {"done": 1, "loss": 0.5}
    for given, meant in ((False, 0), (True, 1), (3, 2)):
        assert RunConfig(verbose=given).verbose == meant
        assert type(RunConfig(verbose=given).verbose) is int
    with pytest.raises(ConfigError, match="One of 0, 1, 2"):
        RunConfig(verbose=4)


def test_an_elastic_size_is_a_range_and_two_equal_numbers_are_a_fixed_one():
    elastic = ScalingConfig(num_workers=(2, 4), resources_per_worker={"CPU": 3})
    assert (elastic.min_workers, elastic.max_workers) == (2, 4)
    assert elastic.elasticity_enabled
    assert elastic.total_resources == {"CPU": 12}
    assert ScalingConfig(num_workers=(4, 4)) == ScalingConfig(num_workers=4)
    assert not ScalingConfig(num_workers=4).elasticity_enabled


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        (ScalingConfig(), "ScalingConfig()"),
        (
            ScalingConfig(num_workers=(2, 4), slurm=SlurmConfig(time="1:00:00")),
            "ScalingConfig(num_workers=(2, 4), slurm=SlurmConfig(time='1:00:00'))",
        ),
        (
            RunConfig(name="r", failure_config=FailureConfig(max_failures=2), stop={"loss": 1}),
            "RunConfig(name='r', failure_config=FailureConfig(max_failures=2), stop={'loss': 1})",
        ),
        # 1 == True, and they differ all the same.
        (CheckpointConfig(num_to_keep=1), "CheckpointConfig(num_to_keep=1)"),
    ],
)
def test_a_config_prints_what_differs_from_its_defaults(config: object, shown: str) -> None:
    assert repr(config) == shown
    assert eval(shown) == config


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            ScalingConfig,
            "use_gpu resources_per_worker placement_strategy accelerator_type label_selector "
            "trainer_resources slurm",
        ),
        (FailureConfig, "max_failures controller_failure_limit max_preemption_failures"),
        (
            CheckpointConfig,
            "num_to_keep checkpoint_score_attribute checkpoint_score_order checkpoint_frequency "
            "checkpoint_at_end",
        ),
        (SyncConfig, "sync_artifacts scratch_dir"),
        (DataConfig, "datasets_to_split"),
        (
            RunConfig,
            "name storage_path failure_config checkpoint_config sync_config callbacks stop verbose "
            "log_to_file launcher existing",
        ),
    ],
)
def test_none_is_the_default_where_ray_train_takes_it(kind: type, names: str):
    assert kind(**dict.fromkeys(names.split())) == kind()


@pytest.mark.parametrize("name", ["hang_timeout", "start_timeout"])
def test_a_former_name_of_a_field_is_taken_with_a_warning(name: str) -> None:
    with pytest.warns(
        FutureWarning, match=rf"FailureConfig\({name}=...\) is now .*{name}_s="
    ) as seen:
        config = FailureConfig(**{name: 30.0})
    assert seen[0].filename == __file__
    assert config == FailureConfig(**{f"{name}_s": 30.0})
    with pytest.warns(FutureWarning, match=f"{name}_s"):
        assert getattr(config, name) == 30.0
    with pytest.raises(ConfigError, match="both are the same"):
        FailureConfig(**{name: 30.0, f"{name}_s": 30.0})


@pytest.mark.parametrize(
    ("level", "verbose"), [("DEBUG", 2), ("info", 1), ("WARNING", 0), ("ERROR", 0), ("CRITICAL", 0)]
)
def test_a_logging_config_says_how_much_is_shown(level: str, verbose: int) -> None:
    config = RunConfig(logging_config=LoggingConfig(log_level=level))
    assert config.verbose == verbose
    assert replace(config, name="other").verbose == verbose
    assert RunConfig(logging_config=LoggingConfig(log_level=level), verbose=verbose) == config


def test_a_logging_config_that_contradicts_verbose_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"verbose=2, .*'ERROR'.*both set how much is shown"):
        RunConfig(verbose=2, logging_config=LoggingConfig(log_level="ERROR"))
    with pytest.raises(ConfigError, match=r"log_level=\.\.\.\) is 'LOUD'"):
        LoggingConfig(log_level="LOUD")
    with pytest.raises(ConfigError, match=r"log_level=\.\.\.\) holds 10 of type int"):
        LoggingConfig(log_level=10)


@pytest.mark.parametrize("names", ["all.log", ("out.log", "err.log"), ["out.log", "err.log"]])
def test_names_of_log_files_are_true(names: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert RunConfig(log_to_file=names).log_to_file is True
    assert "the file names are ignored" in capsys.readouterr().err


def test_a_hook_of_which_a_call_runs_nothing_is_refused():
    class Waits(UserCallback):
        async def after_report(self, *_: Any) -> None: ...  # type: ignore[override]

    with pytest.raises(ConfigError, match=r"callbacks.*Waits\.after_report is an async function"):
        RunConfig(callbacks=[Waits()])
