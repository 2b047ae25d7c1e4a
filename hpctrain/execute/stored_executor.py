"""The executor of a run, as it was written into ``spec.pkl``."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from traceback import extract_tb
from typing import TYPE_CHECKING

from hpctrain import environ
from hpctrain.execute.executor import Executor
from hpctrain.execute.fork_server import fork_server_for
from hpctrain.execute.run_end import describe_run_end
from hpctrain.plan import spec
from hpctrain.plan.spec import RunSpec
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.run_record import RunRecord
from hpctrain.rundir.status import read_status
from hpctrain.rundir.trust import check_run_directory, digest_spec, read_spec

if TYPE_CHECKING:
    from hpctrain.execute.first_steps import FirstSteps


def stored_executor(paths: RunPaths, spec_digest: str, *, fork_server: str = "") -> Executor:
    """Return the executor of a run.

    Not collective. This unpickles what the user's process has pickled.

    Parameters
    ----------
    spec_digest
        That of what was submitted.
    fork_server
        Name of one that another process has started, or the tickets of the steps of a slot, each of
        which has one; empty without either.

    Raises
    ------
    ConfigError, DamagedFileError
        If another user could have written it, or has.
    """
    check_run_directory(paths.root)
    content = read_spec(paths, digest=spec_digest)
    return open_executor(paths, content, RunSpec.from_bytes(content), fork_server=fork_server)


def open_executor(
    paths: RunPaths,
    content: bytes,
    run_spec: RunSpec,
    *,
    fork_server: str = "",
    first_steps: FirstSteps | None = None,
    signals: list[str] | None = None,
) -> Executor:
    """Return the executor of a run whose ``spec.pkl`` was read, and is this user's.

    Not collective. This unpickles the executor's part.

    Parameters
    ----------
    content
        Of the file.
    run_spec
        What it holds.
    fork_server
        As of `stored_executor`.
    first_steps, signals
        As of `Executor`.

    Raises
    ------
    Exception
        Whatever the import of a callback's module raises, for one. It is the end of the run, and
        written down here: there is no executor that could.
    """
    try:
        return _open(
            paths,
            content,
            run_spec,
            fork_server=fork_server,
            first_steps=first_steps,
            signals=signals,
        )
    except Exception as error:
        with suppress(OSError):
            _record_failure(paths, error)
        raise


def _open(
    paths: RunPaths,
    content: bytes,
    run_spec: RunSpec,
    *,
    fork_server: str,
    first_steps: FirstSteps | None,
    signals: list[str] | None,
) -> Executor:
    # Callbacks may be of modules beside the script.
    sys.path[:] = list(dict.fromkeys((*run_spec.settings.sys_path, *sys.path)))
    if run_spec.sources:
        from hpctrain.worker.pinned import pin_sources

        pin_sources(run_spec.sources)
    run_config, plan, resume_from = spec.unpack(run_spec.executor)
    slot = None
    if plan.is_slice and fork_server:
        from hpctrain.execute.slot_nodes import SlotNodes

        slot = SlotNodes(fork_server, run_spec.settings, nodes=plan.placement.nodes)
    # Those of ranks that have started already have why they were not forked.
    forks = None if first_steps is None else first_steps.forks
    return Executor(
        paths=paths,
        plan=plan,
        run_config=run_config,
        spec_digest=digest_spec(content),
        resume_from=resume_from,
        fork_server=forks or fork_server_for(plan, run_spec.settings, offered=fork_server),
        first_steps=first_steps,
        slot=slot,
        signals=signals,
    )


def _record_failure(paths: RunPaths, error: Exception) -> None:
    """Write that the run has failed, if no other process runs it."""
    status = read_status(paths)
    if status is None or status.state.is_final:
        return
    is_owner = (status.owner_host, status.owner_pid) == (socket.gethostname(), os.getpid())
    if not (is_owner or status.job_id in (None, environ.variable("SLURM_JOB_ID"))):
        return
    event, message = describe_run_end(error)
    last = extract_tb(error.__traceback__)[-1]
    text = (
        f"the run cannot be begun from what was submitted (RunConfig, with its callbacks): "
        f"{message}\n  at {last.filename}:{last.lineno}"
    )
    record = RunRecord(paths)
    record.append("run-ended", state=event.value, error=text)
    # The last one: who waits for the end of the run finds all of it.
    record.write(status.after(event, error=text, error_type=type(error).__name__))
