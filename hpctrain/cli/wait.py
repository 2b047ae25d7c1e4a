"""``hpctrain wait``: for scripts that go on when a run is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hpctrain.cli.options import DEFAULT_STORAGE, JsonOption, RunArgument, StorageOption

if TYPE_CHECKING:
    from hpctrain.rundir.paths import RunPaths


def wait(
    run: RunArgument,
    storage: StorageOption = DEFAULT_STORAGE,
    timeout: Annotated[
        float,
        typer.Option(min=0, help="Seconds to wait at most.", show_default="without end"),
    ] = float("inf"),
    json: JsonOption = False,
) -> None:
    """Wait until a run is over, and end as it ended.

    0 it finished, 4 it failed, 5 it was stopped; 124 it goes on after --timeout.
    """
    from hpctrain.cli.exit_codes import TIMED_OUT, exit_code, say
    from hpctrain.cli.json_output import print_json
    from hpctrain.cli.run_view import find_run, view_run
    from hpctrain.errors import HpctrainError
    from hpctrain.result import Result

    paths = find_run(run, storage)
    error: Exception | None = None
    try:
        is_over = _wait_for_end(paths, timeout)
        error = Result.from_path(paths.root).error if is_over else None
    except HpctrainError as raised:
        is_over, error = True, raised
    code = exit_code(error) if is_over else TIMED_OUT
    if json:
        print_json({**view_run(paths).to_json(), "exit_code": code})
    if not is_over:
        say(f"{paths.root.name} is not over after {timeout:g} s.")
    elif error is not None:
        say(str(error))
    raise SystemExit(code)


def _wait_for_end(paths: RunPaths, timeout_s: float) -> bool:
    """Return whether the run has ended within so many seconds."""
    import time

    from hpctrain.launch.liveness import Liveness
    from hpctrain.launch.pace import Pace
    from hpctrain.rundir.status import read_status

    deadline = time.monotonic() + timeout_s
    liveness, pace = Liveness(paths), Pace()
    while True:
        status = read_status(paths)
        if status is not None:
            if status.state.is_final:
                return True
            liveness.check(status)
        else:
            liveness.check_directory()
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return False
        time.sleep(min(pace.next_interval(status), remaining))
