from __future__ import annotations

import socket
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpctrain import ConfigError, LaunchError, WorkerError, WorkerGroup
from hpctrain.testing.thread_comm import ThreadComm, run_on_threads
from hpctrain.worker import mpi
from hpctrain.worker.bootstrap import (
    check_collective,
    explain_wrong_size,
    gpu_devices,
    gpus_of_ranks,
    see_gpus,
    visible_gpus,
)
from tests import runs
from tests.worlds import make_world

MPICH = "MPICH Version: 5.0.0"
OPEN_MPI = "Open MPI v5.0.8, package: Open MPI"


@pytest.mark.parametrize(
    ("library", "variables", "tried", "wanted"),
    [
        (MPICH, {"PMIX_RANK": "0", "SLURM_STEP_ID": "0"}, r"PMIx \(srun --mpi=pmix", "pmi2"),
        (OPEN_MPI, {"PMI_RANK": "0", "PMI_FD": "9"}, r"PMI-1/PMI-2 \(srun --mpi=pmi2", "pmix"),
        (MPICH, {"SLURM_STEP_ID": "0"}, r"no PMI at all \(srun --mpi=none\)", "pmi2"),
        (MPICH, {}, "no PMI at all; the MPI library", "pmi2"),
    ],
)
def test_worlds_of_one_are_explained_by_what_launcher_and_library_speak(
    library: str, variables: dict[str, str], tried: str, wanted: str
):
    message = explain_wrong_size(1, 4, library=library, variables=variables)
    assert message.startswith("4 ranks were asked for, but MPI found a world of 1")
    assert "every rank is a world of its own" in message
    assert library in message
    assert f"SlurmConfig(mpi='{wanted}')" in message
    with pytest.raises(ValueError, match=tried):
        raise ValueError(message)


@pytest.mark.parametrize(
    ("variables", "way_out"),
    [
        ({"SLURM_JOB_ID": "7"}, "start the ranks with 'srun --mpi=pmix', or with the mpiexec that"),
        ({}, "start the ranks with the mpiexec that belongs to this library; or start the script"),
    ],
)
def test_ranks_that_somebody_else_started_are_told_how_to_start_them(
    variables: dict[str, str], way_out: str
):
    message = explain_wrong_size(
        1, 4, library=OPEN_MPI, variables=variables, started_elsewhere=True
    )
    assert way_out in message
    assert "SlurmConfig" not in message


def test_a_world_of_another_size_than_one_is_not_said_to_be_alone():
    message = explain_wrong_size(2, 4, library=MPICH, variables={})
    assert "num_workers=4, but MPI found a world of 2 ranks." in message
    assert "set ScalingConfig(num_workers=2), or start 4 ranks" in message


@pytest.mark.parametrize(
    ("value", "gpus"), [("0,1", ("0", "1")), ("", ()), ("GPU-5f,", ("GPU-5f",)), (None, ())]
)
def test_visible_gpus_are_read_from_cuda_visible_devices(
    monkeypatch: pytest.MonkeyPatch, value: str | None, gpus: tuple[str, ...]
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if value is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert visible_gpus() == gpus


@pytest.mark.parametrize(
    ("variables", "gpus", "mask"),
    [
        # HIP numbers anew what ROCm's runtime leaves, and then reads the others.
        ({"ROCR_VISIBLE_DEVICES": "4,5"}, ("0", "1"), "ROCR_VISIBLE_DEVICES=4,5"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-1f"}, ("0",), "ROCR_VISIBLE_DEVICES=GPU-1f"),
        ({"ROCR_VISIBLE_DEVICES": ""}, (), "ROCR_VISIBLE_DEVICES="),
        (
            {"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1"},
            ("1",),
            "HIP_VISIBLE_DEVICES=1",
        ),
        (
            {"ROCR_VISIBLE_DEVICES": "4,5", "CUDA_VISIBLE_DEVICES": ""},
            (),
            "CUDA_VISIBLE_DEVICES=",
        ),
    ],
)
def test_visible_gpus_of_amd_are_read_from_the_variables_of_rocm(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], gpus: tuple[str, ...], mask: str
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert visible_gpus() == gpus
    assert see_gpus(make_world()).mask == mask


def test_each_gpu_has_a_device_file(tmp_path: Path):
    def make(name: str, content: str = "") -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    make("dev/null")
    assert gpu_devices(str(tmp_path)) == []
    # The second is that of a server's display.
    for number, vendor in ((128, "0x1002"), (129, "0x1a03"), (130, "0x1002")):
        make(f"dev/dri/renderD{number}")
        make(f"dev/dri/card{number - 128}")
        make(f"sys/class/drm/renderD{number}/device/vendor", f"{vendor}\n")
    assert gpu_devices(str(tmp_path)) == [], "the driver for computing is not loaded"
    make("dev/kfd")
    assert gpu_devices(str(tmp_path)) == ["dri/renderD128", "dri/renderD130"]
    for name in ("nvidia1", "nvidia0", "nvidiactl", "nvidia-uvm"):
        make(f"dev/{name}")
    assert gpu_devices(str(tmp_path)) == ["nvidia0", "nvidia1"]


def test_ranks_get_gpus_of_their_own(monkeypatch: pytest.MonkeyPatch):
    def own(comm: ThreadComm) -> tuple[str, ...]:
        return gpus_of_ranks(make_world(comm.rank, comm.size), comm, 1)

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert run_on_threads(2, own) == [("0",), ("1",)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(ConfigError, match="2 ranks on node1 need 2 GPUs, and see 1 "):
        run_on_threads(2, own)


@pytest.mark.mpi
def test_hosts_with_more_slots_than_gpus_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    hosts = tmp_path / "hosts"
    hosts.write_text(f"{socket.gethostname()} slots=2\n")
    monkeypatch.setenv("HPCTRAIN_HOSTFILE", str(hosts))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(WorkerError, match=r"2 ranks on .* need 2 GPUs, and see 1 "):
        runs.fit(lambda: None, tmp_path, num_workers=2, use_gpu=True, launcher="mpiexec")


@pytest.mark.mpi
def test_a_collective_that_does_not_end_is_told_with_its_rank() -> None:
    def add_up_on_rank_zero_alone() -> str:
        from mpi4py import MPI

        from hpctrain.errors import LaunchError
        from hpctrain.worker.bootstrap import check_collective

        if MPI.COMM_WORLD.rank:
            return ""
        try:
            check_collective(MPI.COMM_WORLD, timeout_s=0.3)
        except LaunchError as error:
            return str(error)
        return "it has ended"

    group = WorkerGroup(num_workers=2)
    try:
        said = group.execute(add_up_on_rank_zero_alone)[0]
    finally:
        group.shutdown(patience_s=0)
    assert "a sum over 2 ranks has not ended on rank 0 of 2" in said
    assert "UCX_NET_DEVICES" in said


@pytest.mark.parametrize("broken", [0, 1023])
def test_a_sum_with_one_wrong_element_is_told(monkeypatch: pytest.MonkeyPatch, broken: int) -> None:
    def sum_over_ranks(comm: object, values: array[int], *, timeout_s: float) -> array[int]:
        sums = array("q", [6] * len(values))
        sums[broken] = 7
        return sums

    monkeypatch.setattr(mpi, "sum_over_ranks", sum_over_ranks)
    comm: Any = SimpleNamespace(rank=1, size=3)
    with pytest.raises(LaunchError, match=r"wrong on rank 1 of 3 .*: 7 in place of 6"):
        check_collective(comm, timeout_s=1)
