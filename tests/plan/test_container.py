from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpctrain import Container
from hpctrain.container import RUNTIMES as NAMES
from hpctrain.plan.argv import container_test_argv, worker_step_argv
from hpctrain.plan.container import RUNTIMES, enter_container, image_path
from hpctrain.plan.launch_plan import StepLauncher
from hpctrain.plan.process_argv import worker_argv
from hpctrain.plan.resources import Placement

IMAGES = {
    "apptainer": "/images/my torch.sif",
    "singularity": "docker://ubuntu",
    "pyxis": "nvcr.io#nvidia/pytorch:26.10-py3",
    "shifter": "docker:me/torch:1",
    "podman-hpc": "me/torch:1",
}
SRUN = StepLauncher(program="srun", kind="srun", pmi="pmi2")


def container(runtime: str, **fields) -> Container:
    given = {"mounts": ["/tmp", "/home/me/my runs", "/data:/inside"], **fields}
    return Container(image=IMAGES[runtime], runtime=runtime, **given)


def rank_argv(container: Container, *, gpus: str, launcher: StepLauncher = SRUN) -> list[str]:
    placement = Placement(
        tasks_per_node=(2, 2), cpus_per_task=6, gpus_per_task=1, mem_bytes_per_task=None
    )
    command = worker_argv(
        container.python,
        run_dir="/home/me/my runs/one",
        attempt=1,
        world_size=4,
        socket="hpctrain-abc.%N",
        log_to_file=True,
    )
    entry = enter_container(
        container, command, cwd="/home/me/my work", gpus=gpus, variables=["NCCL_SOCKET_IFNAME"]
    )
    options = (*entry.srun_options, "--cpu-bind=none")
    return worker_step_argv(launcher, placement, entry.argv, srun_args=options, local=False)


def lines(argv: list[str]) -> str:
    return "\n".join(argv) + "\n"


def test_each_runtime_of_the_configuration_is_in_the_table():
    assert tuple(RUNTIMES) == NAMES == tuple(IMAGES)


@pytest.mark.parametrize("runtime", NAMES)
def test_the_command_that_starts_ranks_with_gpus_in_a_container(golden, runtime: str):
    argv = rank_argv(container(runtime, options=["--an-option"]), gpus="nvidia")
    golden(f"containers/ranks-{runtime}.txt", lines(argv))


@pytest.mark.parametrize("runtime", ["apptainer", "pyxis"])
def test_the_command_that_tries_a_container_on_each_node(golden, runtime: str):
    entry = enter_container(container(runtime), ["python3", "-c", "..."], cwd="/home/me", gpus="")
    argv = container_test_argv(("gpu1", "gpu3"), 2, entry.argv, srun_options=entry.srun_options)
    golden(f"containers/test-{runtime}.txt", lines(argv))


def test_mpiexec_starts_the_runtime_too(golden):
    hydra = StepLauncher(program="/env/bin/mpiexec", kind="hydra")
    entry = enter_container(container("apptainer"), ["python3", "a.py"], cwd="/home/me", gpus="")
    placement = Placement(
        tasks_per_node=(2, 2), cpus_per_task=1, gpus_per_task=0, mem_bytes_per_task=None
    )
    golden(
        "containers/ranks-apptainer-hydra.txt",
        lines(worker_step_argv(hydra, placement, entry.argv, local=False)),
    )


@pytest.mark.parametrize(
    ("gpus", "options", "word"),
    [("", [], None), ("nvidia", [], "--nv"), ("amd", [], "--rocm"), ("amd", ["--nv"], "--nv")],
)
def test_apptainer_gets_the_gpus_of_their_vendor_unless_the_user_says_which(
    gpus: str, options: list[str], word: str | None
):
    argv = rank_argv(container("apptainer", options=options), gpus=gpus)
    assert [each for each in argv if each in ("--nv", "--rocm")] == ([word] if word else [])


@pytest.mark.parametrize("program", ["apptainer", "podman-hpc"])
def test_a_shell_adds_the_directories_of_its_node_and_becomes_the_runtime(
    program: str, tmp_path: Path
):
    (tmp_path / program).write_text('#!/bin/sh\necho $$\nprintf "%s\\n" "$@"\n')
    (tmp_path / program).chmod(0o755)
    (tmp_path / "a b").mkdir()
    argv = enter_container(container(program), ["python3"], cwd="/home/me", gpus="").argv
    environ = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "PMIX_SERVER_TMPDIR": str(tmp_path / "a b"),
        "TMPDIR": str(tmp_path / "not there"),
    }
    started = subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, text=True)
    printed, _ = started.communicate(timeout=60)
    option = "--volume" if program == "podman-hpc" else "--bind"
    verb = "run" if program == "podman-hpc" else "exec"
    place = f"{tmp_path}/a b"
    rest = list(argv[argv.index(option) + 1 :])
    assert printed.splitlines() == [str(started.pid), verb, option, f"{place}:{place}", *rest]


@pytest.mark.parametrize(
    ("runtime", "image", "path"),
    [
        ("apptainer", "torch.sif", "torch.sif"),
        ("apptainer", "/images/torch", "/images/torch"),
        ("singularity", "docker://ubuntu", None),
        ("pyxis", "ubuntu", None),
        ("pyxis", "./ubuntu.sqsh", "./ubuntu.sqsh"),
        ("podman-hpc", "me/torch:1", None),
        ("shifter", "me/torch:1", None),
    ],
)
def test_which_images_are_paths(runtime, image: str, path: str | None):
    assert image_path(Container(image=image, runtime=runtime)) == path
