"""What Slurm's commands say, and whether it may be over soon."""

from __future__ import annotations

import pytest

from hpctrain.slurm.client import is_passing, is_refused_for_now


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Unable to create step for job 1: Memory required by task is not available", True),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", True),
        ("Job step creation temporarily disabled, retrying", True),
        ("unrecognized option '--no-such-option'", False),
        ("Invalid job id specified", False),
    ],
)
def test_some_refusals_of_slurm_pass(said: str, expected: bool) -> None:
    assert is_passing(f"srun: error: {said}") is expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Unable to create step for job 1: Memory required by task is not available", True),
        ("Unable to create step for job 1: Unable to contact slurm controller", True),
        ("Unable to create step for job 1: Socket timed out on send/recv operation", True),
        ("Unable to create step for job 1: Invalid Trackable RESource (TRES) specification", False),
        ("Unable to create step for job 1: Job/step already completing or completed", False),
        ("node1: task 0: Exited with exit code 7", False),
    ],
)
def test_some_refusals_of_a_step_are_worth_asking_again(said: str, expected: bool) -> None:
    assert is_refused_for_now(f"srun: error: {said}") is expected
