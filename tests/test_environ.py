from __future__ import annotations

import os

import pytest

from hpctrain import environ
from hpctrain.environ import Home, detect_home
from hpctrain.errors import ConfigError
from hpctrain.launch import request

# What Slurm 22.05 exports in a job; values of a job of two nodes.
ALLOCATION = {
    "PATH": "/usr/bin",
    "SLURM_JOB_ID": "4711",
    "SLURM_JOBID": "4711",
    "SLURM_JOB_NAME": "train",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NNODES": "2",
    "SLURM_NTASKS": "4",
    "SLURM_NPROCS": "4",
    "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_JOB_CPUS_PER_NODE": "4(x2)",
    "SLURM_CLUSTER_NAME": "test",
}
# In the batch script itself Slurm also speaks as if it were a task of a step.
SBATCH = ALLOCATION | {
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_GTIDS": "0",
    "SLURM_TASK_PID": "1234",
    "SLURMD_NODENAME": "n1",
    "ENVIRONMENT": "BATCH",
}
STEP = SBATCH | {
    "SLURM_STEP_ID": "0",
    "SLURM_STEPID": "0",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "3",
    "SLURM_SRUN_COMM_HOST": "10.0.0.1",
}
ONE_TASK = STEP | {
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
    "SLURM_PROCID": "0",
    "SLURM_PTY_PORT": "40001",
}
PMI2 = {"PMI_FD": "12", "PMI_JOBID": "4711.0", "PMI_RANK": "3", "PMI_SIZE": "4"}
PMIX = {
    "PMIX_RANK": "3",
    "PMIX_NAMESPACE": "slurm.pmix.4711.0",
    "PMIX_SERVER_URI41": "pmix-server.77;tcp4://127.0.0.1:4000",
    "PMIX_SECURITY_MODE": "munge,native",
}
HYDRA = {
    "HYDI_CONTROL_FD": "7",
    "MPI_LOCALNRANKS": "4",
    "MPI_LOCALRANKID": "3",
    "PMI_FD": "9",
    "PMI_HOSTNAME": "n1",
    "PMI_RANK": "3",
    "PMI_SIZE": "4",
}
OPENMPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "PMIX_RANK": "3",
    "PMIX_NAMESPACE": "prterun-n1-55@1",
    "PRTE_LAUNCHED": "1",
    "PRTE_MCA_oversubscribe": "1",
}
LAPTOP = {"PATH": "/usr/bin", "HOME": "/home/me"}
PBS = {"PBS_JOBID": "7.head", "PBS_NODEFILE": "/var/spool/pbs/aux/7.head"}
# mpiexec starts its proxies with srun: one task a node.
HYDRA_PROXY = STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
# LaunchParameters=use_interactive_step: the shell of salloc is a step of one task.
INTERACTIVE = ONE_TASK | {"SLURM_STEP_ID": "4294967290", "SLURM_STEPID": "4294967290"}


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
    assert environ.hostfile(variables) == expected


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


@pytest.mark.parametrize("launcher", [PMI2, PMIX, HYDRA, OPENMPI])
def test_a_child_of_a_rank_does_not_see_what_made_its_parent_one(launcher: dict[str, str]):
    kept = {"OMPI_MCA_btl": "self", "OMPI_ALLOW_RUN_AS_ROOT": "1", "PRTE_MCA_oversubscribe": "1"}
    assert environ.without_launcher_variables(STEP | launcher | kept) == STEP | kept


def test_scrubbing_deletes_from_this_process_what_made_it_a_rank(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "environ", dict(LAPTOP | HYDRA | OPENMPI))
    environ.scrub_launcher_variables()
    assert os.environ == LAPTOP | {"PRTE_MCA_oversubscribe": "1"}


def test_the_home_is_decided_once_even_if_launcher_variables_are_scrubbed_later(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(request, "_home", None)
    monkeypatch.setattr(request, "initialized_world_size", lambda: None)
    monkeypatch.setattr(os, "environ", dict(LAPTOP | HYDRA))
    assert request.current_home() is Home.SPMD
    environ.scrub_launcher_variables()
    environ.export({environ.RANK_MARKER: "3"})
    assert detect_home(os.environ, mpi_world_size=None, can_submit=lambda: False) is Home.LOCAL
    assert request.current_home() is Home.SPMD


def test_exporting_keeps_what_the_user_has_set_if_asked_to(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": "2"})
    environ.export({"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4"}, keep_existing=True)
    assert environ.environment() == {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "4"}
    environ.export({"OMP_NUM_THREADS": "4"})
    assert environ.variable("OMP_NUM_THREADS") == "4"
    assert environ.variable("NO_SUCH_VARIABLE") is None


def test_requests_of_the_command_line_reach_every_fit_and_its_children(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(os, "environ", {})
    assert environ.requested_launcher() is None
    assert not environ.detach_requested()
    assert not environ.dry_run_requested()
    assert not environ.in_rank()
    environ.request_launcher("local")
    environ.request_detach()
    environ.request_dry_run()
    assert environ.requested_launcher() == "local"
    assert environ.detach_requested()
    assert environ.dry_run_requested()


def test_steps_get_what_a_job_with_export_none_has():
    job = {"PATH": "/usr/bin", "SLURM_EXPORT_ENV": "NONE", "SRUN_EXPORT_ENV": "A"}
    assert environ.without_export_variables(job) == {"PATH": "/usr/bin"}


@pytest.mark.parametrize(("value", "wanted"), [(None, True), ("", True), ("1", True), ("0", False)])
def test_ranks_are_forked_unless_that_is_turned_off(
    value: str | None, wanted: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("HPCTRAIN_FORK_SERVER", raising=False)
    if value is not None:
        monkeypatch.setenv("HPCTRAIN_FORK_SERVER", value)
    assert environ.wants_fork_server() is wanted


def test_why_a_rank_was_not_forked_is_taken_away_with_the_variable(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("HPCTRAIN_NOT_FORKED", "no room")
    assert [environ.take_not_forked() for _ in range(2)] == ["no room", ""]
    assert "HPCTRAIN_NOT_FORKED" not in environ.environment()


@pytest.mark.parametrize("value", ["no", "off", "false", "O", "00", " 0"])
def test_a_fork_server_that_is_neither_on_nor_off_is_refused(
    value: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HPCTRAIN_FORK_SERVER", value)
    with pytest.raises(ConfigError, match=r"HPCTRAIN_FORK_SERVER=.* set it to 0"):
        environ.wants_fork_server()


@pytest.mark.parametrize(("value", "fanout"), [(None, 32), ("", 32), ("2", 2), ("20000", 20000)])
def test_a_hub_has_32_connections_unless_another_number_is_asked_for(
    value: str | None, fanout: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("HPCTRAIN_HUB_FANOUT", raising=False)
    if value is not None:
        monkeypatch.setenv("HPCTRAIN_HUB_FANOUT", value)
    assert environ.hub_fanout() == fanout


@pytest.mark.parametrize("value", ["0", "1", "-2", "many", "2.5", "\u0662"])
def test_a_hub_without_a_tree_to_build_is_refused(value: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HPCTRAIN_HUB_FANOUT", value)
    with pytest.raises(ConfigError, match=r"HPCTRAIN_HUB_FANOUT=.* 2 or more"):
        environ.hub_fanout()
