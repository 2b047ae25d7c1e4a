"""An import that fails on every node ends the run at once, and says what to type."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpctrain import (
    FailureConfig,
    Result,
    WorkerError,
)
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from tests.runs import fit

pytestmark = pytest.mark.mpi
RESTARTS = FailureConfig(max_failures=3)


def import_what_nobody_has() -> None:
    import no_such_module  # noqa: F401


def import_what_an_extra_brings() -> None:
    import h5py.no_such_part  # noqa: F401


def import_a_name_that_is_not_there() -> None:
    from json import no_such_name  # noqa: F401


def explain_an_import_as_backends_do() -> None:
    try:
        import no_such_module  # noqa: F401
    except ImportError as error:
        raise ValueError("this needs a module") from error


@pytest.mark.parametrize(
    ("train", "said", "to_type"),
    [
        (import_what_nobody_has, "No module named 'no_such_module'", "pip install no_such_module"),
        (import_what_an_extra_brings, "'h5py.no_such_part'", "pip install 'hpctrain[data]'"),
        (import_a_name_that_is_not_there, "cannot import name 'no_such_name'", "pip check"),
        (explain_an_import_as_backends_do, "needs a module", "pip install no_such_module"),
    ],
)
def test_a_failed_import_uses_no_restart_and_says_what_to_type(
    tmp_path: Path, train: Callable[[], None], said: str, to_type: str
) -> None:
    with pytest.raises(WorkerError) as caught:
        fit(train, tmp_path, failure_config=RESTARTS)
    message = str(caught.value)
    assert said in message.splitlines()[0]
    assert f"{sys.executable} -m {to_type}" in message
    assert caught.value.lasting
    assert len(Result.from_path(tmp_path / "run").attempts) == 1
    (gave_up,) = [e for e in read_events(RunPaths(tmp_path / "run")) if e["event"] == "gave-up"]
    assert "an import failed" in gave_up["reason"]


def fail_once(break_import: str) -> Callable[[], int]:
    def train() -> int:
        import sys

        import hpctrain

        context = hpctrain.get_context()
        if context.world.attempt == 1 and context.get_world_rank() == 1:
            if break_import == "module":
                # As if this rank's node did not see the folder that it is in.
                sys.modules["colorsys"] = None  # type: ignore[assignment]
            else:
                raise ImportError("libcuda.so.1: cannot open shared object file: No such file")
        import colorsys  # noqa: F401

        return context.world.attempt

    return train


@pytest.mark.parametrize("break_import", ["module", "shared library"])
def test_an_import_that_fails_on_one_rank_only_is_tried_again(
    tmp_path: Path, break_import: str
) -> None:
    result = fit(fail_once(break_import), tmp_path, failure_config=RESTARTS)
    assert result.return_value == 2
    assert len(result.attempts) == 2
