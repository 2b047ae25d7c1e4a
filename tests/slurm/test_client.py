"""What Slurm's commands say, and whether it may be over soon."""

from __future__ import annotations

import pytest

from hpctrain.slurm.client import is_passing


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
