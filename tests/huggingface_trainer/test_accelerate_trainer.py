"""`AccelerateTrainer`: Accelerate on the ranks, and what its configuration becomes there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain import ConfigError, FailureConfig, RunConfig, ScalingConfig
from hpctrain.huggingface import AccelerateConfig, AccelerateTrainer
from hpctrain.testing.backend_contract import BackendContract
from hpctrain.torch import TorchConfig

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
        ({"mixed_precision": "bf16"}, False, "has no distributed_type"),
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


@pytest.mark.mpi
def test_a_rank_finds_its_configuration_and_fsdp_shards_by_it(
    tmp_path: Path, make_model: Callable[[], Any]
) -> None:
    def examine() -> Any:
        import torch
        from accelerate import Accelerator, PartialState
        from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

        import hpctrain
        from hpctrain.worker.context import active_worker

        before = PartialState().num_processes
        accelerator = Accelerator()
        found = {
            "ranks": (before, accelerator.num_processes, accelerator.process_index),
            "precision": accelerator.mixed_precision,
            "type": str(accelerator.distributed_type.value),
            "threads": torch.get_num_threads(),
            "sum": accelerator.reduce(torch.tensor([accelerator.process_index + 1.0])).item(),
        }
        # Accelerate takes FSDP on GPUs only. What its plugin does is shown by telling it so.
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["BertLayer"],
            cpu_ram_efficient_loading=False,
        )
        accelerator.state._mixed_precision = "no"
        accelerator.native_amp = False
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = accelerator.prepare(model, optimizer)
        inputs = torch.arange(12).reshape(2, 6) + 12 * accelerator.process_index
        loss = model(input_ids=inputs, labels=torch.tensor([0, 1])).loss
        accelerator.backward(loss)
        optimizer.step()
        shares = [p.to_local().numel() for p in model.parameters() if hasattr(p, "to_local")]
        found["sharded"] = sum(shares)
        found["parameters"] = sum(p.numel() for p in make_model().parameters())
        hpctrain.report({"loss": loss.item()})
        return active_worker("examine").comm.allgather(found)

    result = AccelerateTrainer(
        examine,
        accelerate_config={"distributed_type": "MULTI_CPU", "mixed_precision": "bf16"},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tmp_path, name="run", verbose=0, launcher="local"),
    ).fit()
    for rank, found in enumerate(result.return_value):
        assert found["ranks"] == (2, 2, rank)
        assert found["precision"] == "bf16"
        assert found["type"] == "MULTI_CPU"
        assert found["threads"] == 1
        assert found["sum"] == 3.0
    whole = result.return_value[0]["parameters"]
    assert sum(found["sharded"] for found in result.return_value) == whole
    assert all(found["sharded"] < 0.6 * whole for found in result.return_value)


@pytest.mark.mpi
def test_a_loop_goes_on_from_its_state_after_a_rank_was_killed(
    tmp_path: Path, make_model: Callable[[], Any]
) -> None:
    def train() -> Any:
        import os
        import signal

        import torch
        from accelerate import Accelerator

        import hpctrain
        from hpctrain.worker.context import active_worker

        context = hpctrain.get_context()
        accelerator = Accelerator()

        def trained(checkpoint: Any, *, reports: bool) -> dict[str, Any]:
            model = make_model()
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            model, optimizer = accelerator.prepare(model, optimizer)
            first = 0
            if checkpoint is not None:
                with checkpoint.as_directory() as directory:
                    accelerator.load_state(directory)
                    first = int((checkpoint.path / "step").read_text())
            for step in range(first, 5):
                if (
                    reports
                    and step == 3
                    and context.world.attempt == 1
                    and context.world.world_rank
                ):
                    os.kill(os.getpid(), signal.SIGKILL)
                # Of this rank's own random numbers, which are a part of the state.
                inputs = torch.randint(30, (4, 6))
                loss = model(input_ids=inputs, labels=inputs[:, 0] % 3).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                if reports:
                    with hpctrain.checkpoint_dir() as directory:
                        accelerator.save_state(directory)
                        if accelerator.is_main_process:
                            (Path(directory) / "step").write_text(str(step + 1))
                        hpctrain.report({"step": step + 1}, hpctrain.Checkpoint(directory))
            accelerator.free_memory()
            return dict(accelerator.unwrap_model(model).state_dict())

        torch.manual_seed(context.world.world_rank)
        start = torch.get_rng_state()
        resumed = trained(hpctrain.get_checkpoint(), reports=True)
        torch.set_rng_state(start)
        whole = trained(None, reports=False)
        return active_worker("train").comm.allgather((resumed, whole))

    result = AccelerateTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=tmp_path,
            name="run",
            verbose=0,
            launcher="local",
            failure_config=FailureConfig(max_failures=1),
        ),
    ).fit()
    assert [metrics["step"] for metrics in result.metrics_history] == [1, 2, 3, 4, 5]
    assert len(result.attempts) == 2
    (_, expected), _ = result.return_value
    for states in result.return_value:
        for state in states:
            for name, values in state.items():
                assert (values == expected[name]).all(), name


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
