"""The text of ``hpctrain doctor`` at 80 and 120 columns. What it finds is in tests/doctor."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.cli.doctor import render, to_json
from hpctrain.cli.json_output import schema
from hpctrain.doctor.finding import Finding, error, ok, remark, warning
from tests.cli.test_json_output import check

GOLDEN = Path(__file__).parent / "golden"
_ACCOUNT = error(
    "account",
    "account 'physiks' is none of user somebody on cluster alps; it has physics, biology and "
    "chemistry",
    why="sbatch refuses the job",
    step="SlurmConfig(account='physics'), or hpctrain submit --account physics",
)
CASES: dict[str, list[Finding]] = {
    "nothing": [],
    "all is well": [
        ok("Slurm", "24.11.5 on cluster alps"),
        ok("storage", "/scratch/me/runs (lustre) is written by compute nodes, 1.02e+03 GiB free"),
        ok("limits", "65536 open files"),
        ok("binding", "8 ranks: local rank 0 on CPUs 0-15, local rank 1 on CPUs 16-31, ..."),
    ],
    "it never starts": [
        _ACCOUNT,
        ok("Slurm", "24.11.5 on cluster alps"),
        remark("MPI", "srun --mpi=pmix makes 2 worlds of 1 in place of one of 2"),
        warning(
            "binding",
            "node001: 8 ranks share 2 CPUs: local rank 0 on CPUs 0-1, local rank 1 on CPUs 0-1, "
            "...",
            why="ranks that wait for each other take turns on one core: a step takes as many times "
            "longer",
            step="SlurmConfig(srun_args=['--cpu-bind=cores']), and resources_per_worker={'CPU': n} "
            "as large as the threads of a rank",
        ),
        warning("clocks", "the clock of node002 is 90.0 s ahead", why="logs cannot be compared"),
        error(
            "imports",
            "torch cannot be imported on node[001-002]: ImportError: libcudart.so.12: cannot open "
            "shared object file: No such file or directory",
            why="every rank imports it first",
            step="Install it into the environment of this Python, or load what it needs with "
            "SlurmConfig(setup=['module load ...'])",
        ),
    ],
    "the request is refused": [
        Finding(check="request", level=_ACCOUNT.level, what="num_workers=0: at least 1\nis needed.")
    ],
}


@pytest.mark.parametrize("width", [80, 120])
def test_the_text_is_as_in_the_golden_file(width: int, request: pytest.FixtureRequest) -> None:
    text = "".join(f"== {name}\n{render(found, width=width)}\n" for name, found in CASES.items())
    assert max(map(len, text.splitlines())) <= width
    golden = GOLDEN / f"doctor-{width}.txt"
    if request.config.getoption("rewrite_golden"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("found", CASES.values(), ids=list(CASES))
def test_the_json_is_what_the_schema_says(found: list[Finding]) -> None:
    check({"format": 1, **to_json(found)}, schema("doctor"))


@pytest.mark.parametrize("width", [80, 120, None])
def test_values_of_others_cannot_write_into_the_terminal(width: int | None) -> None:
    assert "\x1b" not in render([ok("Slurm", "cluster \x1b[2J")], width=width)


def test_a_program_gets_each_value_in_one_line() -> None:
    text = render([_ACCOUNT], width=None)
    for value in (_ACCOUNT.what, _ACCOUNT.why, _ACCOUNT.step):
        assert any(line.endswith(f" {value}") for line in text.splitlines())
