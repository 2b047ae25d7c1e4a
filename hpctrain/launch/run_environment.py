"""Variables of the shell that change what a run computes, or how fast: recorded and repeated.

The list names settings of libraries, which hold no secrets: ``plan.json`` can be read by others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hpctrain import environ

_NOT_SET = "-"
_PREFIXES = (
    # Compute threads, memory and instructions of the CPU.
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "DNNL_", "ONEDNN_"),
    *("ATEN_", "MALLOC_", "NUMBA_", "NPY_"),
    # GPUs.
    *("CUDA_", "CUBLAS_", "CUBLASLT_", "CUDNN_", "NVIDIA_TF32_", "HIP_", "HSA_", "MIOPEN_"),
    *("ROCBLAS_", "HIPBLAS_", "HIPBLASLT_", "TENSILE_"),
    # Networks.
    *("NCCL_", "RCCL_", "GLOO_", "UCX_", "UCC_", "FI_", "MPICH_", "I_MPI_", "MV2_", "OMPI_MCA_"),
    *("PRTE_MCA_", "PMIX_MCA_", "HOROVOD_"),
    # Frameworks.
    *("TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "PYTORCH_", "TRITON_", "JAX_", "XLA_", "KERAS_"),
    # Not all of TF_, which is Terraform's too: TF_VAR_password.
    *("TF_CPP_", "TF_CUDNN_", "TF_DETERMINISTIC_", "TF_ENABLE_", "TF_FORCE_", "TF_GPU_", "TF_NUM_"),
    *("TF_USE_", "TF_XLA_"),
)
_NAMES = frozenset(
    [
        *("PYTHONHASHSEED", "PYTHONOPTIMIZE", "LD_PRELOAD", "PL_GLOBAL_SEED", "PL_SEED_WORKERS"),
        *("HPCTRAIN_FORK_SERVER", "HPCTRAIN_HUB_FANOUT"),
    ]
)
# What a launcher or a job says to one process: which one it is, where the others are.
_OF_A_PROCESS = re.compile(
    r"TF_CONFIG|NCCL_COMM_ID|JAX_(COORDINATOR|PROCESS|NUM_PROCESSES|LOCAL_DEVICE)\w*"
    r"|HOROVOD_(RANK|SIZE|LOCAL_\w+|CROSS_\w+|HOSTNAME|GLOO_RENDEZVOUS\w*)|\w*_VISIBLE_DEVICES"
    r"|MPICH_(INTERFACE|PORT)\w*|I_MPI_(RANK|HYDRA_UUID)\w*|OMPI_MCA_(orte|ess|pmix|prte)_\w*"
)
# scikit-learn sets them in each process that imports it.
_OF_AN_IMPORT = ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")
# Where a package lies, as modules of a site say it; nothing is computed otherwise by it.
_PLACE = re.compile(r"_(HOME|ROOT|DIR|PATH|PREFIX|LIB|LIBS|LIBRARY|INCLUDE|VERSION|BASE)$")
_SECRET = re.compile(r"TOKEN|SECRET|PASS|PWD|CREDENTIAL|KEY|AUTH|COOKIE", re.IGNORECASE)


def select_variables(variables: Mapping[str, str], *, in_rank: bool = False) -> dict[str, str]:
    """Return the variables that a run records, in the order of their names. Pure.

    Parameters
    ----------
    variables
        An environment.
    in_rank
        Whether it is that of a rank, whose launcher has added variables of its own.

    Examples
    --------
    >>> select_variables({"NCCL_ALGO": "Ring", "HF_TOKEN": "x", "NCCL_TOKEN": "x", "HOME": "/"})
    {'NCCL_ALGO': 'Ring'}
    """
    return {
        name: variables[name]
        for name in sorted(variables)
        if (name in _NAMES or (name.startswith(_PREFIXES) and not _PLACE.search(name)))
        and not _OF_A_PROCESS.fullmatch(name)
        and not _SECRET.search(name)
        and name not in _OF_AN_IMPORT
        and not (in_rank and environ.is_of_launcher(name))
    }


def read_variables(plan: Mapping[str, object]) -> dict[str, str] | None:
    """Return the variables in the content of ``plan.json``; None in that of older versions.

    Pure. What no run records is left out: who asks may set them.
    """
    written = plan.get("environment")
    if not isinstance(written, dict):
        return None
    return select_variables({str(name): str(value) for name, value in written.items()})


def differing_names(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that differ in two records. Pure."""
    return sorted(name for name in {**first, **second} if first.get(name) != second.get(name))


def show_variable(variables: Mapping[str, str], name: str) -> str:
    """Return the value of a variable as text. Pure.

    Examples
    --------
    >>> show_variable({"NCCL_ALGO": ""}, "NCCL_ALGO"), show_variable({}, "NCCL_ALGO")
    ("''", '-')
    """
    return _NOT_SET if name not in variables else (variables[name] or "''")


@dataclass(frozen=True, kw_only=True)
class Variables:
    """Variables of a run that is repeated, and those of the process that repeats it."""

    recorded: Mapping[str, str] | None
    """None in the record of an older version."""
    here: Mapping[str, str]
    """What was set before."""
    repeats: bool
    """Whether they are set as they were."""

    @property
    def differing(self) -> list[str]:
        """Names of those that were not set here as they are recorded."""
        return [] if self.recorded is None else differing_names(self.recorded, self.here)

    def repeat(self) -> None:
        """Give this process the variables of the record, and no others of the list.

        Not collective.
        """
        if self.repeats and self.recorded is not None:
            environ.export({name: self.recorded.get(name) for name in self.differing})
