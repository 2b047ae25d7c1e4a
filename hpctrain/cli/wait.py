"""``hpctrain wait``: for scripts that wait until a run has ended."""

from __future__ import annotations

from typing import Annotated

import typer

from hpctrain.cli.options import DEFAULT_STORAGE, JsonOption, RunArgument, StorageOption


def wait(
    run: RunArgument,
    storage: StorageOption = DEFAULT_STORAGE,
    timeout: Annotated[
        float,
        typer.Option(min=0, help="Seconds to wait at most.", show_default="without end"),
    ] = float("inf"),
    json: JsonOption = False,
) -> None:
    """Wait until a run has ended, and return its exit code.

    0 it finished, 4 it failed, 5 it was stopped; 124 it still runs after --timeout.
    """
    from hpctrain.cli.exit_codes import TIMED_OUT, exit_code, say
    from hpctrain.cli.json_output import print_json
    from hpctrain.cli.run_view import view_run
    from hpctrain.cli.stored_runs import find_run
    from hpctrain.launch.ending import EndWatch, await_ends
    from hpctrain.result import Result

    paths = find_run(run, storage)
    watch = EndWatch(paths)
    is_over = bool(await_ends([watch], num_returns=1, timeout_s=timeout))
    error: Exception | None = watch.error
    if is_over and error is None:
        error = Result.from_path(paths.root).error
    code = exit_code(error) if is_over else TIMED_OUT
    if json:
        print_json({**view_run(paths).to_json(), "exit_code": code})
    if not is_over:
        say(f"{paths.root.name} is not over after {timeout:g} s.")
    elif error is not None:
        say(str(error))
    raise SystemExit(code)
