"""Which job sbatch has submitted, where a wrapper around it prints more."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hpctrain import ScalingConfig
from hpctrain.errors import LaunchError
from hpctrain.slurm.script_job import submit_and_wait, submit_text

BANNER = r"printf 'Quota of J\374rgen: 9 h\nJob 41 is your last one\n\n'"
SCALING = ScalingConfig(num_workers=1)


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that puts a program in the place of sbatch."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def put(text: str) -> None:
        (tmp_path / "sbatch").write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "sbatch").chmod(0o755)

    return put


@pytest.mark.parametrize("said", ["42", "42;alps"])
def test_the_job_is_the_one_that_sbatch_names(sbatch: Callable[[str], None], said: str) -> None:
    sbatch(f"{BANNER}\necho '{said}'\necho 'See https://site.example/43'")
    assert submit_text("#!/bin/sh\n", SCALING) == "42"


def test_the_job_that_is_waited_for_is_the_one_that_sbatch_names(
    sbatch: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    sbatch(f"{BANNER}\necho '42;alps'\necho 'See https://site.example/43'\nexit 7")
    assert submit_and_wait("#!/bin/sh\n", SCALING) == 7
    assert capsys.readouterr().out == "hpctrain: job 42\n"


@pytest.mark.parametrize("submit", [submit_text, submit_and_wait])
def test_a_job_that_sbatch_does_not_name_may_wait_all_the_same(
    sbatch: Callable[[str], None], submit: Callable[[str, ScalingConfig], object]
) -> None:
    sbatch(BANNER)
    with pytest.raises(LaunchError, match=r"but 'Quota of .*: a job may wait all the same"):
        submit("#!/bin/sh\n", SCALING)
