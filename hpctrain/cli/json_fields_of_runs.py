"""What ``--json`` prints of runs, their checkpoints, and what they run on: its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpctrain.cli.json_format import FORMAT_FIELD

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
    FORMAT_FIELD,
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
    FORMAT_FIELD,
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
    FORMAT_FIELD,
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
    FORMAT_FIELD,
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
    FORMAT_FIELD,
    ("starts", "boolean", "whether nothing was found that keeps the run from starting"),
    ("findings", "array of finding", "in the order of the checks"),
)
_DIFF = (
    FORMAT_FIELD,
    ("first", "string", "directory of the first run"),
    ("second", "string", "directory of the second run"),
    ("differences", "array of difference", "what differs"),
)
_PACK = (
    FORMAT_FIELD,
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
    FORMAT_FIELD,
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

FIELDS_OF_RUNS: Mapping[str, Sequence[tuple[str, str, str]]] = {
    "status": (*_STATUS, *_LIVE),
    "list": (*_STATUS, ("sweep?", "swept", "of a sweep, which is listed among runs, its trials")),
    "wait": (*_STATUS, ("exit_code", "integer", "exit code of this command")),
    "checkpoints": (
        FORMAT_FIELD,
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
    "cluster status": (
        FORMAT_FIELD,
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
    "node": _NODE,
    "goal": _GOAL,
    "slow rank": _SLOW_RANK,
    "node use": _NODE_USE,
    "gpu": _GPU,
}
"""By verb, and the objects inside, as in `hpctrain.cli.json_output.all_fields`."""
