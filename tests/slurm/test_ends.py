"""What the states and exit codes mean that a virtual cluster does not produce."""

from __future__ import annotations

import re

import pytest

from hpctrain.slurm.ends import explain_end_of
from hpctrain.slurm.output import Job


@pytest.mark.parametrize(
    ("state", "exit_code", "meaning"),
    [
        ("OUT_OF_MEMORY", "0:125", "more memory than the job has"),
        ("CANCELLED by 1000", "0:15", "user with the id 1000"),
        ("FAILED", "137:0", "killed by SIGKILL.*memory was used up"),
        ("FAILED", "0:11", "SIGSEGV"),
        ("FAILED", "66:0", "does not see a directory"),
        ("FAILED", "200:0", "ended with 200"),
        ("FAILED", "0:53", "could not open the job's log.*the script never began"),
        ("FAILED", "53:0", "ended with 53"),
        ("DEADLINE", "0:0", "--deadline"),
        ("BOOT_FAIL", "0:0", "did not boot"),
        ("FAILED", "", "ended with 0"),
        ("SOMETHING_NEW", "9:0", "ended with 9"),
    ],
)
def test_an_end_that_no_test_produces_is_explained(state: str, exit_code: str, meaning: str):
    end = explain_end_of(Job(job_id="7", state=state, exit_code=exit_code), is_run=False)
    assert re.search(meaning, end.meaning), end


def test_the_codes_of_hpctrain_have_a_meaning_in_its_own_jobs_only():
    job = Job(job_id="7", state="FAILED", exit_code="5:0")
    assert explain_end_of(job, is_run=True).meaning == "the run was stopped"
    assert explain_end_of(job, is_run=False).meaning == "its script ended with 5"


def test_a_dependency_that_cancelled_a_job_is_named():
    job = Job(job_id="7", state="CANCELLED", reason="DependencyNeverSatisfied", exit_code="0:0")
    assert "depends on" in explain_end_of(job, is_run=False).meaning
