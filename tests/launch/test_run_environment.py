"""Which variables of the shell a run records, and how they are repeated."""

from __future__ import annotations

import pytest

from hpctrain import environ
from hpctrain.launch.run_environment import (
    Variables,
    differing_names,
    read_variables,
    select_variables,
)


@pytest.mark.parametrize(
    "name",
    [
        *("OMP_NUM_THREADS", "OMP_PROC_BIND", "MKL_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG"),
        *("NCCL_ALGO", "NCCL_SOCKET_IFNAME", "TORCH_NCCL_BLOCKING_WAIT", "PYTHONHASHSEED"),
        *("PYTORCH_CUDA_ALLOC_CONF", "NVIDIA_TF32_OVERRIDE", "XLA_FLAGS", "TF_DETERMINISTIC_OPS"),
        *("UCX_TLS", "FI_PROVIDER", "OMPI_MCA_btl", "I_MPI_FABRICS", "MPICH_OFI_NIC_POLICY"),
        *("HPCTRAIN_FORK_SERVER", "HPCTRAIN_HUB_FANOUT", "LD_PRELOAD", "CUDA_LAUNCH_BLOCKING"),
        *("HOROVOD_GLOO_IFACE", "HOROVOD_FUSION_THRESHOLD", "PL_GLOBAL_SEED"),
    ],
)
def test_what_changes_results_or_speed_is_recorded(name: str) -> None:
    assert select_variables({name: "1"}) == {name: "1"}


@pytest.mark.parametrize(
    "name",
    [
        # Secrets, whatever their prefix.
        *("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD"),
        *("TF_VAR_database", "TF_CLI_CONFIG_FILE", "TF_TOKEN_example_com"),
        *("TORCH_HUB_TOKEN", "NCCL_SECRET", "TF_AUTH", "JAX_API_KEY", "UCX_PASSWD", "FI_OPX_KEY"),
        # Who a process is.
        *("SLURM_JOB_ID", "PMI_RANK", "TF_CONFIG", "JAX_COORDINATOR_ADDRESS", "NCCL_COMM_ID"),
        *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "HOROVOD_RANK", "OMPI_MCA_ess_base_jobid"),
        # What one call was asked for, and whom it trusts.
        *("HPCTRAIN_LAUNCHER", "HPCTRAIN_DRY_RUN", "HPCTRAIN_EXISTING", "HPCTRAIN_TRUST_WRITERS"),
        *("HPCTRAIN_SLURM", "SBATCH_ACCOUNT"),
        # Places, and the shell.
        *("CUDA_HOME", "NCCL_ROOT", "TORCH_HOME", "MPICH_DIR", "PATH", "HOME", "LD_LIBRARY_PATH"),
        # What an import sets.
        "KMP_INIT_AT_FORK",
    ],
)
def test_others_are_not(name: str) -> None:
    assert select_variables({name: "1"}) == {}


def test_those_of_a_launcher_are_no_choice_of_a_user_in_a_rank() -> None:
    variables = {"OMPI_MCA_btl": "tcp", "NCCL_ALGO": "Ring"}
    assert select_variables(variables, in_rank=True) == {"NCCL_ALGO": "Ring"}


def test_a_record_of_other_variables_sets_none_of_them() -> None:
    written = {"environment": {"NCCL_ALGO": "Ring", "PATH": "/evil", "HPCTRAIN_TRUST_WRITERS": "1"}}
    assert read_variables(written) == {"NCCL_ALGO": "Ring"}
    assert read_variables({}) is None
    assert read_variables({"environment": "x"}) is None


def test_variables_are_set_and_unset_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in select_variables(environ.environment()):
        monkeypatch.delenv(name)
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("HOME", "/here")
    # What the repetition sets is to be undone.
    monkeypatch.setenv("OMP_SCHEDULE", "static")
    recorded = {"NCCL_ALGO": "Ring", "OMP_SCHEDULE": "static", "UCX_TLS": "tcp"}
    monkeypatch.setenv("UCX_TLS", "")
    here = select_variables(environ.environment())
    left = Variables(recorded=recorded, here=here, repeats=False)
    left.repeat()
    assert select_variables(environ.environment()) == here
    assert left.differing == ["NCCL_ALGO", "NCCL_DEBUG", "UCX_TLS"]
    Variables(recorded=recorded, here=here, repeats=True).repeat()
    assert select_variables(environ.environment()) == recorded
    assert environ.variable("HOME") == "/here"
    assert Variables(recorded=None, here=here, repeats=True).differing == []
    assert differing_names(recorded, recorded) == []
