from __future__ import annotations

import pytest

from hpctrain.worker.bootstrap import explain_wrong_size, thread_variables, visible_gpus

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


def test_a_world_of_another_size_than_one_is_not_said_to_be_alone():
    message = explain_wrong_size(2, 4, library=MPICH, variables={})
    assert "num_workers=4, but MPI found a world of 2 ranks." in message
    assert "set ScalingConfig(num_workers=2), or start 4 ranks" in message


def test_every_library_computes_with_the_cpus_of_the_rank():
    assert set(thread_variables(3).values()) == {"3"}
    assert {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} <= set(thread_variables(3))


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
