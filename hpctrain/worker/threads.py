"""Compute threads of ranks: how many they have, and to which CPUs they are bound."""

from __future__ import annotations

from collections.abc import Mapping

# GNU's OpenMP reads them when it is loaded, Intel's and LLVM's reads the last.
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_BINDS_NOT = ("", "false", "none", "disabled")


def thread_variables(cpus: int) -> dict[str, str]:
    """Return the variables that give a process `cpus` compute threads. Not collective.

    Libraries read them when they are loaded, so they are set before.
    """
    count = str(cpus)
    return {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "NUMEXPR_NUM_THREADS": count,
        "TF_NUM_INTRAOP_THREADS": count,
        "TF_NUM_INTEROP_THREADS": count,
    }


def explain_binding(environment: Mapping[str, str]) -> str:
    """Return why a fork for other CPUs would use those of its server, or nothing. Pure."""
    for name in _BINDING:
        if (value := environment.get(name, "")).lower() not in _BINDS_NOT:
            return (
                f"{name}={value} binds threads to the CPUs that a process has when it imports, and "
                f"each rank has its own. Unset it, and Slurm's binding of ranks is what counts"
            )
    return ""
