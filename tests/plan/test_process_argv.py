"""The commands of hpctrain's own processes."""

from __future__ import annotations

from typing import Any

import pytest

from hpctrain.plan.process_argv import agent_argv, supervisor_argv, validation_argv, worker_argv
from hpctrain.plan.visibility import checked_argv

PYTHON = "/env/bin/python"


def make_agent_argv(**options: Any) -> list[str]:
    return agent_argv(
        PYTHON,
        attempt=3,
        socket="hpctrain-abc.%N",
        secret="/runs/one/.secret-3",
        addresses=["10.0.0.1:4711"],
        **options,
    )


@pytest.mark.parametrize(("log_to_file", "more"), [(True, []), (False, ["--inherit-output"])])
def test_a_rank_without_a_log_file_keeps_its_output(log_to_file: bool, more: list[str]) -> None:
    argv = worker_argv(
        PYTHON, run_dir="/r", attempt=1, world_size=2, socket="s", log_to_file=log_to_file
    )
    assert argv == [PYTHON, "-m", "hpctrain.worker.main", "/r", "1", "2", "s", *more]


@pytest.mark.parametrize(("digest", "more"), [(None, []), ("12ab", ["12ab"])])
def test_a_supervisor_writes_its_log_at_once(digest: str | None, more: list[str]) -> None:
    argv = supervisor_argv(PYTHON, run_dir="/r", spec_digest=digest)
    assert argv == [PYTHON, "-u", "-m", "hpctrain.execute.supervisor", "/r", *more]


def test_a_validation_ends_with_its_executor() -> None:
    argv = validation_argv(
        PYTHON, run_dir="/r", checkpoint="000007", result="/r/7", spec_digest="12ab", executor=41
    )
    assert argv == [PYTHON, "-m", "hpctrain.worker.validate", "/r", "000007", "/r/7", "12ab", "41"]


def test_options_of_an_agent_come_before_the_addresses() -> None:
    argv = make_agent_argv(cwd=None, lease_s=30.0, hosts=["gpu1", "gpu3"], in_tree=True)
    assert argv == [
        *(PYTHON, "-m", "hpctrain.execute.agent", "3", "hpctrain-abc.%N", "/runs/one/.secret-3"),
        *("--lease=30", "--hosts=gpu1,gpu3", "--tree", "10.0.0.1:4711"),
    ]


def test_a_node_that_does_not_see_the_working_directory_starts_no_agent() -> None:
    command = make_agent_argv(cwd=None)
    assert make_agent_argv(cwd="/home/me") == checked_argv(command, cwd="/home/me")
