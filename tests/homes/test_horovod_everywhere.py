"""Horovod's example gives the same losses on a laptop and on two nodes of Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain import Result
from hpctrain.testing.slurm import VirtualCluster
from tests.processes import run_python
from tests.runs import reported

pytest.importorskip("horovod", reason="hpctrain install horovod")

EXAMPLE = Path(__file__).parents[2] / "examples" / "horovod_digits.py"
TIMEOUT_S = 180


def losses(storage: Path, name: str, environ: dict[str, str], *options: str) -> list[float]:
    argv = (EXAMPLE, "--epochs=2", f"--storage={storage}", f"--name={name}", *options)
    run_python(*argv, environ=environ, timeout_s=TIMEOUT_S)
    return [metrics["loss"] for metrics in reported(storage / name)]


@pytest.mark.slurm
def test_four_ranks_on_two_nodes_have_the_losses_of_a_laptop(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    cluster = {**virtual_slurm.environ, "HPCTRAIN_LAUNCHER": ""}
    on_laptop = losses(tmp_path, "laptop", {"HPCTRAIN_LAUNCHER": "local"})
    assert losses(tmp_path, "job", cluster, "--nodes=2") == on_laptop
    # Gloo adds in another order than MPI.
    over_gloo = losses(tmp_path, "gloo", cluster, "--nodes=2", "--transport=gloo")
    assert over_gloo == pytest.approx(on_laptop, rel=1e-6)
    for name in ("job", "gloo"):
        result = Result.from_path(tmp_path / name)
        assert (result.status.world_size, len(result.nodes), len(result.job_ids)) == (4, 2, 1)
