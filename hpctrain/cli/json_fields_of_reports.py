"""What ``--json`` prints of reports on runs, and of sweeps: its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpctrain.cli.json_format import FORMAT_FIELD

_REPORT = (
    FORMAT_FIELD,
    ("output", "string|null", "the page that was written; null without ``--output``"),
    ("runs", "array of reported run", "the run, then those of ``--compare``; none of a sweep"),
    ("sweeps", "array of reported sweep", "the sweep; none of a run"),
    ("comparisons", "array of comparison", "of the first run with each of the others"),
)
_REPORTED_RUN = (
    ("name", "string", "name of the run"),
    ("path", "string", "its directory"),
    (
        "state",
        "string",
        "``state`` of ``status.json``; ``prepared`` before the run has begun",
    ),
    ("began_at", "number|null", "time of the first event; null before it"),
    ("until", "number|null", "when it ended, or when its files were last written"),
    ("jobs", "array of string", "its Slurm jobs, in order"),
    ("num_attempts", "integer", "number of attempts"),
    ("num_restarts", "integer", "number of automatic restarts of the ranks"),
    ("slow_nodes", "array of string", "nodes that held up every step, a sentence each"),
    ("num_reports", "integer", "number of reports that count"),
    ("num_repeated", "integer", "number of reports that were made again after a restart"),
    ("median_report_s", "number|null", "median of the seconds between two reports"),
    (
        "core_hours",
        "number|null",
        "cores of the ranks, times the hours for which an executor held them; null if not known",
    ),
    ("core_hours_useful", "number|null", "of these, ``training``"),
    ("core_hours_lost", "number|null", "of these, ``repeated``, ``lost`` and ``restart``"),
    ("gpu_hours", "number|null", "as ``core_hours``, of GPUs"),
    ("gpu_hours_useful", "number|null", "of these, ``training``"),
    ("gpu_hours_lost", "number|null", "of these, ``repeated``, ``lost`` and ``restart``"),
    ("uses", "array of use", "what its time went into"),
    (
        "training_parts",
        "array of training part",
        "what ``training`` of these consists of; empty if nothing is known of it",
    ),
    ("intervals", "array of interval", "the same in order, from ``began_at`` to ``until``"),
    ("metrics", "array of metric", "its metrics that are numbers"),
    ("checkpoints", "array of saved checkpoint", "those that are there, the oldest first"),
    ("damage", "array of string", "files that are missing, damaged or incomplete"),
)
_USE = (
    (
        "use",
        "string",
        "``queue``, ``start``, ``training``, ``repeated``, ``lost``, ``ending``, ``restart``, "
        "``stopped`` or ``other``: see :doc:`report`",
    ),
    ("seconds", "number", "wall time"),
    ("core_hours", "number|null", "null if not known"),
    ("gpu_hours", "number|null", "null if not known"),
)
_TRAINING_PART = (
    (
        "part",
        "string",
        "``compute``, ``data``, ``checkpoint`` or ``collective``: see :doc:`report`",
    ),
    ("seconds", "number|null", "mean of the ranks; null if it is seen in no attempt"),
    (
        "unseen_seconds",
        "number",
        "seconds of the training in which it is not seen, or not all of it: see ``compute``",
    ),
    ("attempt", "integer|null", "attempt in which it took most; null of ``compute``"),
    (
        "most_seconds",
        "number|null",
        "of the rank with the most, in that attempt; null if only one rank is known",
    ),
    ("most_rank", "integer|null", "that rank"),
    ("least_seconds", "number|null", "of the rank with the least, in that attempt"),
    ("least_rank", "integer|null", "that rank"),
    (
        "of_rank_0",
        "boolean",
        "whether, of an attempt at least, the waits of rank 0 stand for the mean of the ranks",
    ),
)
_INTERVAL = (
    ("use", "string", "as above"),
    ("begin", "number", "when it began"),
    ("end", "number", "when it ended"),
    ("attempt", "integer|null", "the attempt that it is part of"),
)
_METRIC = (
    ("name", "string", "its name; ``val/loss`` of nested metrics"),
    ("num_values", "integer", "number of reports that have it as a number"),
    ("num_not_finite", "integer", "how many of them are NaN or infinite"),
    ("last", "number|null", "the last one; null if it is not finite"),
    ("least", "number|null", "the smallest finite one"),
    ("least_report", "integer|null", "number of its report"),
    ("most", "number|null", "the largest finite one"),
    ("most_report", "integer|null", "number of its report"),
)
_SAVED_CHECKPOINT = (
    ("name", "string", "its name"),
    ("report", "integer", "number of its report"),
    ("attempt", "integer", "attempt that made it"),
    ("num_files", "integer", "number of its files"),
    ("size", "integer", "their bytes"),
    ("created_at", "number", "when it was committed"),
    ("took_s", "number|null", "seconds from the begin of ``report()`` to the commit"),
)
_COMPARISON = (
    ("path", "string", "directory of the other run"),
    ("differences", "array of difference", "what differs, as of ``diff``"),
    ("error", "string|null", "why that is not known"),
)
_STATES_OF_SWEEP = (
    "``running``, ``ended``, ``stopped``: by ``hpctrain tune stop``, or ``interrupted``: its tuner "
    "stopped or died"
)
_SWEEP = (
    FORMAT_FIELD,
    ("name", "string", "name of the sweep"),
    ("path", "string", "its directory"),
    ("state", "string", _STATES_OF_SWEEP),
    ("reason", "string|null", "why it ended early, or was interrupted, if that is known"),
    ("copy_of", "string|null", "the directory that it was copied from"),
    ("metric", "string|null", "by what trials are compared"),
    ("mode", "string|null", "``min`` or ``max``"),
    ("seed", "integer|null", "seed of its draws"),
    ("trials", "array of trial", "in the order in which they were made"),
)
_TRIAL = (
    ("trial", "string", "its name"),
    ("path", "string", "its run directory"),
    (
        "state",
        "string",
        "``PENDING``, ``RUNNING``, ``PAUSING``, ``PAUSED``, ``STOPPING``, ``TERMINATED`` or "
        "``ERROR``",
    ),
    ("reports", "integer", "number of its last report"),
    ("config", "object", "its configuration; what JSON cannot hold is text"),
    ("metrics", "object", "rank 0's metrics of that report"),
    ("reason", "string|null", "why it was stopped, or failed"),
    ("job_id", "string|null", "its Slurm job, with ``TuneConfig(launcher='jobs')``"),
    ("job_state", "string|null", "Slurm's state of that, if its run is not over"),
    ("job_reason", "string|null", "Slurm's reason why it is pending"),
)
_SWEPT = (
    ("trials", "integer", "how many have been made"),
    ("running", "integer", "how many run"),
    ("waiting", "integer", "how many wait, or are paused"),
    ("finished", "integer", "how many have finished, or were stopped"),
    ("failed", "integer", "how many have failed"),
    ("metric", "string|null", "by which trials are compared"),
    ("mode", "string|null", "``min`` or ``max``"),
    ("best", "string|null", "name of the trial with the best last value"),
    ("value", "number|null", "its value"),
)
_BEST = (
    FORMAT_FIELD,
    ("trial", "string", "name of the best trial"),
    ("path", "string", "its run directory"),
    ("config", "object", "its configuration; what JSON cannot hold is text"),
    ("metrics", "object", "rank 0's metrics of its last report"),
    ("checkpoint", "string|null", "name of its newest complete checkpoint"),
)
_REPORTED_SWEEP = (
    ("name", "string", "name of the sweep"),
    ("path", "string", "its directory"),
    ("state", "string", _STATES_OF_SWEEP),
    ("reason", "string|null", "why it ended early, or was interrupted, if that is known"),
    ("metric", "string|null", "by which trials are compared"),
    ("mode", "string|null", "``min`` or ``max``"),
    ("seed", "integer|null", "seed of its draws"),
    ("began_at", "number", "when it began"),
    ("until", "number", "when it ended, or when its files were last written"),
    ("best", "string|null", "name of the best trial"),
    ("improvements", "array of improvement", "each value that was the best so far"),
    ("trials", "array of reported trial", "in the order in which they were made"),
    ("damage", "array of string", "files that cannot be read, each as a sentence"),
)
_IMPROVEMENT = (
    ("seconds", "number", "when it was reported, since the sweep began"),
    ("value", "number", "of the metric"),
    ("trial", "string", "name of the trial"),
)
_REPORTED_TRIAL = (
    ("trial", "string", "its name"),
    ("state", "string", "``PENDING``, ``RUNNING``, ``STOPPING``, ``TERMINATED`` or ``ERROR``"),
    ("reports", "integer", "number of its last report"),
    ("config", "object", "its configuration; what JSON cannot hold is text"),
    ("metrics", "object", "metrics of its last report, flat"),
    ("score", "number|null", "last value of the metric; null if it is not finite"),
    ("reason", "string|null", "why it was stopped, or failed"),
)
_EXPORTED_SWEEP = (
    FORMAT_FIELD,
    ("sweep", "string", "directory of the sweep"),
    ("path", "string", "the file that was written"),
    ("trials", "integer", "number of trials"),
    ("rows", "integer", "number of rows: of reports, and of trials without one"),
    ("columns", "array of string", "names of the columns, in order"),
)

FIELDS_OF_REPORTS: Mapping[str, Sequence[tuple[str, str, str]]] = {
    "report": _REPORT,
    "tune status": _SWEEP,
    "tune best": _BEST,
    "tune export": _EXPORTED_SWEEP,
    "reported run": _REPORTED_RUN,
    "use": _USE,
    "training part": _TRAINING_PART,
    "interval": _INTERVAL,
    "metric": _METRIC,
    "saved checkpoint": _SAVED_CHECKPOINT,
    "comparison": _COMPARISON,
    "swept": _SWEPT,
    "trial": _TRIAL,
    "reported sweep": _REPORTED_SWEEP,
    "improvement": _IMPROVEMENT,
    "reported trial": _REPORTED_TRIAL,
}
"""By verb, and the objects inside, as in `hpctrain.cli.json_output.all_fields`."""
