from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Container
from hpctrain.execute.container_answer import (
    container_question,
    explain_container,
    mpi_library,
    read_container_answers,
)
from hpctrain.version import __version__

IMAGE = Container(image="torch.sif", mounts=["/data"])


def answer(**changes: Any) -> dict[str, Any]:
    return {
        "node": "node1",
        "python": platform.python_version(),
        "executable": "/opt/bin/python3",
        "hpctrain": __version__,
        "library": "MPICH Version: 4.3",
        "absent": [],
        **changes,
    }


def explain(
    *answers: dict[str, Any],
    printed: str = "",
    container: Container = IMAGE,
    exit_code: int | None = 1,
) -> str:
    return explain_container(container, answers, wanted=2, printed=printed, exit_code=exit_code)


def test_this_interpreter_answers_what_ranks_need(tmp_path: Path):
    seen = (str(tmp_path), str(tmp_path / "not there"))
    argv = container_question(sys.executable, seen=seen, modules=("json",))
    printed = subprocess.run(argv, capture_output=True, text=True, timeout=60).stdout
    (found,) = read_container_answers(f"srun: a line\n{printed}srun: another")
    assert found["hpctrain"] == __version__
    assert found["python"] == platform.python_version()
    assert found["absent"] == [str(tmp_path / "not there")]
    assert found["library"].startswith(("MPICH", "Open MPI"))
    assert "error" not in found


def test_a_module_that_is_not_there_is_an_error_of_the_answer(tmp_path: Path):
    argv = container_question(sys.executable, seen=(), modules=("no_such_module",))
    printed = subprocess.run(argv, capture_output=True, text=True, timeout=60).stdout
    (found,) = read_container_answers(printed)
    assert found["error"] == "ModuleNotFoundError: No module named 'no_such_module'"


def test_half_a_line_is_no_answer():
    whole = f"hpctrain-container {json.dumps(answer())}"
    assert read_container_answers(f"{whole[:30]}\n0: {whole}\n") == [answer()]


def test_nodes_that_answer_alike_are_fine():
    assert explain(answer(), answer(node="node2")) == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"python": "3.6.8", "hpctrain": None},
            f"ranks cannot run in torch.sif on node2: python3 in it is Python 3.6.8, and the "
            f"executor outside is {platform.python_version()}.",
        ),
        (
            {"hpctrain": None, "error": "ModuleNotFoundError: No module named 'hpctrain'"},
            "/opt/bin/python3 cannot import hpctrain (ModuleNotFoundError: No module named "
            f"'hpctrain'). Install it in the image: python3 -m pip install "
            f"'hpctrain=={__version__}' mpi4py",
        ),
        (
            {"hpctrain": "0.0.1"},
            f"it has hpctrain 0.0.1, and the executor outside is {__version__}. Install the same",
        ),
        (
            {"error": "RuntimeError: cannot load MPI library"},
            "/opt/bin/python3 lacks what ranks need: RuntimeError: cannot load MPI library.",
        ),
        ({"absent": ["/runs/one"]}, "it does not see /runs/one. Site or options keep them from"),
    ],
)
def test_an_answer_that_does_not_fit_is_explained(changes: dict[str, Any], why: str):
    assert why in explain(answer(), answer(node="node2", **changes))


@pytest.mark.parametrize(
    ("runtime", "printed", "why"),
    [
        (
            "apptainer",
            "slurmstepd-node2: error: execve(): apptainer: No such file or directory",
            "apptainer is not on the PATH of compute nodes. Load its module with SlurmConfig(setup="
            "['module load apptainer'])",
        ),
        ("pyxis", "srun: unrecognized option '--container-image=x'", "This srun has no Pyxis"),
        (
            "apptainer",
            "FATAL: could not open image torch.sif",
            "Look at the image, at python3 in it, and at what is mounted (/data). It printed:\n"
            "FATAL: could not open image torch.sif",
        ),
    ],
)
def test_a_container_that_does_not_start_is_explained_by_what_it_printed(runtime, printed, why):
    container = Container(image="torch.sif", runtime=runtime, mounts=["/data"])
    text = explain(answer(), printed=printed, container=container)
    assert f"torch.sif does not start with {runtime} on 1 of 2 nodes. " in text
    assert why in text


@pytest.mark.parametrize(
    ("said", "kind"),
    [("MPI VERSION : CRAY MPICH 8.1", "cray-mpich"), ("MPICH 4", "mpich"), ("", "mpich")],
)
def test_the_mpi_library_inside_decides_which_pmi_is_needed(said: str, kind: str):
    assert mpi_library([answer(library=said)]) == kind


@pytest.mark.parametrize("printed", ["", "GNU coreutils"])
def test_a_program_that_is_no_python_is_named_with_what_it_answered(printed: str):
    container = Container(image="torch.sif", python="/bin/true")
    text = explain(printed=printed, container=container, exit_code=0)
    assert text.startswith(
        "torch.sif starts with apptainer, but /bin/true in it does not answer as a Python does on "
        "2 of 2 nodes: it ended without an error"
    )
    assert "Set Container(python=...) to the interpreter inside the image: 'python3'" in text
    assert text.endswith(f"It printed:\n{printed or 'it printed nothing'}")
