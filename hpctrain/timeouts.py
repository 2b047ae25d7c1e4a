"""Every timeout of hpctrain in one table: what waits, how long, what its end does, what changes it.

The documentation prints the table (docs/timeouts.rst), and an error after a timeout names its row.
Waits that a setting limits are in `timeout_settings`. Polling intervals are not timeouts, and stay
where they are used.
"""

from __future__ import annotations


class Timeout(float):
    """A time limit in seconds, and its row of the table.

    Examples
    --------
    >>> Timeout(30, "slurm_command", "a command of Slurm", "LaunchError") + 1
    31.0
    """

    name: str
    """Name of the row: that of the constant, in lower case and without its unit."""
    waits_for: str
    """What is waited for."""
    then: str
    """What its end does."""
    setting: str
    """What changes it; empty if nothing does."""

    def __new__(  # noqa: D102
        cls, seconds: float, name: str, waits_for: str, then: str, setting: str = ""
    ) -> Timeout:
        self = super().__new__(cls, seconds)
        self.name, self.waits_for, self.then, self.setting = name, waits_for, then, setting
        return self

    def __reduce__(self) -> tuple[object, ...]:
        # Pickled as a plain number.
        return (float, (float(self),))


def describe(seconds: float) -> str:
    """Return how long a wait was for a message, with its row of the table or what has set it.

    Not collective.

    Examples
    --------
    >>> describe(SLURM_COMMAND_S)
    '30 s (timeout slurm_command)'
    >>> describe(set_by("FailureConfig(start_timeout_s=...)", 600))
    '600 s (FailureConfig(start_timeout_s=...))'
    >>> describe(2.5)
    '2.5 s'
    """
    shown = f"{float(seconds):.0f} s" if seconds >= 10 else f"{float(seconds):.3g} s"
    if not isinstance(seconds, Timeout):
        return shown
    return f"{shown} (timeout {seconds.name})" if seconds.name else f"{shown} ({seconds.setting})"


def set_by(setting: str, seconds: float) -> Timeout:
    """Return a time limit with what has set it, for `describe`. Not collective."""
    return Timeout(seconds, "", "", "", setting)


# --- Slurm ---
SLURM_COMMAND_S = Timeout(
    30.0,
    "slurm_command",
    "a command of Slurm (``scontrol``, ``squeue``, ``sbatch`` ...)",
    "LaunchError; retried if that can help",
)
OWN_JOB_S = Timeout(
    10.0, "own_job", "the controller's answer about the job of this process", "it is queried again"
)
QUEUE_S = Timeout(
    10.0,
    "queue",
    "``squeue``, which fails after some seconds if the controller is unavailable",
    "the state of the job is shown as unknown",
)
NODE_QUESTION_S = Timeout(
    15.0,
    "node_question",
    "``scontrol show job`` and ``show node`` before an attempt",
    "the previous state of the nodes is used",
)
NODE_TEST_S = Timeout(
    10.0,
    "node_test",
    "a step of one process on a node that Slurm says does not respond",
    "the node is left out",
)
NODE_TEST_RETRY_S = Timeout(
    5.0, "node_test_retry", "Slurm to take that step", "the node is left out"
)
GIT_S = Timeout(
    5.0,
    "git",
    "``git status``, when a run begins",
    "its commit and its code.patch are not recorded",
)
GIT_LIST_S = Timeout(
    5.0,
    "git_list",
    "``git ls-files``, in the background while a run begins",
    "code.patch holds no untracked files, and code.json says so",
)
GIT_PATCH_S = Timeout(
    5.0,
    "git_patch",
    "``git diff``, in the background while a run begins",
    "there is no code.patch, and code.json says so",
)
CODE_FILES_S = Timeout(
    5.0,
    "code_files",
    "sizes and digests of changed files, in the background while a run begins",
    "code.patch holds no others, and code.json names them",
)
GIT_KILLED_S = Timeout(1.0, "git_killed", "a git that was killed to end", "it is left")
FOLLOWER_END_S = Timeout(5.0, "follower_end", "the thread that shows a run to end", "it is left")
STEP_QUESTION_S = Timeout(
    5.0,
    "step_question",
    "``scontrol show step`` and ``scancel JOB.STEP``",
    "the step ends with its launcher or its job",
)
SUCCESSOR_SUBMISSION_S = Timeout(
    10.0, "successor_submission", "``sbatch`` of a successor job", "it is tried again"
)
# It writes one every two seconds; NFS shows it some seconds later.
TUNER_SIGN_S = Timeout(
    10.0,
    "tuner_sign",
    "a sign of life of the tuner of a sweep, when the job of a trial ends",
    "the trial submits its next job itself",
)
# A restart of the controller takes some seconds, a failover a minute.
CONTROLLER_S = Timeout(
    60.0,
    "controller",
    "a controller that restarts or fails over, when a job ends, or nodes are first chosen",
    "LaunchError: the run resumes at the next fit()",
)
TIME_LIMIT_QUESTION_S = Timeout(
    10.0,
    "time_limit_question",
    "the answer when the job ends",
    "queried again, at growing intervals",
)
# sbatch has usually returned long before: this covers a process that died between sbatch and the
# ledger.
OWNERSHIP_S = Timeout(
    60.0,
    "ownership",
    "the ledger to name the job that has started",
    "the job takes the run",
)

# --- Start of the ranks ---
LAUNCHER_PROBE_S = Timeout(
    30.0, "launcher_probe", "``srun --mpi=list`` and ``mpiexec --version``", "LaunchError"
)
PRECHECK_S = Timeout(
    5.0,
    "precheck",
    "each of three answers of Slurm's controller about limits, before a submission",
    "the limits are not checked",
)
DOCTOR_STEP_S = Timeout(
    60.0,
    "doctor_step",
    "ranks of ``hpctrain doctor`` on the nodes of its job",
    "that launcher or node counts as one that does not work",
)
DOCTOR_IMPORT_S = Timeout(
    120.0, "doctor_import", "the import of a framework on a node", "it counts as one that fails"
)
DOCTOR_MOUNT_S = Timeout(
    30.0,
    "doctor_mount",
    "a node to mount the image of a packed environment, in ``hpctrain doctor``",
    "it counts as one that can neither mount nor unpack it",
)
CONTAINER_CHECK_S = Timeout(
    900.0,
    "container_check",
    "the first start of a container on each node, which may load its image from a registry",
    "LaunchError with what it printed",
)
ENVIRONMENT_PACK_S = Timeout(
    1800.0,
    "environment_pack",
    "a packed environment to be copied to all nodes, and then to be unpacked there",
    "nodes get it from one another; LaunchError with the file that has the output",
)
PACK_WORD_S = Timeout(
    60.0,
    "pack_word",
    "the executor, by a node that is to get the packed environment from another one; and by the "
    "executor, that node",
    "the node reads the shared file; the executor counts it as lost",
)
PACK_READ_S = Timeout(
    120.0,
    "pack_read",
    "the node that reads a packed environment from the shared filesystem, while others wait for it",
    "one further node reads the file, too",
)
PACK_BYTES_S = Timeout(
    30.0,
    "pack_bytes",
    "the next MiB of a packed environment from another node",
    "a further node is tried, once, then the shared file",
)
ENVIRONMENT_PACK_END_S = Timeout(
    60.0,
    "environment_pack_end",
    "the nodes to remove a packed environment, at the end of a run",
    "SIGKILL; the next job there removes the rest",
)
HOST_TEST_S = Timeout(
    10.0, "host_test", "``mpiexec`` on a host that was lost", "the host stays excluded"
)
HOST_TEST_END_S = Timeout(2.0, "host_test_end", "that ``mpiexec`` to end on SIGTERM", "SIGKILL")
# Ranks wait slightly longer for the agent of their node.
STEP_REFUSAL_S = Timeout(
    45.0,
    "step_refusal",
    "Slurm to accept a step while another one holds its resources",
    "LaunchError, which counts as a failed start",
)
AGENT_OF_NODE_S = Timeout(
    60.0,
    "agent_of_node",
    "the agent of the node, when a rank starts",
    "the rank ends; the start failed",
)
# The import of torch, from a cold parallel filesystem.
FORK_SERVER_S = Timeout(
    300.0,
    "fork_server",
    "the imports of a fork server, when ranks start",
    "each rank imports its modules itself",
)
FORK_CLIENTS_S = Timeout(
    10.0,
    "fork_clients",
    "the ranks of a node to come to its fork server, from the first to the last, in a step",
    "a later rank imports its modules itself",
)
EARLY_IMPORTS_S = Timeout(
    120.0,
    "early_imports",
    "the imports of a rank alone on its node, before it connects",
    "it prints its stack into ``launcher.out``, each time, and goes on",
)
FORKED_RANK_S = Timeout(
    10.0,
    "forked_rank",
    "a forked rank to change to its working directory",
    "the rank starts without the fork server",
)
SPARE_RANKS_S = Timeout(
    30.0,
    "spare_ranks",
    "the ranks that were started ahead of an attempt, from the start of their step",
    "the attempt starts in a new step",
)
FORKED_RANKS_END_S = Timeout(
    2.0, "forked_ranks_end", "forked ranks to end after their launcher", "the next start"
)
FORK_SERVER_END_S = Timeout(2.0, "fork_server_end", "a fork server to end", "SIGKILL")
SLOT_STEP_S = Timeout(
    90.0,
    "slot_step",
    "the step of a slot to start on its node, when a trial begins",
    "the trial starts steps of its own",
)
SLOT_ANSWER_S = Timeout(
    30.0,
    "slot_answer",
    "the step of a slot to start an agent or ranks",
    "the trial starts steps of its own",
)
SLOT_STEP_END_S = Timeout(
    5.0, "slot_step_end", "the step of a slot that is not needed any more to end", "``scancel``"
)
EXECUTOR_CONNECTION_S = Timeout(
    60.0,
    "executor_connection",
    "a TCP connection from agents and ranks to the executor",
    "LaunchError that names the addresses",
)
# An NFS client may take that long to see a file that another machine has just written.
SECRET_FILE_S = Timeout(
    5.0, "secret_file", "the file with the secret of the attempt", "the agent ends"
)
START_OF_WORKER_GROUP_S = Timeout(
    600.0,
    "start_of_worker_group",
    "the ranks of a ``WorkerGroup`` to join",
    "LaunchError",
    "``WorkerGroup.start(timeout_s=...)``",
)
FIRST_COLLECTIVE_S = Timeout(
    60.0, "first_collective", "a first sum over all ranks", "LaunchError: the network between ranks"
)
NODE_STORAGE_S = Timeout(
    30.0,
    "node_storage",
    "nodes that have not reported whether they can use the storage",
    "their storage counts as bad",
)
# If only some nodes lack a path, those nodes are at fault; if all lack it, none is. So wait for
# all.
NODE_REASONS_S = Timeout(
    10.0,
    "node_reasons",
    "the other nodes, while all so far report the same of the storage",
    "what is known is taken",
)
LAST_NODE_REPORTS_S = Timeout(
    1.0,
    "last_node_reports",
    "the other nodes, after one has reported that it is bad",
    "what is known is taken",
)
LATE_RANKS_STACKS_S = Timeout(
    15.0,
    "late_ranks_stacks",
    "the state of ranks that did not join, seen from outside",
    "LaunchError without it",
)
# All ranks connect at the same time, after a broadcast: one that cannot connect soon never will.
TORCH_STORE_S = Timeout(
    60.0, "torch_store", "connections of all ranks to torch's TCPStore", "WorkerError"
)
ADDRESS_TRIAL_S = Timeout(
    3.0, "address_trial", "an address of a node that other nodes try", "the next address"
)

# --- Channels ---
TCP_CONNECTION_S = Timeout(
    3.0, "tcp_connection", "one TCP connection", "the next address, then again"
)
PEER_PROOF_S = Timeout(3.0, "peer_proof", "the proof of the other end", "the connection is closed")
STRANGER_S = Timeout(10.0, "stranger", "the proof on a new connection", "it is closed")
# As long as Linux itself goes on sending to a host that does not answer (net.ipv4.tcp_retries2).
TREE_PLACE_S = Timeout(
    900.0,
    "tree_place",
    "the executor to give an agent another parent, if it has not refused the connection",
    "the executor counts as lost",
)
TREE_JOIN_S = Timeout(
    60.0, "tree_join", "an agent that has asked for its place to join", "its connection is closed"
)
FULL_LINK_S = Timeout(
    60.0,
    "full_link",
    "the executor to receive, if a rank has much to send",
    "the rank continues",
)
LAST_FRAMES_S = Timeout(
    5.0, "last_frames", "the executor to receive the last frames of a rank", "it ends"
)
THREAD_END_S = Timeout(1.0, "thread_end", "the thread of a connection to end", "the rank ends")
LEASE_CONNECTION_S = Timeout(
    3.0, "lease_connection", "the host of an executor that agents cannot reach", "it counts as gone"
)
EXECUTOR_TEMPLATE_S = Timeout(
    60.0,
    "executor_template",
    "the process that forks the executors of a sweep's trials, to import them and to fork",
    "executors are started without it",
)
# Twice the default of node_timeout_s.
EXECUTOR_SILENCE_S = Timeout(
    60.0,
    "executor_silence",
    "an executor on another host to write the status of its run",
    "it counts as dead; fit() takes over the run",
    "``FailureConfig(node_timeout_s=...)``: twice that",
)
# A supervisor restarts an executor at once. If a node answers for this long and no process writes
# the status of the run, the node was rebooted.
EXECUTOR_RESTART_S = Timeout(
    60.0,
    "executor_restart",
    "a restarted executor on its node",
    "an agent requeues the job, or submits a successor",
)

# --- Training ---
SUSPICIOUS_SILENCE_S = Timeout(
    1800.0,
    "suspicious_silence",
    "progress of a rank, where ``hang_timeout_s`` is not set",
    "stacks are written, nothing is ended",
    "``FailureConfig(hang_timeout_s=...)``",
)
STACKS_S = Timeout(5.0, "stacks", "ranks to write their stacks", "they are examined from outside")
EXAMINATION_S = Timeout(
    30.0, "examination", "agents to examine silent ranks", "WorkerHangError without it"
)
PY_SPY_S = Timeout(10.0, "py_spy", "``py-spy dump`` of one rank", "the hang is shown without it")
STEP_TIMES_S = Timeout(
    60.0, "step_times", "ranks to say how long their steps take", "they are asked again"
)
LOAD_S = Timeout(
    2.0, "load", "ranks of a slow node to say what it suffers from", "it is named without it"
)
SLOW_NODE_S = Timeout(
    30.0,
    "slow_node",
    "a slow node to become as fast as the others",
    "it is left out",
    "``FailureConfig(slow_node_factor=...)``: whether",
)
SLOW_NODE_INTERVAL_S = Timeout(
    600.0,
    "slow_node_interval",
    "the effect of leaving a slow node out",
    "the next one may be left out",
)
LEFT_BEHIND_S = Timeout(
    5.0,
    "left_behind",
    "progress of a rank after others have returned",
    "it is named; nothing ends",
    "``FailureConfig(hang_timeout_s=...)``",
)
BARRIER_S = Timeout(
    1800.0,
    "barrier",
    "all ranks, in ``hpctrain.collective``",
    "TrainingFailedError in the rank",
    "``barrier(timeout_s=...)``, ``broadcast_from_rank_zero(timeout_s=...)``",
)
# FailureConfig(hang_timeout_s=...) sets a limit for folds.
FOLDS_S = Timeout(
    30 * 24 * 3600.0,
    "folds",
    "the folds of other ranks, in scikit-learn",
    "TrainingFailedError in the rank",
    "``FailureConfig(hang_timeout_s=...)``",
)

# --- Stop and end ---
STOP_AGREEMENT_S = Timeout(
    75.0,
    "stop_agreement",
    "all ranks to reach the report at which they stop",
    "they are ended; the run resumes from its newest checkpoint",
)
JOB_END_S = Timeout(
    20.0,
    "job_end",
    "what follows the end of the ranks before the end of their job: a requeue, or a successor",
    "Slurm ends the job; ranks have the time before",
)
AGENTS_END_S = Timeout(5.0, "agents_end", "agents to end", "their step is cancelled")
RANKS_END_S = Timeout(10.0, "ranks_end", "ranks to end after their function returned", "SIGTERM")
# A rank that computes in C and holds the GIL does not notice that it is to end.
RANKS_EXIT_S = Timeout(0.5, "ranks_exit", "failed ranks to exit", "SIGTERM")
LAUNCHER_END_S = Timeout(5.0, "launcher_end", "srun or mpiexec to end on SIGTERM", "SIGKILL")
# An srun that has not ended by then has lost the SIGTERM: hpctrain ends its step.
SRUN_END_S = Timeout(1.0, "srun_end", "srun to act on SIGTERM", "``scancel JOB.STEP``")
# srun waits for a lost node; the processes of the other nodes have ended by then.
LOST_NODE_STEP_S = Timeout(1.0, "lost_node_step", "a step on a node that is gone", "SIGKILL")
DEATH_NOTICE_S = Timeout(
    5.0,
    "death_notice",
    "the launcher to end after a connection to a rank has",
    "the rank counts as lost",
)
FURTHER_FAILURES_S = Timeout(
    0.5, "further_failures", "further ranks to fail, after the first", "the cause is named"
)
FAILED_COLLECTIVE_S = Timeout(
    1.0,
    "failed_collective",
    "the other ranks to say where they are, after a collective failed",
    "the error names those that have answered",
)
MPI_FINALIZE_S = Timeout(60.0, "mpi_finalize", "``MPI_Finalize``", "the rank ends with its stack")
SPMD_END_S = Timeout(
    5.0, "spmd_end", "other ranks to end, under a user's own srun", "the process ends"
)
SPMD_RANKS_S = Timeout(
    120.0, "spmd_ranks", "all ranks to reach rank 0, under a user's own srun", "LaunchError"
)
CANCEL_BEGIN_S = Timeout(
    5.0,
    "cancel_begin",
    "Slurm to cancel a pending job",
    "the run is asked to stop at its next report",
)
# Slurm's KillWait is 30 s.
CANCEL_END_S = Timeout(
    45.0,
    "cancel_end",
    "a job or a process that ``hpctrain cancel --now`` ends",
    "a message says that it has not ended",
)

# Longer than stop_agreement, after which the executor of a trial acts by itself.
TRIAL_STOP_S = Timeout(
    100.0,
    "trial_stop",
    "a trial of a sweep to stop at its next report",
    "its executor is ended, as by ``hpctrain cancel --now``",
)

EXACT_STOP_S = Timeout(
    60.0,
    "exact_stop",
    "the executor, by a trial whose report meets ``RunConfig(stop={...})``",
    "the trial goes on to its next report",
)

SWEEP_CLAIM_S = Timeout(
    5.0, "sweep_claim", "another process that begins the same sweep", "ConfigError"
)
# NFS shows a file that was replaced on another host so late (acdirmin of nfs(5)): the last word of
# the executor may be there, and not be seen yet.
LATE_FILES_S = Timeout(
    30.0,
    "late_files",
    "the last status of a trial whose job is over",
    "its executor counts as dead",
)

TUNER_DECISION_S = Timeout(
    60.0,
    "tuner_decision",
    "the decision on a report of a trial, by the scheduler of its sweep or its stop criterion",
    "the trial goes on, and waits for no other decision until the next one comes",
)

# --- Files ---
STORAGE_FAILOVER_S = Timeout(
    20.0,
    "storage_failover",
    "a server of the filesystem, when an executor or a rank begins",
    "OSError",
)
# A run whose end is not recorded must run again.
LAST_WRITE_S = Timeout(
    300.0, "last_write", "the filesystem, when the end of a run is written", "the error is logged"
)
FREE_SPACE_S = Timeout(
    600.0, "free_space", "free space on a full disk, before a restart", "the restart is tried"
)
# The state of a process on another host is unknown here. It holds its claim until it has written
# status.json; an sbatch that waits for a busy controller happens in between.
CLAIM_S = Timeout(
    300.0, "claim", "another process that begins the same run", "LaunchError that names the process"
)
NEWER_CHECKPOINT_S = Timeout(
    30.0,
    "newer_checkpoint",
    "a message about a newer checkpoint, if one was deleted",
    "the checkpoint counts as deleted",
)
CHECKPOINT_PARTS_S = Timeout(
    1800.0,
    "checkpoint_parts",
    "the other ranks' parts of a state, outside of a run",
    "CheckpointError",
    "``SyncConfig(sync_timeout=...)`` in a run",
)
STATE_READ_S = Timeout(
    1800.0,
    "state_read",
    "the other ranks or the disk, while a state is read and nothing moves",
    "CheckpointError",
)
# All of the time before the whole job may have stood still.
LATE_COMMIT_S = Timeout(
    5.0,
    "late_commit",
    "a commit that is late, before it is given up",
    "CheckpointError",
    "``SyncConfig(sync_timeout=...)``, if that is shorter",
)
DELETION_ROOM_S = Timeout(
    5.0,
    "deletion_room",
    "one of several deletions of checkpoints, before the next is begun",
    "it is begun later",
)
DELETIONS_S = Timeout(
    300.0,
    "deletions",
    "deletions of checkpoints at the end of a run, or on a full disk",
    "what is left is deleted by the next executor of the run",
)
ROWS_READ_S = Timeout(600.0, "rows_read", "the next rows of a dataset", "HpctrainError")
STRIPING_S = Timeout(30.0, "striping", "``lfs`` of Lustre", "the file is not striped")
VALIDATION_END_S = Timeout(1.0, "validation_end", "a validation to end on SIGTERM", "SIGKILL")
VALIDATION_JOB_END_S = Timeout(
    5.0, "validation_job_end", "a validation in a job to end on SIGTERM, after its time", "SIGKILL"
)
VALIDATION_SUBMISSION_S = Timeout(
    10.0, "validation_submission", "``sbatch`` of the job of a validation", "it is tried again"
)
# Otherwise the id of a job, or its cancellation, would be lost.
VALIDATION_CALLS_S = Timeout(
    15.0,
    "validation_calls",
    "``sbatch`` and ``scancel`` of validations, when the run ends",
    "the run ends anyway",
)
# A parallel filesystem may show a file of another node late.
VALIDATION_FILE_S = Timeout(
    10.0, "validation_file", "the files of a validation whose job has ended", "a warning"
)

# --- Prediction, models and installation ---
PREDICTION_LOCK_S = Timeout(
    120.0, "prediction_lock", "another process that writes the same output", "ConfigError"
)
LAST_PREDICTIONS_S = Timeout(
    1800.0, "last_predictions", "the last predictions to be written", "WorkerError"
)
# Longer than for a file of gigabytes, or an import from a filesystem under load.
MODEL_FILE_S = Timeout(
    600.0,
    "model_file",
    "a library to read a tree model, in a separate process",
    "CheckpointError",
)
# The import of torch, from a cold parallel filesystem.
ACCELERATE_FILE_S = Timeout(300.0, "accelerate_file", "Accelerate to read its file", "ConfigError")
SERVED_MODEL_S = Timeout(3600.0, "served_model", "a model to be loaded by a server", "it ends")
REQUEST_HEADERS_S = Timeout(10.0, "request_headers", "the headers of a request", "it is closed")
REQUEST_BODY_S = Timeout(30.0, "request_body", "the body of a request", "it is answered with 408")
SERVER_END_S = Timeout(
    20.0, "server_end", "requests that are answered, when a server ends", "it ends"
)
MLFLOW_EXPERIMENT_S = Timeout(
    10.0,
    "mlflow_experiment",
    "another process that makes an experiment in the same file store of MLflow",
    "it is made without that lock",
)
WANDB_WRITE_S = Timeout(
    30.0, "wandb_write", "W&B to write the last report of an offline run", "it is logged"
)
HOROVOD_PROBE_S = Timeout(60.0, "horovod_probe", "checks of a compiler or MPI", "it is not used")
HOROVOD_INSTALL_S = Timeout(
    300.0, "horovod_install", "pip to install Horovod", "ConfigError with its log"
)
HOROVOD_CHECK_S = Timeout(180.0, "horovod_check", "a first sum of the new Horovod", "ConfigError")
HOROVOD_RENDEZVOUS_S = Timeout(
    60.0, "horovod_rendezvous", "the rendezvous to accept a message of a rank", "the rank ends"
)
HOROVOD_WORKER_END_S = Timeout(10.0, "horovod_worker_end", "a replaced worker to end", "SIGKILL")

TIMEOUTS: tuple[Timeout, ...] = tuple(v for v in globals().values() if isinstance(v, Timeout))
"""All rows with a fixed number of seconds."""
