from __future__ import annotations

import os

import pytest

from hpctrain import environ
from hpctrain.home import Home, detect_home, hostfile
from hpctrain.launch import request
from hpctrain.worker import mpi
from tests.environments import (
    ALLOCATION,
    HYDRA,
    HYDRA_PROXY,
    INTERACTIVE,
    LAPTOP,
    ONE_TASK,
    OPENMPI,
    PBS,
    PMI2,
    PMIX,
    SBATCH,
    STEP,
)


@pytest.mark.parametrize(
    ("variables", "home"),
    [
        pytest.param(LAPTOP, Home.LOCAL, id="laptop"),
        pytest.param(ALLOCATION, Home.ALLOCATION, id="salloc"),
        pytest.param(INTERACTIVE, Home.ALLOCATION, id="salloc with an interactive step"),
        pytest.param(
            INTERACTIVE | PMI2 | {"PMI_SIZE": "1", "PMI_RANK": "0"},
            Home.ALLOCATION,
            id="salloc with an interactive step and MpiDefault=pmi2",
        ),
        pytest.param(SBATCH, Home.ALLOCATION, id="sbatch script"),
        pytest.param(STEP, Home.SPMD, id="srun -n 4 --mpi=none"),
        pytest.param(STEP | PMI2, Home.SPMD, id="srun -n 4 --mpi=pmi2"),
        pytest.param(STEP | PMIX, Home.SPMD, id="srun -n 4 --mpi=pmix"),
        pytest.param(ONE_TASK, Home.ALLOCATION, id="srun --pty bash"),
        pytest.param(
            ONE_TASK | PMI2 | {"PMI_SIZE": "1", "PMI_RANK": "0"},
            Home.ALLOCATION,
            id="srun --pty bash with MpiDefault=pmi2",
        ),
        pytest.param(
            ONE_TASK | PMIX | {"PMIX_RANK": "0"},
            Home.ALLOCATION,
            id="srun --pty bash with MpiDefault=pmix",
        ),
        pytest.param(LAPTOP | HYDRA, Home.SPMD, id="mpiexec -n 4 on a laptop"),
        pytest.param(
            LAPTOP | HYDRA | {"PMI_SIZE": "1", "PMI_RANK": "0", "MPI_LOCALNRANKS": "1"},
            Home.SPMD,
            id="mpiexec -n 1 on a laptop",
        ),
        pytest.param(LAPTOP | OPENMPI, Home.SPMD, id="Open MPI's mpiexec -n 4 on a laptop"),
        pytest.param(
            LAPTOP | OPENMPI | {"OMPI_COMM_WORLD_SIZE": "1"},
            Home.SPMD,
            id="Open MPI's mpiexec -n 1 on a laptop",
        ),
        pytest.param(HYDRA_PROXY | HYDRA, Home.SPMD, id="mpiexec -n 4 inside salloc"),
        pytest.param(ONE_TASK | HYDRA, Home.SPMD, id="mpiexec -n 4 on one node of an allocation"),
        pytest.param(ALLOCATION | OPENMPI, Home.SPMD, id="Open MPI's mpiexec inside salloc"),
        pytest.param(LAPTOP | {"HPCTRAIN_RANK": "3"}, Home.LOCAL, id="child of a rank on a laptop"),
        pytest.param(STEP | {"HPCTRAIN_RANK": "3"}, Home.LOCAL, id="child of a rank in a job"),
        pytest.param(
            LAPTOP | HYDRA | {"HPCTRAIN_RANK": "3"}, Home.LOCAL, id="mpiexec inside a rank"
        ),
        pytest.param(LAPTOP | PBS, Home.HOSTS, id="job of PBS"),
        pytest.param(LAPTOP | PBS | HYDRA, Home.SPMD, id="mpiexec -n 4 in a job of PBS"),
        pytest.param(
            LAPTOP | PBS | {"HPCTRAIN_RANK": "3"}, Home.LOCAL, id="child of a rank in PBS"
        ),
        pytest.param(LAPTOP | {"HPCTRAIN_HOSTFILE": "/h"}, Home.HOSTS, id="hostfile"),
        pytest.param(
            ALLOCATION | {"HPCTRAIN_HOSTFILE": "/h"}, Home.HOSTS, id="hostfile inside salloc"
        ),
    ],
)
def test_the_home_is_read_from_the_environment(variables: dict[str, str], home: Home):
    found = detect_home(variables, mpi_world_size=None, can_submit=lambda: False)
    assert found is home


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"PBS_NODEFILE": ""}, None),
        ({"PBS_NODEFILE": "/aux/7"}, "/aux/7"),
        ({"LSB_DJOB_HOSTFILE": "/tmp/.lsb/7.hostfile"}, "/tmp/.lsb/7.hostfile"),
        ({"PE_HOSTFILE": "/sge/pe_hostfile"}, "/sge/pe_hostfile"),
        ({"PBS_NODEFILE": "/aux/7", "HPCTRAIN_HOSTFILE": "/mine"}, "/mine"),
    ],
)
def test_the_hosts_of_a_job_are_found(variables: dict[str, str], expected: str | None):
    assert hostfile(variables) == expected


def test_a_machine_that_can_submit_is_a_login_node():
    assert detect_home(LAPTOP, mpi_world_size=None, can_submit=lambda: True) is Home.LOGIN


@pytest.mark.parametrize("variables", [ALLOCATION, STEP, LAPTOP | HYDRA])
def test_slurm_is_only_asked_where_nothing_else_decides(variables: dict[str, str]):
    def ask() -> bool:
        raise AssertionError("asked Slurm")

    detect_home(variables, mpi_world_size=None, can_submit=ask)


@pytest.mark.parametrize(
    "variables", [LAPTOP, ALLOCATION, ONE_TASK, LAPTOP | {"HPCTRAIN_RANK": "1"}]
)
def test_an_mpi_world_that_exists_counts_before_any_variable(variables: dict[str, str]):
    assert detect_home(variables, mpi_world_size=4, can_submit=lambda: True) is Home.SPMD


def test_a_script_that_imported_mpi4py_on_its_own_is_no_rank():
    assert detect_home(ALLOCATION, mpi_world_size=1, can_submit=lambda: True) is Home.ALLOCATION
    assert detect_home(LAPTOP, mpi_world_size=1, can_submit=lambda: False) is Home.LOCAL


def test_the_home_is_decided_once_even_if_launcher_variables_are_scrubbed_later(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(request, "_home", None)
    monkeypatch.setattr(mpi, "initialized_world_size", lambda: None)
    monkeypatch.setattr(os, "environ", dict(LAPTOP | HYDRA))
    assert request.current_home() is Home.SPMD
    environ.scrub_launcher_variables()
    environ.export({environ.RANK_MARKER: "3"})
    assert detect_home(os.environ, mpi_world_size=None, can_submit=lambda: False) is Home.LOCAL
    assert request.current_home() is Home.SPMD
