"""Everything that would keep a run from starting, found before it is submitted."""

from __future__ import annotations

import json
import re
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpctrain.doctor.binding import check_binding
from hpctrain.doctor.compare import check_login, check_machines, check_shared, check_worlds
from hpctrain.doctor.finding import Finding, error, has_error, ok, remark
from hpctrain.doctor.machine import describe_machine
from hpctrain.doctor.pack import check_pack, check_places
from hpctrain.doctor.probe import ProbeSettings, probe
from hpctrain.errors import LaunchError
from hpctrain.launch.precheck import asks_of, check_asks
from hpctrain.launch.request import Submission
from hpctrain.log import log
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.plan.visibility import EXIT_INVISIBLE
from hpctrain.rundir.display import counted
from hpctrain.slurm.job import cancel_jobs
from hpctrain.slurm.probe_job import submit_probe
from hpctrain.slurm.waiting import Verdict
from hpctrain.slurm.why import Explanation, explain_job
from hpctrain.slurm_config import time_limit_minutes

# Two nodes show what can differ between nodes.
_MOST_NODES = 2
_POLL_S = 1.0
_QUESTION_S = 10.0
_MINUTES = 5
# What sbatch says of a minimum of nodes of a partition or a QOS, and of a list of more nodes.
_OF_SIZE = r"(?i)node count|number of nodes|policy"
_FRAMEWORKS = {
    "torch": "torch",
    "lightning": "lightning",
    "huggingface": "transformers",
    "horovod": "horovod.torch",
    "jax": "jax",
    "tensorflow": "tensorflow",
    "xgboost": "xgboost",
    "lightgbm": "lightgbm",
}


def examine(
    submission: Submission,
    *,
    with_probe: bool,
    patience_s: float,
    say: Callable[[str], None],
) -> list[Finding]:
    """Return what would keep a run from starting, and what would slow it down.

    Not collective. Nothing of the run itself is written.

    Parameters
    ----------
    submission
        The run, as it would be launched.
    with_probe
        Whether a short job looks at the nodes; it is submitted with the options of the run.
    patience_s
        Seconds that the job may wait in the queue.
    say
        Is given what is waited for.
    """
    plan = submission.plan
    in_slurm = plan.launcher in ("slurm", "allocation")
    storage = submission.request.paths.root.parent
    findings: list[Finding] = []
    if not in_slurm:
        where = "this machine alone was checked"
        findings.append(remark("Slurm", f"ranks start by {plan.launcher!r} here: {where}"))
    if plan.launcher == "slurm":
        findings += check_asks(asks_of(submission.request, submission.plan))
    try:
        storage.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        return [
            *findings,
            error(
                "storage",
                f"{storage} cannot be made: {problem.strerror}",
                why="checkpoints and the results land there",
                step="Choose another RunConfig(storage_path=...)",
            ),
        ]
    modules = _modules(submission)
    token = storage / f".doctor-login-{secrets.token_hex(4)}"
    try:
        login = describe_machine(storage, () if with_probe or in_slurm else modules)
        findings.append(check_login(login))
        if plan.environment_pack is not None:
            findings.append(check_pack(plan.environment_pack))
        if not with_probe:
            return [
                *findings,
                *(check_shared(login) if in_slurm else check_machines([login], login=None)),
                remark("nodes", "no probe was made: --no-probe"),
            ]
        if has_error(findings):
            return [*findings, remark("nodes", "no probe job: it would not start either")]
        token.write_bytes(b"1")
        login["storage"]["token"] = token.name
        settings = probe_settings(submission, modules)
        say("probing the nodes")
        answer = probe_nodes(submission, settings, patience_s=patience_s, say=say)
        if isinstance(answer, Finding):
            return [*findings, answer]
        findings += _check_answer(answer, settings, login if in_slurm else None)
        return [*findings, *_check_places(submission, answer)]
    finally:
        with suppress(OSError):
            token.unlink(missing_ok=True)


def _modules(submission: Submission) -> tuple[str, ...]:
    spec = submission.request.worker_spec
    # A configuration of the user's own is in any module.
    package = type(spec.backend_config).__module__.removeprefix("hpctrain.").partition(".")[0]
    framework = _FRAMEWORKS.get(package)
    return ("mpi4py.MPI", "cloudpickle", *([framework] if framework else []))


def probe_settings(submission: Submission, modules: tuple[str, ...]) -> ProbeSettings:
    """Return what is probed of the nodes of a run; ranks import `modules`. Not collective."""
    plan = submission.plan
    return ProbeSettings(
        storage=str(submission.request.paths.root.parent),
        # The executor and the agents stay outside of a container.
        modules=modules if plan.container is None else ("cloudpickle",),
        mpi=plan.mpi,
        srun_args=plan.srun_args,
        tasks_per_node=plan.placement.tasks_per_node[:_MOST_NODES],
        cpus_per_task=plan.placement.cpus_per_task,
        gpus_per_task=plan.placement.gpus_per_task,
        in_allocation=plan.launcher in ("slurm", "allocation"),
        container=plan.container,
        container_modules=() if plan.container is None else modules,
        pack="" if plan.environment_pack is None else plan.environment_pack.path,
        pack_dir="" if plan.environment_pack is None else plan.environment_pack.directory,
    )


def probe_nodes(
    submission: Submission,
    settings: ProbeSettings,
    *,
    patience_s: float,
    say: Callable[[str], None],
) -> dict[str, Any] | Finding:
    """Return what nodes answer, in a job where the run would be one, or why they do not.

    Not collective.

    Parameters
    ----------
    submission
        The run; the job has its options.
    settings
        What is probed. The job lies in the directory of runs, which must be there.
    patience_s
        Seconds that the job may wait in the queue.
    say
        Is given what is waited for.
    """
    if submission.plan.launcher != "slurm":
        return probe(settings)
    folder = Path(settings.storage) / f".doctor-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o700)
    num_nodes = len(settings.tasks_per_node)
    try:
        submitted_at = time.time()
        settings.write(folder / "settings.json")
        answer = folder / "answer.json"
        words = ["hpctrain.doctor.probe", str(folder / "settings.json"), str(answer)]
        job_id = submit_probe(
            folder,
            probe_directives(submission.plan, num_nodes, output=str(folder / "log")),
            setup=submission.plan.setup,
            command=shlex.join([sys.executable, "-m", *words]),
            cwd=submission.spec.settings.cwd,
            environment=submission.plan.environment,
            scaling=submission.request.scaling_config,
        )
        say(f"job {job_id} looks at {num_nodes} of the nodes")
        found = _await_answer(job_id, answer, folder / "log", patience_s=patience_s)
        return found if isinstance(found, Finding) else {**found, "submitted_at": submitted_at}
    except LaunchError as refused:
        if refused.transient:
            return remark("nodes", f"{refused} The nodes were not probed")
        return explain_refused(str(refused), submission.plan, num_nodes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def probe_directives(plan: LaunchPlan, num_nodes: int, *, output: str) -> dict[str, str | None]:
    """Return the sbatch options of the job that looks at some nodes of a run. Not collective."""
    directives = {
        **plan.directives,
        "job-name": "hpctrain-doctor",
        "nodes": str(num_nodes),
        "time": _probe_time(plan),
        "output": output,
    }
    if (gpus := directives.get("gpus")) is not None:
        # Those of each node stand beside the total, if there are several nodes.
        directives.setdefault("gpus-per-node", gpus)
    # Of all nodes of the run, and of all its time.
    for name in ("no-kill", "gpus", "time-min"):
        directives.pop(name, None)
    return directives


def explain_refused(refused: str, plan: LaunchPlan, num_nodes: int) -> Finding:
    """Return what a refusal of the job that looks at nodes means for the run. Not collective.

    Parameters
    ----------
    refused
        What sbatch says.
    plan
        That of the run.
    num_nodes
        Nodes of the job.
    """
    if num_nodes < plan.job_nodes.fewest and re.search(_OF_SIZE, refused):
        return remark(
            "nodes",
            f"a job of {counted(num_nodes, 'node')} that looks at them is refused, and the run has "
            f"{plan.job_nodes.fewest}: {refused} The nodes were not probed",
        )
    return error("job", refused, why="the run would be refused as well")


def _probe_time(plan: LaunchPlan) -> str:
    """Return the time limit of the job: minutes, and no more than that of the run."""
    asked = plan.directives.get("time") or ""
    minutes = time_limit_minutes(asked) if asked[:1].isdigit() else _MINUTES
    return str(max(1, min(_MINUTES, int(minutes))))


def _await_answer(
    job_id: str, answer: Path, log_file: Path, *, patience_s: float
) -> dict[str, Any] | Finding:
    begin = time.monotonic()
    next_question = begin + min(patience_s, _QUESTION_S)
    waiting_s = patience_s + 60 * _MINUTES
    try:
        while time.monotonic() - begin < waiting_s:
            # A listing makes NFS ask its server anew.
            if answer.name in {path.name for path in answer.parent.iterdir()}:
                found: dict[str, Any] = json.loads(answer.read_bytes())
                found["seen_at"] = time.time()
                return found
            if time.monotonic() > next_question:
                next_question = time.monotonic() + _QUESTION_S
                try:
                    why = explain_job(job_id, is_run=True, cancel=f"scancel {job_id}")
                except LaunchError:
                    # The controller is away; the job goes on without it.
                    continue
                is_late = time.monotonic() - begin >= patience_s
                if why.verdict is Verdict.ENDED:
                    return _explain_silence(why, log_file)
                if why.job.is_pending and (is_late or why.verdict is Verdict.NEVER):
                    # Of this job, and not of the run: another size, another time.
                    what = "; ".join([why.meaning, *why.details])
                    return remark("nodes", f"job {job_id} waits: {what}. The nodes were not probed")
            time.sleep(_POLL_S)
    finally:
        _cancel(job_id)
    return remark(
        "nodes",
        f"job {job_id} gave no answer within {waiting_s:.0f} s. --patience sets how long of that "
        f"it may wait in the queue",
    )


def _explain_silence(why: Explanation, log_file: Path) -> Finding:
    """Return why the job ended without an answer."""
    if why.job.state == "TIMEOUT":
        return remark("nodes", f"job {why.job.job_id} did not end within its minutes")
    said = log_file.read_text(errors="replace").splitlines()[-5:] if log_file.exists() else []
    status, _, number = why.job.exit_code.partition(":")
    if not said or int(status or 0) == EXIT_INVISIBLE or number == "53":
        return error(
            "storage",
            f"nodes do not see {log_file.parent.parent}: "
            f"{' '.join(said) or f'job {why.job.job_id} could not even write its log'}",
            why="checkpoints and the results land there",
            step="Choose a RunConfig(storage_path=...) on a filesystem that all nodes see, and "
            "start from a directory there",
        )
    return error(
        "job",
        f"job {why.job.job_id} ended without an answer ({why.job.state}, {why.job.exit_code}): "
        + "\n".join(said),
        why="the run would end in the same way",
        step=why.step,
    )


def _cancel(job_id: str) -> None:
    try:
        cancel_jobs([job_id])
    except LaunchError as error:
        log(f"job {job_id} of the doctor is left: {error} Cancel it: scancel {job_id}")


def clock_ahead_s(answer: Mapping[str, float]) -> float:
    """Return by how many seconds at least the clock there is ahead of the one here.

    Not collective. Less than 0 is behind.

    Parameters
    ----------
    answer
        When the job was submitted, and its answer read, by the clock here; and when it began, and
        wrote its answer, by the clock there.
    """
    # What was read before it was written, or began before it was submitted.
    ahead = max(answer["time"] - answer["seen_at"], 0.0)
    return ahead + min(answer["began_at"] - answer["submitted_at"], 0.0)


def _check_places(submission: Submission, answer: dict[str, Any]) -> list[Finding]:
    pack = submission.plan.environment_pack
    if pack is None or "place" not in answer:
        return []
    if not answer["place"]:
        step = "SlurmConfig(environment_pack_dir=...), with variables that each job has"
        return [error("pack", answer["no_place"], why="no node would unpack it", step=step)]
    wanted = len(submission.plan.placement.tasks_per_node[:_MOST_NODES])
    return check_places(pack, answer["place"], answer["places"], wanted=wanted)


def _check_answer(
    answer: dict[str, Any], settings: ProbeSettings, login: dict[str, Any] | None
) -> list[Finding]:
    machines = answer["machines"]
    expected = len(settings.tasks_per_node) if settings.in_allocation else 1
    if len(machines) < expected:
        hosts = ", ".join(machine["host"] for machine in machines)
        return [
            error(
                "nodes",
                f"{len(machines)} of {expected} nodes answered{f': {hosts}' if hosts else ''}",
                why="ranks would not start on the others either",
                step="Run it again; 'sinfo -N' shows the state of the others",
            )
        ]
    if login is not None and "seen_at" in answer:
        for machine in machines:
            if machine["skew_s"] is not None:
                machine["skew_s"] += clock_ahead_s(answer)
    hardware = {machine["host"]: machine["hardware"] for machine in machines}
    findings = check_machines(machines, login=login)
    if answer["no_launcher"]:
        findings.append(error("MPI", answer["no_launcher"], why="no rank can start"))
    if settings.container is not None:
        image, runtime = settings.container.image, settings.container.runtime
        why = "ranks run in it, and none would start"
        findings.append(
            error("container", answer["no_container"], why=why)
            if answer["no_container"]
            else ok("container", f"{image} starts with {runtime}, and has what ranks import")
        )
    findings += check_worlds(answer["worlds"], chosen=answer["chosen"])
    if settings.in_allocation:
        findings += check_binding(
            answer["ranks"],
            hardware,
            threads=settings.cpus_per_task,
            gpus_per_worker=settings.gpus_per_task,
        )
    return findings
