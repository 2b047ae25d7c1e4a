"""What starts the ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpctrain.execute import step_launcher
from hpctrain.execute.step_launcher import explain_wrong_pmi, launcher_variables, other_mpi


def test_starts_that_fail_are_tried_by_turns_with_srun_and_the_mpiexec_of_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert other_mpi("auto", tried="auto") == "auto", "there is no wheel"
    (tmp_path / "mpiexec").touch()
    assert other_mpi("auto", tried="auto") == "wheel"
    assert other_mpi("auto", tried="wheel") == "auto"
    assert other_mpi("pmi2", tried="pmi2") == "pmi2", "the user chose"


@pytest.mark.parametrize(
    ("library", "mpi", "said", "advice"),
    [
        ("mpich", "pmix", "Runtime environment uses unsupported PMI version PMIx.", "mpi='pmi2'"),
        ("openmpi", "pmi2", "but OMPI was not built with SLURM's PMI support", "mpi='pmix'"),
        ("openmpi", "pmix", "srun: error: Invalid MPI type 'pmix'", "mpi='/path/to/mpiexec'"),
        ("mpich", "pmix", "srun: error: Invalid MPI type 'pmix'", "mpi='pmi2'"),
    ],
)
def test_a_pmi_of_the_users_choice_that_never_fits_is_explained(
    monkeypatch: pytest.MonkeyPatch, library: str, mpi: str, said: str, advice: str
) -> None:
    monkeypatch.setattr(step_launcher, "_mpi_library", lambda: library)
    assert f"SlurmConfig({advice})" in explain_wrong_pmi(mpi, output=said)
    assert explain_wrong_pmi("auto", output=said) == "", "another is tried"
    assert explain_wrong_pmi(mpi, output="srun: error: node2: task 2: Killed") == ""


@pytest.mark.parametrize("kind", ["hydra", "openmpi"])
def test_the_srun_of_an_mpiexec_leaves_room_for_the_agents(kind: str) -> None:
    assert launcher_variables(kind, local=False)["SLURM_OVERLAP"] == "1"
    assert "SLURM_OVERLAP" not in launcher_variables(kind, local=True)
    assert launcher_variables("srun", local=False) == {}
