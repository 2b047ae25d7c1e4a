"""Where what ranks print goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain import WorkerError
from tests.runs import fit

pytestmark = pytest.mark.mpi


def say_and_die() -> None:
    import os
    import sys

    import hpctrain
    import hpctrain.collective

    rank = hpctrain.get_context().get_world_rank()
    print(f"rank {rank} prints")
    print(f"rank {rank} complains", file=sys.stderr)
    hpctrain.collective.barrier()
    if rank == 1:
        os._exit(7)
    hpctrain.collective.barrier(timeout_s=600)


@pytest.mark.parametrize("log_to_file", [True, False])
def test_what_a_rank_printed_before_it_died_is_where_the_error_says(
    tmp_path: Path, log_to_file: bool
) -> None:
    with pytest.raises(WorkerError, match="rank 1 of 2") as caught:
        fit(say_and_die, tmp_path, log_to_file=log_to_file)
    logs = tmp_path / "run/logs/1"
    names = [f"rank-0000{r}.out" if log_to_file else "launcher.out" for r in (0, 1)]
    assert f"Log: {logs / names[1]} " in str(caught.value)
    for rank in (0, 1):
        said = (logs / names[rank]).read_text()
        # In one file, what another rank prints may come before the end of the line.
        assert f"rank {rank} prints" in said
        assert f"rank {rank} complains" in said
    written = {path.name for path in logs.iterdir()}
    assert written == ({"launcher.out", *names} if log_to_file else {"launcher.out"})
