"""What ``--json`` prints: the schema of each verb, with a version, and how it is printed.

A field may be added; a removal, a rename or another meaning raises `FORMAT`.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

FORMAT = 1
"""Version of these schemas; every object that is printed has it as ``format``."""

_FORMAT = ("format", "integer", f"{FORMAT}; raised when a field is removed, or changes its meaning")
_OF_RUN = (
    ("name", "string", "name of the run"),
    ("path", "string", "its directory"),
    (
        "state",
        "string",
        "``state`` of ``status.json``; ``lost`` with no executor, ``submitted`` also if queued "
        "again, ``prepared`` at first",
    ),
)
_STATUS = (
    _FORMAT,
    *_OF_RUN,
    (
        "recorded_name",
        "string|null",
        "name that it began with, if its directory has been copied or moved to another one",
    ),
    (
        "live",
        "boolean|null",
        "whether it has an executor; null if unknown: Slurm did not answer, or a process "
        "of another host wrote nothing for 5 s",
    ),
    ("launcher", "string", "home of its ranks, as in ``RunConfig(launcher=...)``"),
    ("job_id", "string|null", "its Slurm job"),
    ("job_state", "string|null", "Slurm's state of the job, if it was queried"),
    ("job_reason", "string|null", "Slurm's reason why it is pending or ended"),
    ("attempt", "integer", "number of the attempt; 0 before the first"),
    ("world_size", "integer", "number of ranks"),
    ("nodes", "array of string", "host names, by node rank"),
    ("phase", "string", "earliest phase that any rank is in; begins with ``stopping`` in a stop"),
    ("stalled", "string", "ranks without progress, and their phase; empty if there are none"),
    ("slow", "string", "nodes that hold up every step, and why; empty if there are none"),
    ("last_restart", "string", "cause of the last restart; empty without one"),
    ("deadline", "number|null", "when the time limit of the job, or ``total_time``, ends"),
    ("reports", "integer", "number of the last report"),
    ("reported_at", "number|null", "when it was made"),
    ("metrics", "object", "rank 0's metrics of that report"),
    ("checkpoint", "string|null", "path of the newest complete checkpoint"),
    ("started_at", "number|null", "when its executor began; null as long as its job waits"),
    ("updated_at", "number|null", "when ``status.json`` was written"),
    ("ended_at", "number|null", "when the run ended"),
    ("error", "string|null", "why it failed or was stopped"),
    (
        "damage",
        "string|null",
        "why ``status.json`` could not be read; then the state comes from the ledger",
    ),
    ("next", "string|null", "the suggested next step"),
)
_LIVE = (
    ("reports_per_s", "number|null", "reports a second, of the last minute"),
    ("samples_per_s", "number|null", "samples a second, as rank 0 reports them"),
    ("samples_unit", "string|null", "``samples``, ``tokens`` or ``images``"),
    ("goals", "array of goal", "its stop criteria, the one first that is met first"),
    ("num_checkpoints", "integer", "number of checkpoints"),
    ("checkpoint_bytes", "integer|null", "size of the newest"),
    ("checkpoint_created_at", "number|null", "when the newest was committed"),
    ("rank_phases", "object", "how many ranks are in each phase; empty if unknown"),
    ("slowest_ranks", "array of slow rank", "of a run at work; eight at most"),
    ("node_use", "array of node use", "of the nodes that have measured it"),
)
_GOAL = (
    ("name", "string", "the metric"),
    ("target", "number", "the run stops once the metric is at least this"),
    ("value", "number|null", "the metric of the last report"),
    ("left_s", "number|null", "seconds until then; null if it is no count, or does not grow"),
)
_SLOW_RANK = (
    ("rank", "integer", "its number"),
    ("node", "string|null", "its node"),
    ("phase", "string", "its phase"),
    ("reports", "integer", "number of its last report"),
    ("idle_s", "integer", "seconds since its last progress"),
)
_NODE_USE = (
    ("name", "string", "its name"),
    ("cpus", "integer|null", "cores that its ranks may run on"),
    ("cpu", "number|null", "how many of them were busy, over some seconds"),
    ("memory_mib", "integer|null", "memory in use"),
    ("memory_limit_mib", "integer|null", "memory that they may use"),
    ("gpus", "array of gpu", "as its agent sees them; often none"),
)
_GPU = (
    ("busy_percent", "integer|null", "share of the last second in which a kernel ran"),
    ("memory_mib", "integer|null", "memory in use"),
    ("memory_total_mib", "integer|null", "memory that it has"),
)
_CHECKPOINT = (
    ("name", "string", "its name"),
    ("state", "string", "``complete``, ``verified``, ``damaged``, ``unreadable`` or ``set aside``"),
    ("complaint", "string|null", "why it is damaged or unreadable"),
    (
        "report?",
        "integer",
        "number of its report; this and the following fields only with a manifest",
    ),
    ("attempt?", "integer", "attempt that made it"),
    ("world_size?", "integer", "ranks of that attempt"),
    ("files?", "integer", "number of its files"),
    ("bytes?", "integer", "their size"),
    ("created_at?", "number", "when it was committed"),
    ("versions?", "object", "of hpctrain, Python and torch"),
    ("metrics?", "object", "rank 0's metrics of the report"),
    (
        "validation?",
        "string|null",
        "``pending``, ``done`` or ``failed``; null if none was requested",
    ),
)
_EXPORT = (
    _FORMAT,
    ("checkpoint", "string", "directory of the checkpoint"),
    ("path", "string", "what was written: a directory, or the file of ``torch``"),
    ("export_format", "string", "``safetensors``, ``dcp`` or ``torch``"),
    ("files", "array of string", "names of its files"),
    ("tensors", "integer", "number of tensors"),
    ("bytes", "integer", "their size"),
    ("aliases", "object", "further names of tensors, with the name that is kept"),
    ("left_out", "array of string", "entries of the model's state that are not in it"),
    ("other_parts", "array of string", "what else the checkpoint has, such as ``optimizer``"),
    ("verified", "boolean", "whether the checkpoint has digests, which were compared"),
)
_NOTE = (
    ("time", "number", "when"),
    ("what", "string", "the event, as text"),
)
_ATTEMPT = (
    ("attempt", "integer", "its number"),
    ("job_id", "string|null", "its Slurm job"),
    ("nodes", "array of string", "host names, by node rank"),
    ("started_at", "number|null", "null if the ledger is damaged"),
    ("ended_at", "number|null", "null while it runs"),
    ("resumed_from", "string|null", "name of a checkpoint; null for the beginning"),
    ("first_report", "integer", "report that it resumed from; 0 at the beginning"),
    ("reports", "integer|null", "reports of all ranks at its end, counted over all attempts"),
    ("checkpoint", "string|null", "newest complete checkpoint at its end"),
    ("cause", "string|null", "why it ended, in one line"),
    (
        "kind",
        "string|null",
        "budget that it counts against: ``worker``, ``start``, ``preemption``, ...",
    ),
    ("notes", "array of note", "events until the next attempt began"),
)
_HISTORY = (
    _FORMAT,
    *_OF_RUN,
    ("started_at", "number|null", "time of the first event"),
    ("updated_at", "number|null", "when ``status.json`` was written"),
    ("ended_at", "number|null", "when the run ended"),
    ("jobs", "array of string", "its Slurm jobs, in order"),
    ("num_restarts", "integer", "number of automatic restarts of the ranks"),
    ("attempts", "array of attempt", "the first one first"),
    ("events", "array of object", "the ledger, line by line"),
)
_NODE = (
    ("name", "string", "its name"),
    ("address", "string", "its address"),
    ("powered", "boolean", "whether it is switched on"),
    ("slurmd_alive", "boolean", "whether its slurmd runs"),
    ("state", "string", "Slurm's short word, such as ``idle``"),
    ("reason", "string", "why it is down or drained"),
)
_WHY = (
    _FORMAT,
    ("job_id", "string|null", "the Slurm job; null where the run's directory says it all"),
    ("job_state", "string|null", "Slurm's state of it"),
    ("job_reason", "string|null", "Slurm's reason why it is pending or ended"),
    ("exit_code", "string|null", "Slurm's ``status:signal``"),
    (
        "verdict",
        "string|null",
        "``waits``, ``held``, ``admin``, ``never``, ``running``, ``suspended`` or ``ended``",
    ),
    ("meaning", "string|null", "the reason in words"),
    ("details", "array of string", "limits, nodes and jobs that it is about"),
    ("starts_at", "number|null", "when Slurm expects it to start"),
    ("next", "string|null", "the suggested next step"),
    ("path", "string|null", "directory of the run; null for another job"),
    ("state", "string|null", "state of the run, as in ``status``"),
    ("error", "string|null", "why the run failed or was stopped"),
    ("slow_nodes", "array of string", "nodes of the run that held up every step, a sentence each"),
)
_DOCTOR = (
    _FORMAT,
    ("starts", "boolean", "whether nothing was found that keeps the run from starting"),
    ("findings", "array of finding", "in the order of the checks"),
)
_DIFF = (
    _FORMAT,
    ("first", "string", "directory of the first run"),
    ("second", "string", "directory of the second run"),
    ("differences", "array of difference", "what differs"),
)
_PACK = (
    _FORMAT,
    ("path", "string", "the file that was written"),
    ("sha256", "string", "digest of all of it but its last 2048 bytes, which hold the digest"),
    ("bytes", "integer", "size of the file"),
    ("files", "integer", "number of files in it"),
    ("prefix", "string", "directory of the environment that was packed"),
    ("form", "string", "``tar`` or ``squashfs``"),
    ("python", "string", "version of its interpreter"),
    ("base", "string|null", "where the interpreter and standard library of a venv are, if packed"),
    ("node_python", "string|null", "the interpreter that each node needs, as it is not packed"),
    ("editable", "object", "where editable installations have their modules, by name"),
    ("further", "array of string", "directories of ``--with``"),
    ("not_packed", "array of string", "directories of modules that stay where they are"),
)
_REPLAY = (
    _FORMAT,
    ("name", "string", "name of the new run"),
    ("path", "string", "its directory"),
    ("replay_of", "string", "directory of the run that is repeated"),
    ("launcher", "string", "home of its ranks, as in ``RunConfig(launcher=...)``"),
    ("began", "boolean", "false with ``--dry-run``"),
    ("job_id", "string|null", "its Slurm job"),
    ("state", "string|null", "its state when this command ends; null with ``--dry-run``"),
    ("error", "string|null", "why it failed or was stopped"),
    ("same", "array of string", "what decides the result, and is as it was"),
    ("kept", "array of string", "files of your modules that it imports as they were"),
    ("edited", "array of string", "those of them that have changed since"),
    (
        "variables",
        "array of difference",
        "variables that are set as they were: the value that is set first, then that of here",
    ),
    ("seed", "integer|null", "seed of its ranks"),
    (
        "differences",
        "array of difference",
        "what differs: the recorded value first, then that of now",
    ),
    ("warnings", "array of string", "what Slurm says against the job"),
)
_DIFFERENCE = (
    (
        "field",
        "string",
        "``scaling_config.num_workers``, ``module model.py``, ``metrics.loss``",
    ),
    ("first", "string", "its value in the first run; ``-`` where it has none"),
    ("second", "string", "its value in the second run"),
)
_FINDING = (
    ("check", "string", "what was checked, such as ``partition`` or ``storage``"),
    ("level", "string", "``ok``, ``note``, ``warning`` or ``error``"),
    ("what", "string", "what was found"),
    ("why", "string", "why it matters; empty if all is well"),
    ("next", "string", "what to change; empty if there is nothing"),
    ("ranks?", "array of bound rank", "of the first ``binding``, each rank of the probe"),
)
_BOUND_RANK = (
    ("host", "string", "its node"),
    ("local_rank", "integer|null", "its number on that node, by Slurm"),
    ("cpus", "array of integer", "CPUs that it may run on"),
    ("gpus", "array of string", "GPUs that it sees, as CUDA_VISIBLE_DEVICES names them"),
)
_REPORT = (
    _FORMAT,
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
    _FORMAT,
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
    _FORMAT,
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
    _FORMAT,
    ("sweep", "string", "directory of the sweep"),
    ("path", "string", "the file that was written"),
    ("trials", "integer", "number of trials"),
    ("rows", "integer", "number of rows: of reports, and of trials without one"),
    ("columns", "array of string", "names of the columns, in order"),
)

FIELDS: Mapping[str, Sequence[tuple[str, str, str]]] = {
    "status": (*_STATUS, *_LIVE),
    "list": (*_STATUS, ("sweep?", "swept", "of a sweep, which is listed among runs, its trials")),
    "wait": (*_STATUS, ("exit_code", "integer", "exit code of this command")),
    "checkpoints": (
        _FORMAT,
        ("path", "string", "directory of the checkpoints"),
        ("resumes_from", "string|null", "name of the one that a resume would use"),
        ("checkpoints", "array of checkpoint", "the oldest first"),
    ),
    "checkpoints export": _EXPORT,
    "history": _HISTORY,
    "why": _WHY,
    "doctor": _DOCTOR,
    "diff": _DIFF,
    "pack": _PACK,
    "replay": _REPLAY,
    "report": _REPORT,
    "tune status": _SWEEP,
    "tune best": _BEST,
    "tune export": _EXPORTED_SWEEP,
    "cluster status": (
        _FORMAT,
        ("state_dir", "string", "directory of the virtual cluster"),
        ("ready", "boolean", "whether all its daemons answer"),
        ("controller_alive", "boolean", "whether slurmctld runs"),
        ("nodes", "array of node", "its compute nodes"),
    ),
    "checkpoint": _CHECKPOINT,
    "attempt": _ATTEMPT,
    "note": _NOTE,
    "finding": _FINDING,
    "bound rank": _BOUND_RANK,
    "difference": _DIFFERENCE,
    "reported run": _REPORTED_RUN,
    "use": _USE,
    "training part": _TRAINING_PART,
    "interval": _INTERVAL,
    "metric": _METRIC,
    "saved checkpoint": _SAVED_CHECKPOINT,
    "comparison": _COMPARISON,
    "node": _NODE,
    "swept": _SWEPT,
    "goal": _GOAL,
    "slow rank": _SLOW_RANK,
    "node use": _NODE_USE,
    "gpu": _GPU,
    "trial": _TRIAL,
    "reported sweep": _REPORTED_SWEEP,
    "improvement": _IMPROVEMENT,
    "reported trial": _REPORTED_TRIAL,
}
"""Name, type and meaning of each field, by verb, and of the objects inside. Times are seconds since
the epoch. A name with a question mark may be absent. ``list`` prints an array of them."""


def schema(verb: str) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of what ``hpctrain VERB --json`` prints. Not collective.

    Examples
    --------
    >>> schema("note")["properties"]["what"]["type"]
    ['string']
    """
    described = _object(FIELDS[verb])
    return {"type": "array", "items": described} if verb == "list" else described


def _object(fields: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [name for name, _, _ in fields if not name.endswith("?")],
        "properties": {
            name.removesuffix("?"): {**_type(kind), "description": meaning}
            for name, kind, meaning in fields
        },
    }


def print_json(content: Any) -> None:
    """Print the output of a verb, with the version of its schema, on stdout.

    Numbers that are not finite become null (RFC 8259, section 6: JSON has none).
    """
    if isinstance(content, list):
        content = [{"format": FORMAT, **each} for each in content]
    else:
        content = {"format": FORMAT, **content}
    print(json.dumps(_finite(content), indent=2, default=str, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def stdout_on_stderr() -> Iterator[None]:
    """Send what this process and its children print to stderr: stdout may be JSON."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _type(kind: str) -> dict[str, Any]:
    array, _, item = kind.partition("array of ")
    if not array and item:
        items = schema(item) if item in FIELDS else {"type": [item]}
        return {"type": ["array"], "items": items}
    return schema(kind) if kind in FIELDS else {"type": kind.split("|")}
