"""``hpctrain doctor``: what would keep a run from starting, before anything is queued."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpctrain.cli.options import DEFAULT_STORAGE, JsonOption, StorageOption
from hpctrain.cli.slurm_options import SlurmFields, slurm_fields, with_slurm_options
from hpctrain.errors import ConfigError, HpctrainError, LaunchError

if TYPE_CHECKING:
    from hpctrain.doctor.finding import Finding
    from hpctrain.launch.request import Submission

_KEY_WIDTH = 9
_CHECK_WIDTH = 15


@with_slurm_options()
def doctor(
    *,
    script: Annotated[
        Path | None,
        typer.Argument(
            metavar="[SCRIPT]",
            help="The script that calls fit(): its request is checked. Without one, a run of "
            "--workers.",
        ),
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]", help="Its own arguments.")
    ] = None,
    slurm: SlurmFields,
    site: Annotated[str, typer.Option(help="A site profile, or a .toml file.")] = "",
    workers: Annotated[int, typer.Option(min=1, help="Without a script: workers of the run.")] = 2,
    gpus: Annotated[int, typer.Option(min=0, help="Without a script: GPUs of a worker.")] = 0,
    storage: StorageOption = DEFAULT_STORAGE,
    probe: Annotated[
        bool, typer.Option(help="Look at the nodes too, in a short job of two of them.")
    ] = True,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds that this job may wait in the queue.")
    ] = 300.0,
    json: JsonOption = False,
) -> None:
    """Find what would keep a run from starting, before anything is queued.

    SCRIPT runs up to its fit(), which launches nothing. Exits with 3 if it would never start, or
    fail at once, and with 4 if Slurm does not answer.
    """
    from hpctrain import environ
    from hpctrain.cli.exit_codes import FAILED, NEVER_STARTS, say
    from hpctrain.doctor.finding import Finding, Level, has_error

    fields = {**slurm, **slurm_fields(site=site)}
    environ.request_slurm_overrides(fields)
    try:
        submission = (
            prepare_workers(workers, gpus, storage)
            if script is None
            else _of_script(script, args or [])
        )
        found = _examine(submission, fields, with_probe=probe, patience_s=patience)
    except LaunchError as error:
        say(str(error))
        raise typer.Exit(FAILED) from None
    except ConfigError as error:
        found = [Finding(check="request", level=Level.ERROR, what=str(error))]
    if json:
        from hpctrain.cli.json_output import print_json

        print_json(to_json(found))
    else:
        from hpctrain.cli.terminal import width_of_output

        print(render(found, width=width_of_output()))
    if has_error(found):
        raise typer.Exit(NEVER_STARTS)


def _examine(
    submission: Submission, given: SlurmFields, *, with_probe: bool, patience_s: float
) -> list[Finding]:
    from hpctrain.cli.exit_codes import say
    from hpctrain.doctor.finding import error
    from hpctrain.launch.examine import examine

    with ended_by_signals():
        found = examine(submission, with_probe=with_probe, patience_s=patience_s, say=say)
    if given and submission.plan.launcher != "slurm":
        found.append(
            error(
                "Slurm",
                f"{', '.join(sorted(given))} given, but no job would be submitted here",
                why="the run would start on this machine",
                step="Load Slurm's module, and leave an allocation first",
            )
        )
    return found


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Have SIGTERM and a lost terminal cancel the probe, as Ctrl-C does. Not collective."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except KeyboardInterrupt:
        from hpctrain.cli.exit_codes import say

        say("stopped; the job of the probe is cancelled.")
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def render(findings: Sequence[Finding], *, width: int | None) -> str:
    """Return the findings as text: the worst last, where a person looks first. Pure.

    Parameters
    ----------
    width
        Columns of the terminal; None for a program.
    """
    from hpctrain.cli.terminal import wrap
    from hpctrain.doctor.finding import Level
    from hpctrain.printable import show_controls
    from hpctrain.rundir.display import counted

    order = list(Level)
    lines = []
    for finding in sorted(findings, key=lambda finding: order.index(finding.level)):
        key = f"{finding.level.value:<{_KEY_WIDTH}}{finding.check:<{_CHECK_WIDTH}}"
        lines += wrap(key, finding.what, width)
        for name, text in (("why", finding.why), ("do", finding.step)):
            if text:
                lines += wrap(f"{'':<{_KEY_WIDTH}}{name:<{_CHECK_WIDTH}}", text, width)
    counts = Counter(finding.level for finding in findings)
    summary = (
        f"{counted(counts[Level.ERROR], 'error')}, {counted(counts[Level.WARNING], 'warning')}, "
        f"{counts[Level.OK]} fine, {counts[Level.NOTE]} noted"
    )
    return show_controls("\n".join([*lines, summary]))


def to_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the object that ``--json`` prints."""
    from hpctrain.doctor.finding import has_error

    return {
        "starts": not has_error(findings),
        "findings": [_finding_to_json(finding) for finding in findings],
    }


def _finding_to_json(finding: Finding) -> Mapping[str, Any]:
    ranks = {"ranks": list(finding.ranks)} if finding.ranks else {}
    return {
        "check": finding.check,
        "level": finding.level.value,
        "what": finding.what,
        "why": finding.why,
        "next": finding.step,
        **ranks,
    }


def _of_script(script: Path, args: Sequence[str]) -> Submission:
    """Return the run that a script would begin."""
    from hpctrain.cli.json_output import stdout_on_stderr
    from hpctrain.cli.script import run_script
    from hpctrain.launch import inspection

    found: list[Submission] = []
    inspection.request(found.append)
    how = "has ended without a call of fit() or submit()"
    try:
        with stdout_on_stderr():
            run_script(script, args, shows_error=False)
    except SystemExit as ended:
        how = f"called sys.exit({ended.code}) before its fit()"
    except HpctrainError:
        raise
    except Exception as error:
        # It is the user's.
        raise ConfigError(
            f"{script} failed before its fit(): {type(error).__name__}: {error}. 'python {script}' "
            f"shows where."
        ) from error
    if not found:
        raise ConfigError(f"{script} {how}.")
    return found[0]


def prepare_workers(workers: int, gpus: int, storage: Path) -> Submission:
    """Return a run that does nothing, as it would be launched. Not collective."""
    from hpctrain.config import RunConfig, ScalingConfig
    from hpctrain.launch.fit import prepare
    from hpctrain.launch.request import choose_launcher
    from hpctrain.trainer import DataParallelTrainer

    scaling = ScalingConfig(
        num_workers=workers,
        use_gpu=gpus > 0,
        resources_per_worker={"GPU": gpus} if gpus else {},
    )
    trainer = DataParallelTrainer(
        _nothing,
        scaling_config=scaling,
        run_config=RunConfig(name="doctor", storage_path=str(storage)),
    )
    request = trainer._request()
    return prepare(request, choose_launcher(scaling, request.run_config))


def _nothing() -> None:
    """Stands for a training function."""
