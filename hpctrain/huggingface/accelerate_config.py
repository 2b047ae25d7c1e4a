"""What ``accelerate launch --config_file`` would export, from the same file."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from hpctrain import timeouts
from hpctrain.data.optional import require
from hpctrain.errors import ConfigError

AccelerateFile = Mapping[str, Any] | str | PathLike[str]

# Here hpctrain decides: ScalingConfig says how many ranks there are, MPI how they find each other.
_OURS: Mapping[str, Any] = {
    "num_processes": 1,
    "num_machines": 1,
    "machine_rank": 0,
    "main_process_ip": None,
    "main_process_port": None,
    "rdzv_backend": "static",
    "gpu_ids": "all",
    "mpirun_config": {},
}
_FOR_GPUS = ("DEEPSPEED", "FSDP", "MEGATRON_LM")
_DEEPSPEED_FILE = "deepspeed_config_file"


def read_variables(config: AccelerateFile, *, use_gpu: bool) -> dict[str, str]:
    """Return the environment variables that a configuration of Accelerate stands for.

    Not collective. Accelerate itself makes them, in a process of its own: its launcher sets up
    logging, and imports torch.

    Parameters
    ----------
    config
        Path of a file that ``accelerate config`` wrote, or what would be in it. What it says of
        processes, machines and addresses does not count. Without ``distributed_type`` it is
        MULTI_GPU or MULTI_CPU, by `use_gpu`.
    use_gpu
        Whether workers have GPUs.

    Raises
    ------
    ConfigError
        If the file, or the DeepSpeed file that it names, cannot be read; if it contradicts
        `use_gpu`; or if Accelerate refuses it.
    """
    content, where = _read(config)
    # Ray Train's examples give an empty one; what workers have is known here.
    content.setdefault("distributed_type", "MULTI_GPU" if use_gpu else "MULTI_CPU")
    _check(content, where, use_gpu=use_gpu)
    content = {**content, **_OURS}
    deepspeed = dict(content.get("deepspeed_config") or {})
    if _DEEPSPEED_FILE in deepspeed:
        # The file itself travels with the run, so that it may change while the job waits.
        own = _read_json(Path(deepspeed[_DEEPSPEED_FILE]), where)
        packed = base64.urlsafe_b64encode(json.dumps(own).encode()).decode()
        content["deepspeed_config"] = {**deepspeed, _DEEPSPEED_FILE: packed}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "hpctrain.huggingface.launch_variables"],
            input=json.dumps(content),
            capture_output=True,
            text=True,
            timeout=timeouts.ACCELERATE_FILE_S,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"Accelerate did not read {where} within "
            f"{timeouts.describe(timeouts.ACCELERATE_FILE_S)}. Is the filesystem slow? Try again."
        ) from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ConfigError(
            f"Accelerate refuses {where}: {lines[-1]} 'accelerate config' writes a file that it "
            f"takes."
        )
    variables: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return variables


def _read(config: AccelerateFile) -> tuple[dict[str, Any], str]:
    if isinstance(config, Mapping):
        return dict(config), "accelerate_config={...}"
    path = Path(config)
    where = f"accelerate_config={str(config)!r}"
    yaml = require("yaml", to="to read a configuration of Accelerate", extra="huggingface")
    try:
        # JSON is YAML too.
        content: object = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{where} cannot be read: {error.strerror}. Give the path of a file that 'accelerate "
            f"config --config_file' wrote, or a dict."
        ) from error
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{where} is neither YAML nor JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{where} holds a {type(content).__name__}, and a mapping is needed.")
    return content, where


def _check(content: Mapping[str, Any], where: str, *, use_gpu: bool) -> None:
    kind = str(content["distributed_type"]).upper()
    if str(content.get("compute_environment", "LOCAL_MACHINE")) != "LOCAL_MACHINE":
        raise ConfigError(
            f"{where}: compute_environment={content['compute_environment']!r}. Workers run where "
            f"Slurm puts them: LOCAL_MACHINE is needed."
        )
    if kind in ("XLA", "TPU"):
        raise ConfigError(f"{where}: distributed_type={kind} is for TPUs, which are not there.")
    if kind in _FOR_GPUS and not use_gpu:
        raise ConfigError(
            f"{where}: distributed_type={kind}, and use_gpu=False. Accelerate does without it on "
            f"CPUs, silently. Set ScalingConfig(use_gpu=True), or distributed_type: MULTI_CPU; "
            f"hpctrain.torch.prepare_model(parallel_strategy='fsdp') shards on CPUs as well."
        )
    if use_gpu and (content.get("use_cpu") or kind == "MULTI_CPU"):
        raise ConfigError(
            f"{where} is for CPUs (use_cpu={content.get('use_cpu', False)}, "
            f"distributed_type={kind}), and use_gpu=True. Change one of them."
        )


def _read_json(path: Path, where: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{where}: deepspeed_config_file={str(path)!r} cannot be read: {error.strerror}. A "
            f"relative path counts from the working directory, {Path.cwd()}."
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{where}: deepspeed_config_file={str(path)!r} is not JSON: {error}"
        ) from error
