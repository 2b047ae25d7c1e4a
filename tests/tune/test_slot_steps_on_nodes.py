"""Trials on several nodes of an allocation begin one after another in the steps of their slots."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Result
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.testing.slurm import VirtualCluster
from tests.tune.test_allocation import TIMEOUT_S, places, printed, record, sweeping
from tests.tune.test_slot_steps import WHERE, found, kill_tuner, sweep
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm

ON_TWO_NODES = """
def of_all(value):
    from mpi4py import MPI

    return MPI.COMM_WORLD.allgather(value)

def trainer(train, workers=4, nodes=2, **options):
    scaling = ScalingConfig(num_workers=workers, slurm=SlurmConfig(nodes=nodes), **options)
    return DataParallelTrainer(train, scaling_config=scaling)

def tuner(trainer, xs, *, at_once=1, scheduler=None, **options):
    return tune.Tuner(
        trainer,
        param_space={"train_loop_config": {"x": tune.grid_search(xs)}},
        tune_config=tune.TuneConfig(max_concurrent_trials=at_once, scheduler=scheduler),
        run_config=run_config(**options),
    )
"""


def by_trial(places: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return where the ranks of each trial were, in the order of trials."""
    trials = defaultdict(list)
    for place in places:
        trials[place["trial"]].append(place)
    return [trials[name] for name in sorted(trials)]


def holders(ranks: list[dict[str, Any]]) -> dict[str, tuple[str, int]]:
    """Return the step and the process that holds it, on each node of a trial."""
    held = {place["node"]: (place["step"], place["host"]) for place in ranks}
    assert len({(place["node"], place["step"], place["host"]) for place in ranks}) == len(held)
    return held


ONE_BY_ONE = """
def train(config):
    where(config)
    world = hpctrain.get_context()
    hpctrain.report({"x": config["x"], "seen": of_all({
        "rank": world.get_world_rank(),
        "local_rank": world.get_local_rank(),
        "local_size": world.get_local_world_size(),
        "node_rank": world.get_node_rank(),
        **{name: os.environ.get(name) for name in SLURM},
        **{name: hosts(os.environ.get(name)) for name in LISTS},
    })})

def hosts(names):
    import subprocess

    return subprocess.check_output(["scontrol", "show", "hostnames", names], text=True).split()

SLURM = [
    *("SLURMD_NODENAME", "SLURM_NODEID", "SLURM_NNODES", "SLURM_STEP_NUM_NODES"),
    *("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_NUM_NODES"),
    *("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE", "SLURM_CPUS_PER_TASK"),
    "SLURM_CPUS_ON_NODE",
]
LISTS = ["SLURM_NODELIST", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"]
results = tuner(trainer(train, workers=5, nodes=3), [0, 1, 2]).fit()
assert not results.errors, results.errors
assert [result.metrics["x"] for result in results] == [0, 1, 2]
"""


def test_trials_on_several_nodes_are_forked_in_the_same_steps_with_what_srun_sets(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    seen = []
    for value in "10":
        folder = tmp_path / value
        folder.mkdir()
        code = f"os.environ['HPCTRAIN_FORK_SERVER'] = '{value}'\n{ON_TWO_NODES}{ONE_BY_ONE}"
        trials = by_trial(sweep(virtual_slurm, folder, code, nodes=4))
        assert [len(ranks) for ranks in trials] == [5, 5, 5]
        if value == "1":
            assert all(p["is_forked"] and p["host"] for ranks in trials for p in ranks)
            first, *others = map(holders, trials)
            assert [*first] == ["node1", "node2", "node3"], "a step on each node"
            assert others == [first, first]
            for number in range(3):
                paths = RunPaths(folder / "sweep" / f"trial_0000{number}")
                assert "not-forked" not in [event["event"] for event in read_events(paths)]
        runs = [folder / "sweep" / f"trial_0000{number}" for number in range(3)]
        seen.append([Result.from_path(run).metrics["seen"] for run in runs])
    assert seen[0] == seen[1]


MIXED = """
def train(config):
    where(config)
    hpctrain.report({"x": 1})

def scaling(workers, nodes):
    return ScalingConfig(num_workers=workers, slurm=SlurmConfig(nodes=nodes))

needs = [scaling(2, 2), scaling(1, 1), scaling(2, 2), scaling(4, 2), scaling(2, 1), scaling(4, 2)]
results = tune.Tuner(
    DataParallelTrainer(train),
    param_space={"scaling_config": tune.grid_search(needs)},
    tune_config=tune.TuneConfig(max_concurrent_trials=1),
    run_config=run_config(),
).fit()
assert not results.errors, results.errors
"""


def test_trials_on_one_node_and_on_two_begin_in_the_same_steps(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    places = sweep(virtual_slurm, tmp_path, MIXED, nodes=2)
    assert all(place["is_forked"] and place["host"] for place in places)
    held = [holders(ranks) for ranks in by_trial(places)]
    assert held[0] == held[2]
    assert held[1].items() <= held[0].items()
    assert held[3] == held[5]
    assert held[4].items() <= held[3].items()
    assert len({step for steps in held for step, _ in steps.values()}) == 4


AT_ONCE = """
def train(config):
    where(config)
    await_files(f"{hpctrain.get_context().get_trial_name()}.*.where", 2)
    if config["x"] < 2:
        await_files("trial_0000[01].*.where", 4)
    hpctrain.report({"x": config["x"]})

results = tuner(
    trainer(train, workers=2, use_gpu=True, resources_per_worker={"CPU": 2, "GPU": 2}),
    [0, 1, 2, 3],
    at_once=2,
).fit()
assert not results.errors, results.errors
"""


def test_two_trials_on_the_same_nodes_share_neither_steps_nor_gpus(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    code = AT_ONCE.replace("where(config)", "say_where(config); where(config)")
    found_places = sweep(
        virtual_slurm, tmp_path, f"{ON_TWO_NODES}{code}", "--gpus-per-node=4", nodes=2
    )
    assert all(place["is_forked"] and place["host"] for place in found_places)
    held = [holders(ranks) for ranks in by_trial(found_places)]
    assert set(held[0].values()).isdisjoint(held[1].values())
    assert all(steps in held[:2] for steps in held[2:])
    gpus = defaultdict(set)
    for place in places(tmp_path):
        assert len(place["gpus"]) == 2
        gpus[place["trial"], place["node"]].update(place["gpus"])
    for node in ("node1", "node2"):
        of_node = gpus["trial_00000", node] | gpus["trial_00001", node]
        assert of_node == {"0", "1", "2", "3"}


KILLED_BETWEEN = """
import subprocess
from hpctrain.tune.schedulers import FIFOScheduler

class Kills(FIFOScheduler):
    def on_complete(self, trial_id, metrics):
        if trial_id == "trial_00000":
            step = f"{os.environ['SLURM_JOB_ID']}.{metrics['step']}"
            subprocess.run(["scancel", "--signal=KILL", step], check=True)

def train(config):
    where(config)
    steps = of_all(os.environ["SLURM_STEP_ID"])
    hpctrain.report({"step": steps[-1]})

results = tuner(trainer(train, workers=2), [0, 1, 2], scheduler=Kills()).fit()
assert not results.errors, results.errors
"""


def test_a_step_of_one_node_that_is_killed_between_two_trials_costs_none(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    places = sweep(virtual_slurm, tmp_path, f"{ON_TWO_NODES}{KILLED_BETWEEN}", nodes=2)
    first, *others = by_trial(places)
    assert [len(ranks) for ranks in others] == [2, 2]
    killed, _ = holders(first)["node2"]
    # Whether the second one meets the dying step, and goes on without, is up to the clock.
    assert killed not in {place["step"] for ranks in others for place in ranks}
    assert all(place["host"] for place in (*first, *others[1]))
    assert {len(Result.from_path(run).attempts) for run in runs(tmp_path, 3)} == {1}


def runs(folder: Path, number: int) -> list[Path]:
    return [folder / "sweep" / f"trial_{index:05}" for index in range(number)]


KILLED_DURING = """
def train(config):
    where(config)
    saved = hpctrain.get_checkpoint()
    hpctrain.report({"x": config["x"]}, Checkpoint.from_dict({"step": 1}))
    if config["x"] == 0 and saved is None:
        if hpctrain.get_context().get_node_rank() == KILLED:
            os.kill(host(), signal.SIGKILL)
        time.sleep(60)
    hpctrain.report({"x": config["x"]})

results = tuner(
    trainer(train, workers=2), [0, 1, 2], failure_config=FailureConfig(max_failures=1)
).fit()
assert not results.errors, results.errors
"""


@pytest.mark.parametrize("node", [0, 1])
def test_a_step_of_one_node_that_is_killed_under_a_trial_costs_an_attempt(
    virtual_slurm: VirtualCluster, tmp_path: Path, node: int
) -> None:
    code = f"KILLED = {node}\n{ON_TWO_NODES}{KILLED_DURING}"
    killed, *others = by_trial(sweep(virtual_slurm, tmp_path, code, nodes=2))
    assert len(killed) == 4
    first, again = killed[::2], killed[1::2]
    assert all(place["host"] for place in first)
    assert [place["host"] for place in again] == [0, 0], "its executor starts steps of its own"
    steps = {place["step"] for place in first}
    assert steps.isdisjoint(place["step"] for ranks in (again, *others) for place in ranks)
    assert holders(others[0]) == holders(others[1])
    assert all(place["host"] for ranks in others for place in ranks)
    assert [len(Result.from_path(run).attempts) for run in runs(tmp_path, 3)] == [2, 1, 1]


FAILS = """
def train(config):
    where(config)
    if config["x"] == 1 and hpctrain.get_context().get_world_rank() == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    hpctrain.report({"x": config["x"]})

results = tuner(trainer(train), [0, 1, 2, 3]).fit()
assert len(results.errors) == 1, results.errors
print("error:", results.errors[0])
"""


def test_a_trial_on_two_nodes_that_fails_costs_no_other_and_the_next_one_has_new_steps(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    places = sweep(virtual_slurm, tmp_path, f"{ON_TWO_NODES}{FAILS}", nodes=2)
    assert all(place["host"] for place in places)
    held = [holders(ranks) for ranks in by_trial(places)]
    assert held[0] == held[1]
    assert held[2] == held[3]
    assert set(held[0].values()).isdisjoint(held[2].values())
    assert "error: rank 3 of 4 on node2 failed" in printed(tmp_path)


LEFTOVERS = """
import subprocess

def train(config):
    where(config)
    before = FOLDER / f"left-on-{os.environ['SLURMD_NODENAME']}"
    alive = before.exists() and Path(f"/proc/{before.read_text().strip()}").exists()
    if config["x"] == 0:
        # In a session of its own, and nobody's child.
        subprocess.run(["sh", "-c", f"setsid sleep 600 & echo $! > {before}"], check=True)
        assert Path(f"/proc/{before.read_text().strip()}").exists()
    hpctrain.report({"alive": of_all(alive)})

results = tuner(trainer(train, workers=2), [0, 1]).fit()
assert not results.errors, results.errors
assert [result.metrics["alive"] for result in results] == 2 * [[False, False]]
"""


def test_what_a_trial_leaves_behind_on_its_nodes_ends_before_the_next_one(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    places = sweep(virtual_slurm, tmp_path, f"{ON_TWO_NODES}{LEFTOVERS}", nodes=2)
    first, second = map(holders, by_trial(places))
    assert first == second
    assert all(pid for _, pid in first.values())


TUNER_KILLED = """
(FOLDER / "pid").write_text(str(os.getpid()))

def train(config):
    where(config)
    goes_on(config)

tuner(trainer(train, workers=2), [1, 2]).fit()
"""


def test_no_step_on_any_node_outlives_a_killed_tuner_and_the_trial_that_it_has_begun(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    kill_tuner(virtual_slurm, tmp_path, TUNER_KILLED, shared=ON_TWO_NODES, nodes=2, trials=1)


NODE_LOST = """
def train(config):
    where(config)
    goes_on(config)

results = tuner(
    trainer(train, workers=2, resources_per_worker={"CPU": 3}),
    [1, 2, 3],
    failure_config=FailureConfig(node_timeout_s=5),
).fit()
assert not results.errors, results.errors
"""


def test_a_trial_on_two_nodes_that_loses_one_goes_on_elsewhere(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    if virtual_slurm.spec.mode != "namespaces":
        pytest.skip("nodes have no power of their own")
    code = f"{WHERE}{ON_TWO_NODES}{NODE_LOST}"
    lost = ""
    try:
        with sweeping(virtual_slurm, tmp_path, code, "--no-kill", nodes=3) as process:
            wait_until(
                lambda: len(found(tmp_path)) == 2, lambda: printed(tmp_path), process=process
            )
            assert all(place["host"] for place in found(tmp_path))
            lost = [*record(tmp_path).trials["trial_00000"].slot.nodes][1]
            virtual_slurm.power_off(lost)
            wait_until(
                lambda: f"node {lost} is left out" in printed(tmp_path),
                lambda: printed(tmp_path),
                process=process,
            )
            (tmp_path / "go").touch()
            assert process.wait(TIMEOUT_S) == 0, printed(tmp_path)
    finally:
        if lost:
            virtual_slurm.power_on(lost)
            virtual_slurm.wait_for_state(lost, "idle")
    trials = record(tmp_path).trials
    assert [trial.state.value for trial in trials.values()] == 3 * ["TERMINATED"]
    later = [place for place in found(tmp_path) if place["trial"] != "trial_00000"]
    assert all(place["host"] and place["node"] != lost for place in later)
    assert len({place["step"] for place in later}) == 2


LOSSES = """
def train(config):
    import torch
    import its_own

    where(config)
    of_optimizers = "torch._dynamo" in sys.modules
    torch.manual_seed(config["x"])
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    model = hpctrain.torch.prepare_model(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(3):
        loss = (model(torch.randn(32, 16)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        reported = {"loss": loss.item().hex(), "number": its_own.NUMBER}
        hpctrain.report({**reported, "is_there": of_optimizers})
    if hpctrain.get_context().get_world_rank() == 0:
        (FOLDER / "its_own.py").write_text(f"NUMBER = {config['x'] + 10}")

import hpctrain.torch
from hpctrain.torch import TorchTrainer

trainer = TorchTrainer(
    train, scaling_config=ScalingConfig(num_workers=4, slurm=SlurmConfig(nodes=2))
)
results = tuner(trainer, [1, 2]).fit()
assert not results.errors, results.errors
assert [result.metrics["number"] for result in results] == [1, 1]
"""


def test_losses_on_two_nodes_are_those_of_trials_with_steps_of_their_own(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    """And the user's modules are those of the begin of the sweep, whatever is edited later."""
    losses = []
    for value in "10":
        folder = tmp_path / value
        folder.mkdir()
        (folder / "its_own.py").write_text("NUMBER = 1\n")
        code = f"os.environ['HPCTRAIN_FORK_SERVER'] = '{value}'\n{ON_TWO_NODES}{LOSSES}"
        places = sweep(virtual_slurm, folder, code, nodes=2)
        assert {bool(place["host"]) for place in places} == {value == "1"}
        last = [Result.from_path(run).metrics for run in runs(folder, 2)]
        assert [metrics["is_there"] for metrics in last] == 2 * [value == "1"]
        histories = [Result.from_path(run).metrics_history for run in runs(folder, 2)]
        losses.append([[metrics["loss"] for metrics in history] for history in histories])
    assert losses[0] == losses[1]
    assert len({loss for run in losses[0] for loss in run}) == 6


REFUSED = """
def train(config):
    where(config)
    hpctrain.report({"x": config["x"]})

results = tuner(trainer(train, workers=2), [0, 1, 2, 3]).fit()
assert not results.errors, results.errors
"""


def test_ranks_of_two_nodes_that_do_not_start_in_the_steps_start_in_one_of_their_own(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    # hydra refuses it; srun does not read it.
    code = f"os.environ['MPIEXEC_PORT_RANGE'] = 'bogus'\n{ON_TWO_NODES}{REFUSED}"
    found_places = sweep(virtual_slurm, tmp_path, code, nodes=2)
    assert [place["host"] for place in found_places] == 8 * [0]
    first = (tmp_path / "sweep" / "trial_00000" / "executor.log").read_text()
    assert "starts steps of its own, and none in the step of its slot: ranks cannot start" in first
    assert "own: 3 in a row could not begin in that of their slot" in printed(tmp_path)
