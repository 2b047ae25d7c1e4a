"""``hpctrain logs``: the output of the ranks of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpctrain.cli.options import DEFAULT_STORAGE, RunArgument, StorageOption

if TYPE_CHECKING:
    from hpctrain.rundir.paths import RunPaths

_POLL_S = 0.5
_PIECE_BYTES = 64 * 1024
_MOST_BYTES = 16 * 2**20


RankOption = Annotated[int, typer.Option("--rank", "-r", min=0, help="Of which rank.")]
FollowOption = Annotated[
    bool, typer.Option("--follow", "-f", help="Continue until the run has ended.")
]
TailOption = Annotated[
    int | None,
    typer.Option("--tail", "-n", min=0, help="Begin with the last N lines.", metavar="N"),
]
AttemptOption = Annotated[
    int | None, typer.Option(min=1, help="Number of the attempt.", show_default="the last one")
]
LauncherLogOption = Annotated[
    bool, typer.Option("--launcher-log", help="The output of srun or mpiexec.")
]
JobLogOption = Annotated[
    bool, typer.Option("--job-log", help="The output of the batch job: its executor.")
]


def logs(
    run: RunArgument,
    storage: StorageOption = DEFAULT_STORAGE,
    rank: RankOption = 0,
    follow: FollowOption = False,
    tail: TailOption = None,
    attempt: AttemptOption = None,
    launcher_log: LauncherLogOption = False,
    job_log: JobLogOption = False,
) -> None:
    """Print the output of a rank, by default of rank 0."""
    from hpctrain.cli.stored_runs import find_run

    paths = find_run(run, storage)
    print_logs(
        paths,
        rank=rank,
        follow=follow,
        tail=tail,
        attempt=attempt,
        launcher_log=launcher_log,
        job_log=job_log,
    )


def print_logs(
    paths: RunPaths,
    *,
    rank: int,
    follow: bool,
    tail: int | None,
    attempt: int | None,
    launcher_log: bool,
    job_log: bool,
) -> None:
    """Print the output of a rank of a run; see `logs` for the arguments. Not collective.

    Raises
    ------
    ConfigError
        If there is none.
    """
    from hpctrain.errors import ConfigError

    def find_log() -> Path | None:
        return _find_log(paths, rank, attempt, launcher_log=launcher_log, job_log=job_log)

    if not follow:
        path = find_log()
        if path is None or not path.exists():
            raise ConfigError(_explain_missing(paths, path))
        if tail is None:
            _print_all(path)
        else:
            _print_lines(_read_last_lines(path, tail))
        return
    try:
        _follow(paths, find_log, tail)
    except BrokenPipeError:
        # `hpctrain logs -f RUN | head`: the reader has closed the pipe. Python would raise again
        # when it flushes at its end.
        import os

        os._exit(0)
    except KeyboardInterrupt:
        from hpctrain.cli.exit_codes import INTERRUPTED

        raise SystemExit(INTERRUPTED) from None


def _find_log(
    paths: RunPaths, rank: int, attempt: int | None, *, launcher_log: bool, job_log: bool
) -> Path | None:
    if job_log:
        found = sorted(paths.submission.glob("*.out"), key=lambda path: path.stat().st_mtime)
        return found[-1] if found else None
    if attempt is None:
        from hpctrain.rundir.status import read_status

        status = read_status(paths)
        if status is None or status.attempt == 0:
            return None
        attempt = status.attempt
    return paths.launcher_log(attempt) if launcher_log else paths.rank_log(attempt, rank)


def _explain_missing(paths: RunPaths, path: Path | None) -> str:
    from hpctrain.cli.run_view import view_run

    view = view_run(paths)
    if view.is_over and view.status.attempt == 0:
        return f"{paths.root} has no log, since no rank was started: {view.status.error}"
    there = sorted(str(p.relative_to(paths.root)) for p in paths.root.glob("logs/*/*.out"))
    shown = ", ".join(there[:8]) + (f" and {len(there) - 8} more" if len(there) > 8 else "")
    what = "has no such log yet" if path is None else f"has no {path.relative_to(paths.root)}"
    return (
        f"{paths.root} {what}. Available: {shown or 'no log'}. With RunConfig(log_to_file=False) "
        f"ranks print into the launcher's log: --launcher-log; what a job printed before its ranks "
        f"began: --job-log."
    )


def _print_all(path: Path) -> None:
    """Print a log, a part at a time, however large it is."""
    import io

    from hpctrain.printable import show_controls
    from hpctrain.regular_file import open_regular

    piece = "\n"
    with (
        open_regular(path) as file,
        io.TextIOWrapper(io.BufferedReader(file), encoding="utf-8", errors="replace") as text,
    ):
        while more := text.readline(_PIECE_BYTES):
            piece = more
            print(show_controls(piece, keep_colours=True), end="")
    if not piece.endswith("\n"):
        print()


def _read_last_lines(path: Path, number: int) -> list[str]:
    """Return the last lines of a log, reading not much more than them."""
    from hpctrain.rundir.reading import read_end

    num_bytes = _PIECE_BYTES
    while True:
        end = read_end(path, num_bytes)
        lines = end.decode(errors="replace").splitlines()
        # The first one may be incomplete.
        if len(lines) > number or len(end) < num_bytes or num_bytes >= _MOST_BYTES:
            return lines[max(0, len(lines) - number) :]
        num_bytes *= 4


def _print_lines(lines: list[str], tail: int | None = None) -> None:
    from hpctrain.printable import show_controls

    for line in lines if tail is None else lines[max(0, len(lines) - tail) :]:
        print(show_controls(line, keep_colours=True))


def _follow(paths: RunPaths, find_log: Callable[[], Path | None], tail: int | None) -> None:
    import time

    from hpctrain.cli.run_view import view_run
    from hpctrain.errors import ConfigError
    from hpctrain.launch.liveness import Liveness
    from hpctrain.launch.tail import Tail
    from hpctrain.rundir.status import read_status

    log: Tail | None = None
    is_over = view_run(paths).is_over
    liveness = Liveness(paths)
    while True:
        status = read_status(paths)
        is_over = is_over or (status is not None and status.state.is_final)
        path = find_log()
        if path is not None and (log is None or log.path != path):
            if log is not None:
                _print_lines(log.read(final=True))
            log = Tail(path, last_bytes=None if tail is None else _MOST_BYTES)
            _print_lines(log.read(final=is_over), tail)
        elif log is not None:
            _print_lines(log.read(final=is_over))
        print(end="", flush=True)
        if is_over and log is None:
            raise ConfigError(_explain_missing(paths, path))
        if is_over:
            return
        if status is not None:
            liveness.check(status)
        time.sleep(_POLL_S)
