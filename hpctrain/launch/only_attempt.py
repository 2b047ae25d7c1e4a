"""The one attempt of a home in which hpctrain does not start the ranks, nor restart them."""

from __future__ import annotations

from hpctrain.execute.attempt_start import AttemptStart
from hpctrain.execute.initial_status import initial_status
from hpctrain.execute.preemption import Preemption
from hpctrain.execute.recorder import Recorder
from hpctrain.launch.request import Submission


def begin_only_attempt(submission: Submission) -> tuple[Recorder, Preemption, AttemptStart]:
    """Record that a run begins here; return its recorder, its preemption, and its start.

    Not collective.

    Raises
    ------
    CheckpointError
        If what it resumes from cannot be read.
    """
    request = submission.request
    recorder = Recorder(
        paths=request.paths,
        run_config=request.run_config,
        status=initial_status(request.paths, submission.plan, request.run_config),
    )
    preemption = Preemption(
        plan=submission.plan, run_config=request.run_config, recorder=recorder, signals=[]
    )
    recorder.run_record.begin()
    try:
        with recorder.run_record.kept_alive():
            preemption.begin()
            start = recorder.begin_attempt(request.resume_from)
    except BaseException as error:
        # Or this process would seem to be at work on it for as long as it lives.
        recorder.end(error)
        raise
    return recorder, preemption, start
