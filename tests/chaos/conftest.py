"""One undisturbed run of each model and home, which all cases are compared with."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpctrain.testing.chaos.experiment import Comparison, Experiment
from hpctrain.testing.chaos.fault import Fault
from hpctrain.testing.chaos.kinds import KINDS
from hpctrain.testing.chaos.trial import Script
from hpctrain.testing.slurm import VirtualCluster

HERE = Path(__file__).parent
SEED = int(os.environ.get("HPCTRAIN_CHAOS_SEED") or random.SystemRandom().randrange(10**6))
# Longer than a node takes to be given up, and to come back, on a busy machine.
TIMEOUT_S = 150.0
Begin = Callable[..., Experiment]


@pytest.fixture(scope="session")
def begin(tmp_path_factory: pytest.TempPathFactory) -> Begin:
    def begin(
        *args: str, model: str = "numpy_model.py", cluster: VirtualCluster | None = None
    ) -> Experiment:
        folder = tmp_path_factory.mktemp("experiment")
        script = Script(path=HERE / model, args=args, cwd=folder)
        return Experiment.begin(folder, script=script, cluster=cluster, timeout_s=TIMEOUT_S)

    return begin


@pytest.fixture(scope="session")
def local(begin: Begin) -> Experiment:
    """Three ranks of the NumPy model, on this machine."""
    return begin("--workers=3")


@pytest.fixture(scope="session")
def on_cluster(begin: Begin, virtual_slurm: VirtualCluster) -> Experiment:
    """Three ranks of the NumPy model, on three nodes."""
    return begin("--workers=3", "--nodes=3", cluster=virtual_slurm)


@pytest.fixture(scope="session")
def on_one_node(begin: Begin, virtual_slurm: VirtualCluster) -> Experiment:
    """Three ranks of the NumPy model, on one node, where they share memory."""
    return begin("--workers=3", "--nodes=1", cluster=virtual_slurm)


@pytest.fixture(scope="session")
def watched(begin: Begin) -> Experiment:
    """Three ranks of the NumPy model, on this machine, which are ended when they hang."""
    # Longer than a step takes, however busy the machine is.
    return begin("--workers=3", "--hang-timeout=5")


@pytest.fixture(scope="session")
def paced(begin: Begin, virtual_slurm: VirtualCluster) -> Experiment:
    """Three ranks on three nodes, with steps that leave the time to agree on a stop."""
    return begin("--workers=3", "--nodes=3", "--pause=0.4", cluster=virtual_slurm)


@pytest.fixture(scope="session")
def with_spare_node(begin: Begin, virtual_slurm: VirtualCluster) -> Experiment:
    """Three ranks on three nodes, of a job that has a fourth and is set --no-kill."""
    args = ("--workers=3", "--nodes=3", "--spare-nodes=1", "--node-timeout=6")
    return begin(*args, cluster=virtual_slurm)


@pytest.fixture(scope="session")
def with_torch(begin: Begin) -> Experiment:
    """Two ranks of the torch model, on this machine."""
    return begin("--workers=2", model="torch_model.py")


@pytest.fixture(scope="session")
def with_states(begin: Begin) -> Experiment:
    """Two ranks of the torch model, on this machine, which report its state."""
    return begin("--workers=2", "--states", model="torch_model.py")


@pytest.fixture
def survive(request: pytest.FixtureRequest) -> Callable[..., Comparison]:
    """Disturb an experiment; fail unless it ends like the undisturbed run."""

    def check(experiment: Experiment, *faults: Fault) -> Comparison:
        comparison = experiment.disturb(faults)
        assert comparison.passed, f"{replay(request.node.name)}\n{comparison.explain()}"
        assert all(comparison.result.came_about), comparison.explain()
        return comparison

    yield check
    # Later tests find the nodes as they were.
    if "virtual_slurm" in request.fixturenames:
        cluster = request.getfixturevalue("virtual_slurm")
        for node in cluster.node_names:
            cluster.wait_for_state(node, "idle", timeout_s=60)


def replay(name: str) -> str:
    return (
        f"seed {SEED}. Once more: HPCTRAIN_CHAOS_SEED={SEED} {Path(sys.executable).name} -m pytest "
        f"tests/chaos -m 'long or not long' -k '{name.partition('[')[0]}'"
    )


def drawn(experiment: Experiment, *kinds: str, salt: object = "") -> list[Fault]:
    """Return one random fault of each kind; the same for the same seed and salt."""
    chance = random.Random(f"{SEED} {salt} {kinds}")
    return [KINDS[kind].draw(experiment.undisturbed.trace, chance) for kind in kinds]


@pytest.fixture(name="drawn")
def _drawn() -> Callable[..., list[Fault]]:
    return drawn
