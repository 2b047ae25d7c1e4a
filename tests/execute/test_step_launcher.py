"""What starts the ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpctrain import environ
from hpctrain.execute import step_launcher
from hpctrain.execute.step_launcher import (
    explain_wrong_mpiexec,
    explain_wrong_pmi,
    find_mpiexec,
    launcher_variables,
    other_mpi,
)
from hpctrain.plan.launch_plan import StepLauncher


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


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Put an mpiexec on PATH that prints something of itself; there is no wheel."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{environ.variable('PATH')}")

    def put(printed: str) -> Path:
        program = tmp_path / "bin" / "mpiexec"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho '{printed}'\n")
        program.chmod(0o755)
        return program

    return put


# The first two are of one program, which goes by its name.
@pytest.mark.parametrize(
    ("printed", "kind"),
    [
        ("mpiexec (OpenRTE) 4.1.4", "openmpi"),
        ("mpirun (Open MPI) 4.1.4", "openmpi"),
        ("mpiexec (Open MPI) 5.0.7", "openmpi"),
        ("prterun (PRRTE) 3.0.8", "openmpi"),
        ("HYDRA build details:", "hydra"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.10 Build 20230619", "hydra"),
    ],
)
def test_an_mpiexec_on_path_is_known_by_what_it_prints(
    on_path: Callable[[str], Path], printed: str, kind: str
) -> None:
    program = on_path(printed)
    assert find_mpiexec("auto") == StepLauncher(program=str(program), kind=kind)


@pytest.mark.parametrize("library", ["mpich", "cray-mpich", "openmpi"])
def test_an_mpiexec_of_another_mpi_than_the_library_is_named(
    on_path: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setattr(step_launcher, "_mpi_library", lambda: library)
    program = on_path("mpiexec (OpenRTE) 4.1.4")
    said = "Runtime environment uses unsupported PMI version PMIx.  Aborting."
    message = explain_wrong_mpiexec("auto", output=said)
    named = f"{program} is of the openmpi kind, and the MPI library here of the {library} kind."
    assert message.startswith(named) == (library != "openmpi")
    assert bool(message) == (library != "openmpi")
    assert explain_wrong_mpiexec("auto", output="node2: Killed") == ""


@pytest.mark.parametrize("kind", ["hydra", "openmpi"])
def test_the_srun_of_an_mpiexec_leaves_room_for_the_agents(kind: str) -> None:
    assert launcher_variables(kind, local=False)["SLURM_OVERLAP"] == "1"
    assert "SLURM_OVERLAP" not in launcher_variables(kind, local=True)
    assert launcher_variables("srun", local=False) == {}
