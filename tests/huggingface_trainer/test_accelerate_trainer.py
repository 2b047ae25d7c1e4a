"""`AccelerateTrainer`: Accelerate on the ranks, and what its configuration becomes there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain import ConfigError, FailureConfig, Result, RunConfig, ScalingConfig
from hpctrain.huggingface import AccelerateConfig, AccelerateTrainer
from hpctrain.testing.backend_contract import BackendContract
from hpctrain.torch import TorchConfig
from tests import runs

pytest.importorskip("accelerate")

FSDP = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: BertLayer
  fsdp_state_dict_type: SHARDED_STATE_DICT
num_machines: 7
num_processes: 56
main_process_ip: 10.1.2.3
main_process_port: 12345
machine_rank: 3
"""
GPUS = ScalingConfig(num_workers=2, use_gpu=True)


def variables(trainer: AccelerateTrainer) -> dict[str, str]:
    config = trainer.backend_config
    assert isinstance(config, AccelerateConfig)
    return dict(config.variables)


def nothing() -> None: ...


@pytest.mark.mpi
class TestAccelerateBackend(BackendContract):
    backend_config = AccelerateConfig()

    @staticmethod
    def rank_and_size() -> tuple[int, int]:
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        return accelerator.process_index, accelerator.num_processes

    @staticmethod
    def sum_over_ranks(value: float) -> float:
        import torch
        from accelerate import Accelerator

        total: Any = Accelerator(cpu=True).reduce(torch.tensor(value), reduction="sum")
        return float(total)


def test_what_accelerate_launch_would_export_comes_from_the_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fsdp.yaml").write_text(FSDP)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    before = dict(os.environ)
    trainer = AccelerateTrainer(
        nothing, accelerate_config=tmp_path / "fsdp.yaml", scaling_config=GPUS
    )
    found = variables(trainer)
    assert found["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert found["ACCELERATE_USE_FSDP"] == "true"
    assert found["FSDP_VERSION"] == "2"
    assert found["FSDP_TRANSFORMER_CLS_TO_WRAP"] == "BertLayer"
    assert found["FSDP_STATE_DICT_TYPE"] == "SHARDED_STATE_DICT"
    assert not any("10.1.2.3" in value or "12345" in value for value in found.values())
    assert all(name.startswith(("ACCELERATE_", "FSDP_")) for name in found)
    assert dict(os.environ) == before
    assert trainer.backend_config.backend == "cpu:gloo,cuda:nccl", "for what is gathered on the CPU"
    given = AccelerateTrainer(
        nothing, torch_config=TorchConfig(timeout_s=5), scaling_config=ScalingConfig(num_workers=2)
    )
    assert given.backend_config == AccelerateConfig(timeout_s=5)


@pytest.mark.parametrize("use_gpu", [True, False])
def test_a_configuration_without_a_distributed_type_is_for_what_workers_have(use_gpu: bool) -> None:
    scaling = ScalingConfig(num_workers=2, use_gpu=use_gpu)
    kind = "MULTI_GPU" if use_gpu else "MULTI_CPU"
    found = [
        variables(AccelerateTrainer(nothing, accelerate_config=config, scaling_config=scaling))
        for config in ({}, {"distributed_type": kind})
    ]
    assert found[0] == found[1]


def test_deepspeed_s_file_travels_with_the_run_and_is_what_its_plugin_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
        "gradient_clipping": 0.5,
        "train_micro_batch_size_per_gpu": "auto",
    }
    (tmp_path / "zero.json").write_text(json.dumps(settings))
    config = {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"deepspeed_config_file": "zero.json", "zero3_init_flag": True},
    }
    monkeypatch.chdir(tmp_path)
    trainer = AccelerateTrainer(nothing, accelerate_config=config, scaling_config=GPUS)
    (tmp_path / "zero.json").unlink()

    # DeepSpeed itself needs GPUs; what Accelerate makes of the variables on a rank does not.
    for name, value in variables(trainer).items():
        monkeypatch.setenv(name, value)
    from accelerate.utils import DeepSpeedPlugin

    plugin = DeepSpeedPlugin()
    assert plugin.zero_stage == 3
    assert plugin.zero3_init_flag is True
    assert plugin.offload_param_device == "cpu"
    assert plugin.gradient_clipping == 0.5
    assert plugin.deepspeed_config["zero_optimization"]["stage"] == 3


@pytest.mark.parametrize(
    ("config", "use_gpu", "says"),
    [
        ({"distributed_type": "FSDP"}, False, r"FSDP, and use_gpu=False.*prepare_model"),
        ({"distributed_type": "DEEPSPEED"}, False, "DEEPSPEED, and use_gpu=False"),
        ({"distributed_type": "MULTI_CPU"}, True, "is for CPUs .* and use_gpu=True"),
        ({"distributed_type": "MULTI_GPU", "use_cpu": True}, True, "is for CPUs"),
        ({"distributed_type": "XLA"}, False, "is for TPUs"),
        ({"distributed_type": "NO", "compute_environment": "AMAZON_SAGEMAKER"}, False, "SAGEMAKER"),
        ({"distributed_type": "NO", "precision": "bf16"}, False, r"unknown keys \(\['precision"),
        ({"distributed_type": "NO", "mixed_precision": "bf17"}, False, "refuses.*bf17"),
        (
            {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "no"}},
            True,
            "deepspeed_config_file='no' cannot be read: No such file",
        ),
        ("no.yaml", False, r"accelerate_config='no.yaml' cannot be read: No such file"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_before_the_run(
    config: Any, use_gpu: bool, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        AccelerateTrainer(
            nothing,
            accelerate_config=config,
            scaling_config=ScalingConfig(num_workers=2, use_gpu=use_gpu),
        )


def _examination() -> Callable[[], Any]:
    """Return the training function; what it needs is inside, so that it travels by value."""

    def make_model() -> Any:
        import torch
        from torch import nn

        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 2))

    def look(accelerator: Any, before: int) -> dict[str, Any]:
        import torch

        one_more = torch.tensor([accelerator.process_index + 1.0])
        return {
            "ranks": (before, accelerator.num_processes, accelerator.process_index),
            "debug": accelerator.state.debug,
            "type": str(accelerator.distributed_type.value),
            "threads": torch.get_num_threads(),
            "sum": accelerator.reduce(one_more).item(),
        }

    def train(accelerator: Any, checkpoint: Any, *, dies: bool, reports: bool) -> dict[str, Any]:
        import os
        import signal

        import torch

        import hpctrain

        model = make_model()
        model, optimizer = accelerator.prepare(
            model, torch.optim.AdamW(model.parameters(), lr=0.01)
        )
        first = 0
        if checkpoint is not None:
            with checkpoint.as_directory() as directory:
                accelerator.load_state(directory)
                first = int(Path(directory, "step").read_text())
        for step in range(first, 5):
            if dies and step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            # Of this rank's own random numbers, which are a part of the state.
            accelerator.backward(model(torch.randn(4, 6)).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            if reports:
                with hpctrain.checkpoint_dir() as directory:
                    accelerator.save_state(directory)
                    if accelerator.is_main_process:
                        Path(directory, "step").write_text(str(step + 1))
                    hpctrain.report({"step": step + 1}, hpctrain.Checkpoint(directory))
        state = {k: v.tolist() for k, v in accelerator.unwrap_model(model).state_dict().items()}
        accelerator.free_memory()
        return state

    def shard(accelerator: Any) -> tuple[int, int]:
        import torch
        from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

        # Accelerate takes FSDP on GPUs only. What its plugin does is shown by telling it so.
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["Linear"],
            cpu_ram_efficient_loading=False,
        )
        model = make_model()
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        accelerator.backward(model(torch.randn(4, 6)).square().mean())
        optimizer.step()
        shares = [p.to_local().numel() for p in model.parameters() if hasattr(p, "to_local")]
        return sum(shares), sum(p.numel() for p in make_model().parameters())

    def examine() -> Any:
        import torch
        from accelerate import Accelerator, PartialState

        import hpctrain
        from hpctrain.worker.context import active_worker

        before = PartialState().num_processes
        world = hpctrain.get_context().world
        accelerator = Accelerator()
        torch.manual_seed(world.world_rank)
        start = torch.get_rng_state()
        dies = world.attempt == 1 and world.world_rank == 1
        found = look(accelerator, before)
        found["resumed"] = train(accelerator, hpctrain.get_checkpoint(), dies=dies, reports=True)
        torch.set_rng_state(start)
        found["whole"] = train(accelerator, None, dies=False, reports=False)
        found["shards"] = shard(accelerator)
        return active_worker("examine").comm.allgather(found)

    return examine


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Return what two ranks found, one of which was killed at first."""
    return runs.fit(
        _examination(),
        tmp_path_factory.mktemp("accelerate"),
        trainer=AccelerateTrainer,
        accelerate_config={"distributed_type": "MULTI_CPU", "debug": True},
        failure_config=FailureConfig(max_failures=1),
    )


@pytest.mark.mpi
def test_accelerate_sees_the_ranks_and_its_configuration(result: Result) -> None:
    for rank, found in enumerate(result.return_value):
        assert found["ranks"] == (2, 2, rank)
        assert found["debug"] is True, "what accelerate_config says"
        assert found["type"] == "MULTI_CPU"
        assert found["threads"] == 1
        assert found["sum"] == 3.0


@pytest.mark.mpi
def test_a_loop_goes_on_from_its_state_after_a_rank_was_killed(result: Result) -> None:
    assert [metrics["step"] for metrics in result.metrics_history] == [1, 2, 3, 4, 5]
    assert len(result.attempts) == 2
    expected = result.return_value[0]["whole"]
    for found in result.return_value:
        assert found["resumed"] == found["whole"] == expected


@pytest.mark.mpi
def test_fsdp_s_plugin_shards_over_the_ranks(result: Result) -> None:
    shares = [found["shards"][0] for found in result.return_value]
    whole = result.return_value[0]["shards"][1]
    assert sum(shares) == whole
    assert max(shares) < 0.7 * whole


def test_the_library_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(ConfigError, match=r"pip install 'hpctrain\[huggingface\]'"):
        AccelerateTrainer(
            nothing,
            scaling_config=ScalingConfig(num_workers=0),
            run_config=RunConfig(storage_path=tmp_path, verbose=0),
        ).fit()


def test_accelerate_gathers_over_the_group_that_there_is_though_torch_has_mpi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch import distributed

    # As Debian's torch, for which Accelerate would choose MPI, whatever the group is of.
    monkeypatch.setattr(distributed, "is_mpi_available", lambda: True)

    def train() -> Any:
        import torch
        from accelerate import Accelerator

        accelerator = Accelerator()
        return accelerator.state.backend, accelerator.gather(torch.ones(1, 2)).tolist()

    result = AccelerateTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=tmp_path, verbose=0),
    ).fit()
    assert result.return_value == ("gloo", [[1.0, 1.0]])
