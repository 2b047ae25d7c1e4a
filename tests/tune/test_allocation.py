"""Sweeps on the nodes of an allocation of the virtual cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Result, RunStoppedError
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import RunStatus, read_status
from hpctrain.testing.slurm import VirtualCluster
from hpctrain.tune.ledger import SweepPaths, SweepRecord, read_record
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm

TIMEOUT_S = 90
SIZE = ("--ntasks-per-node=4",)

# Each rank of a trial says where it is, and waits until as many as it is to meet are there.
TRIALS = """
import json, os, pathlib, signal, sys, time
import hpctrain
from hpctrain import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig
from hpctrain import SlurmConfig, tune

FOLDER = pathlib.Path(os.environ["FOLDER"])

def await_files(pattern, number):
    deadline = time.monotonic() + 80
    while len(list(FOLDER.glob(pattern))) < number:
        assert time.monotonic() < deadline, pattern
        time.sleep(0.05)

def say_where(config):
    context = hpctrain.get_context()
    name, rank = context.get_trial_name(), context.get_world_rank()
    place = {
        "trial": name,
        "node": os.environ["SLURMD_NODENAME"],
        "step": os.environ["SLURM_STEP_ID"],
        "cpus": int(os.environ["SLURM_CPUS_PER_TASK"]),
        "gpus": [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu],
    }
    (FOLDER / f".{name}.{rank}").write_text(json.dumps(place))
    os.rename(FOLDER / f".{name}.{rank}", FOLDER / f"{name}.{rank}.place")

def goes_on(config):
    "Reports until there is a file; begins where its checkpoint is."
    saved = hpctrain.get_checkpoint()
    step = 0 if saved is None else saved.to_dict()["step"] + 1
    say_where(config)
    while not (FOLDER / "go").exists():
        hpctrain.report({"step": step, "x": config["x"]}, Checkpoint.from_dict({"step": step}))
        step += 1
        time.sleep(0.1)
    hpctrain.report({"step": step, "x": config["x"]})

def run_config(**options):
    return RunConfig(storage_path=str(FOLDER), name="sweep", **options)
"""


def script(folder: Path, code: str) -> Path:
    path = folder / "sweep.py"
    path.write_text(TRIALS + code)
    return path


def environment(cluster: VirtualCluster, folder: Path) -> dict[str, str]:
    return {**os.environ, **cluster.environ, "HPCTRAIN_LAUNCHER": "", "FOLDER": str(folder)}


@contextmanager
def sweeping(
    cluster: VirtualCluster, folder: Path, code: str, *options: str, nodes: int = 4
) -> Iterator[subprocess.Popen[str]]:
    """Run a script in an allocation, for the time of the block at most."""
    with open(folder / "printed", "a", encoding="utf-8") as printed:
        process = subprocess.Popen(
            [
                *("salloc", "--quiet", f"--nodes={nodes}", *SIZE, *options),
                *(sys.executable, str(script(folder, code))),
            ],
            env=environment(cluster, folder),
            stdout=printed,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(TIMEOUT_S)


def run_job(cluster: VirtualCluster, folder: Path, code: str, *options: str) -> int:
    """Run a script in a batch job, and return its exit status.

    On a node, where Slurm's controller reaches an srun that waits for a step that is ending.
    """
    ended = folder / "status"
    save_status = f"echo $? > {ended}.new; mv {ended}.new {ended}"
    command = f"{sys.executable} {script(folder, code)}; {save_status}"
    submitted = subprocess.run(
        [
            "sbatch",
            *SIZE,
            *options,
            "--open-mode=append",
            f"--output={folder}/printed",
            f"--wrap={command}",
        ],
        env=environment(cluster, folder),
        timeout=TIMEOUT_S,
    )
    assert submitted.returncode == 0
    wait_until(ended.exists, lambda: printed(folder), timeout_s=TIMEOUT_S)
    return int(ended.read_text())


def printed(folder: Path) -> str:
    return (folder / "printed").read_text()


def places(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in folder.glob("*.place")]


def record(folder: Path) -> SweepRecord:
    return read_record(SweepPaths(root=folder / "sweep"))


def status_of(folder: Path, trial: str) -> RunStatus:
    status = read_status(RunPaths(folder / "sweep" / trial))
    assert status is not None
    return status


PACKED = """
def train(config):
    say_where(config)
    await_files("*.place", 8)
    hpctrain.report({"x": 1})

def scaling(workers, cpus, *, nodes=None, gpus=0):
    return ScalingConfig(
        num_workers=workers,
        use_gpu=gpus > 0,
        resources_per_worker={"CPU": cpus, **({"GPU": gpus} if gpus else {})},
        slurm=SlurmConfig(nodes=nodes),
    )

wide, with_gpus, small, whole = (
    scaling(2, 3, nodes=2), scaling(1, 2, gpus=2), scaling(1, 1), scaling(1, 4)
)
scalings = [wide, *4 * [with_gpus], *2 * [small], whole]
results = tune.Tuner(
    DataParallelTrainer(train),
    param_space={"scaling_config": tune.grid_search(scalings)},
    run_config=run_config(),
).fit()
assert not results.errors, results.errors
"""


def test_trials_are_packed_on_all_nodes_and_share_neither_cpus_nor_gpus(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    assert run_job(virtual_slurm, tmp_path, PACKED, "--nodes=4", "--gpus-per-node=4") == 0, printed(
        tmp_path
    )
    found = places(tmp_path)
    # The last one needs a whole node: it has waited for the end of the others.
    together = [place for place in found if place["trial"] != "trial_00007"]
    assert len(together) == 8
    assert len({place["step"] for place in found}) == 9, "a step for each trial on each node"
    cpus, gpus = defaultdict[str, int](int), defaultdict[str, list[str]](list)
    for place in together:
        cpus[place["node"]] += place["cpus"]
        gpus[place["node"]] += place["gpus"]
    assert cpus == {"node1": 4, "node2": 4, "node3": 4, "node4": 4}
    assert {node: sorted(of_node) for node, of_node in gpus.items() if of_node} == {
        node: ["0", "1", "2", "3"] for node in ("node3", "node4")
    }
    wide = [place["node"] for place in found if place["trial"] == "trial_00000"]
    assert sorted(wide) == ["node1", "node2"]
    assert [trial.state.value for trial in record(tmp_path).trials.values()] == 8 * ["TERMINATED"]


def test_a_dry_run_shows_the_slice_of_the_first_trial(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    code = "import os; os.environ['HPCTRAIN_DRY_RUN'] = '1'"
    with sweeping(virtual_slurm, tmp_path, f"{code}\n{PACKED}", "--gpus-per-node=4") as process:
        assert process.wait(TIMEOUT_S) == 0, printed(tmp_path)
    last = printed(tmp_path).splitlines()[-1]
    assert "--nodes=2 --nodelist=node1,node2 --ntasks=2 " in last
    assert "--exact" in last
    assert not (tmp_path / "sweep").exists()


FORKED = """
from hpctrain import BackendConfig

class Preloaded(BackendConfig):
    preload = ("hpctrain.worker.main", "numpy")

def train(config):
    with open(f"/proc/{os.getppid()}/cmdline") as file:
        is_forked = "hpctrain.worker.fork_server" in file.read()
    context = hpctrain.get_context()
    name, rank = context.get_trial_name(), context.get_world_rank()
    (FOLDER / f"{name}.{rank}.forked").write_text(str(is_forked))
    hpctrain.report({"x": config["x"]})

results = tune.Tuner(
    DataParallelTrainer(
        train,
        backend_config=Preloaded(),
        scaling_config=ScalingConfig(num_workers=2, slurm=SlurmConfig(nodes=1)),
    ),
    param_space={"train_loop_config": {"x": tune.grid_search([1, 2, 3])}},
    tune_config=tune.TuneConfig(max_concurrent_trials=2),
    run_config=run_config(),
).fit()
assert not results.errors, results.errors
"""


def test_ranks_of_each_trial_are_forked(virtual_slurm: VirtualCluster, tmp_path: Path) -> None:
    with sweeping(virtual_slurm, tmp_path, FORKED, nodes=1) as process:
        assert process.wait(TIMEOUT_S) == 0, printed(tmp_path)
    names = [f"trial_0000{number}" for number in range(3)]
    said = {path.name: path.read_text() for path in tmp_path.glob("*.forked")}
    assert said == {f"{name}.{rank}.forked": "True" for name in names for rank in range(2)}
    for name in names:
        events = read_events(RunPaths(tmp_path / "sweep" / name))
        assert [event for event in events if event["event"] == "not-forked"] == []


TOO_LARGE = """
tune.Tuner(
    DataParallelTrainer(print),
    param_space={"scaling_config": ScalingConfig(num_workers=tune.grid_search([1, 9]))},
    run_config=run_config(),
).fit()
"""


def test_a_trial_that_the_allocation_cannot_hold_is_refused_before_anything_starts(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    with sweeping(virtual_slurm, tmp_path, TOO_LARGE, nodes=2) as process:
        assert process.wait(TIMEOUT_S) == 2, printed(tmp_path)
    assert "trial_00001 needs 9 workers with 1 CPU each: the 2 nodes of this allocation hold " in (
        printed(tmp_path)
    )
    assert not (tmp_path / "sweep").exists()


# The first process is killed, and the second one, in the same allocation, goes on.
KILLED = """
import subprocess

def sweep():
    if tune.Tuner.can_restore(FOLDER / "sweep"):
        return tune.Tuner.restore(FOLDER / "sweep", goes_on)
    return tune.Tuner(
        goes_on,
        param_space={"x": tune.grid_search([1, 2, 3])},
        run_config=run_config(),
    )

if "again" in sys.argv:
    results = sweep().fit()
    print("ended", [result.metrics["x"] for result in results], results.num_errors)
else:
    for _ in range(2):
        begun = subprocess.run([sys.executable, __file__, "again"])
        print("status", begun.returncode, flush=True)
"""


def test_a_killed_executor_is_replaced_and_a_killed_tuner_costs_no_trial(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    names = [f"trial_0000{i}" for i in range(3)]
    with sweeping(virtual_slurm, tmp_path, KILLED, nodes=2) as process:
        wait_until(lambda: len(places(tmp_path)) == 3, lambda: printed(tmp_path), process=process)
        executors = [status_of(tmp_path, name).owner_pid for name in names]
        os.kill(executors[0], signal.SIGKILL)
        wait_until(
            lambda: len(Result.from_path(tmp_path / "sweep" / names[0]).attempts) == 2,
            lambda: printed(tmp_path),
            process=process,
        )
        (claim,) = tmp_path.glob("sweep/.claim-*/owner")
        os.kill(json.loads(claim.read_text())["pid"], signal.SIGKILL)
        wait_until(lambda: "trial_00001 goes on" in printed(tmp_path), process=process)
        (tmp_path / "go").touch()
        assert process.wait(TIMEOUT_S) == 0, printed(tmp_path)
    assert "status -9" in printed(tmp_path)
    assert "ended [1, 2, 3] 0" in printed(tmp_path)
    assert "trial_00000 is to go on: its executor was killed" in printed(tmp_path)
    killed = Result.from_path(tmp_path / "sweep" / names[0])
    assert len(killed.attempts) == 2
    steps = [metrics["step"] for metrics in killed.metrics_history]
    assert steps == list(range(len(steps))), "nothing is left out"
    for name, executor in list(zip(names, executors, strict=True))[1:]:
        assert status_of(tmp_path, name).owner_pid == executor
        assert len(Result.from_path(tmp_path / "sweep" / name).attempts) == 1


LEFT = """
tuner = (
    tune.Tuner.restore(FOLDER / "sweep", goes_on)
    if tune.Tuner.can_restore(FOLDER / "sweep")
    else tune.Tuner(
        goes_on, param_space={"x": tune.grid_search([1, 2])}, run_config=run_config()
    )
)
(FOLDER / "pid").write_text(str(os.getpid()))
tuner.fit()
"""


def test_a_sweep_leaves_its_job_with_checkpoints_and_goes_on_in_another_one(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    with sweeping(virtual_slurm, tmp_path, LEFT, nodes=2) as process:
        wait_until(lambda: len(places(tmp_path)) == 2, lambda: printed(tmp_path), process=process)
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 5, printed(tmp_path)
    assert "stopping 2 trials\n" in printed(tmp_path)
    assert "the sweep stopped because job" in printed(tmp_path)
    assert "In another job Tuner.restore(" in printed(tmp_path)
    states = [trial.state.value for trial in record(tmp_path).trials.values()]
    assert states == ["PENDING", "PENDING"]
    runs = [tmp_path / "sweep" / f"trial_0000{i}" for i in range(2)]
    assert all(Result.from_path(run).checkpoint is not None for run in runs)
    (tmp_path / "go").touch()
    with sweeping(virtual_slurm, tmp_path, LEFT, nodes=2) as process:
        assert process.wait(TIMEOUT_S) == 0, printed(tmp_path)
    for run in runs:
        result = Result.from_path(run)
        assert result.state == "finished"
        steps = [metrics["step"] for metrics in result.metrics_history]
        assert steps == list(range(len(steps))), "nothing is repeated, nothing left out"
        assert len(set(result.job_ids)) == 2


# In the first life of the job the sweep gets a signal, in the second one its trials may end.
REQUEUED = """
import threading

def end_job():
    await_files("*.place", 2)
    os.kill(os.getpid(), signal.SIGTERM)

if os.environ.get("SLURM_RESTART_COUNT"):
    (FOLDER / "go").touch()
else:
    threading.Thread(target=end_job, daemon=True).start()
try:
    exec(LEFT)
except hpctrain.RunStoppedError:
    subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)
    time.sleep(60)
"""


def test_trials_that_stopped_before_a_requeue_go_on_after_it(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    code = f"import subprocess\nLEFT = {LEFT!r}\n{REQUEUED}"
    status = run_job(virtual_slurm, tmp_path, code, "--nodes=2", "--requeue")
    assert status == 0, printed(tmp_path)
    for i in range(2):
        result = Result.from_path(tmp_path / "sweep" / f"trial_0000{i}")
        assert result.state == "finished", printed(tmp_path)
        assert len(result.attempts) == 2
        steps = [metrics["step"] for metrics in result.metrics_history]
        assert steps == list(range(len(steps))), "nothing is repeated, nothing left out"


def test_a_lost_node_costs_only_the_trials_on_it_which_go_on_elsewhere(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    if virtual_slurm.spec.mode != "namespaces":
        pytest.skip("nodes have no power of their own")
    code = """
results = tune.Tuner(
    tune.with_resources(goes_on, {"cpu": 3}),
    param_space={"x": tune.grid_search([1, 2, 3])},
    run_config=run_config(failure_config=FailureConfig(node_timeout_s=5)),
).fit()
assert not results.errors, results.errors
"""
    names = [f"trial_0000{i}" for i in range(3)]
    try:
        with sweeping(virtual_slurm, tmp_path, code, "--no-kill") as process:
            wait_until(
                lambda: len(places(tmp_path)) == 3, lambda: printed(tmp_path), process=process
            )
            lost = record(tmp_path).trials[names[1]].slot.nodes
            (node,) = lost
            virtual_slurm.power_off(node)
            wait_until(
                lambda: f"node {node} is left out" in printed(tmp_path),
                lambda: printed(tmp_path),
                process=process,
            )
            wait_until(
                lambda: len(Result.from_path(tmp_path / "sweep" / names[1]).attempts) == 2,
                lambda: printed(tmp_path),
                process=process,
            )
            (tmp_path / "go").touch()
            assert process.wait(TIMEOUT_S) == 0, printed(tmp_path)
    finally:
        virtual_slurm.power_on(node)
        virtual_slurm.wait_for_state(node, "idle")
    trials = record(tmp_path).trials
    assert [trial.state.value for trial in trials.values()] == 3 * ["TERMINATED"]
    assert trials[names[1]].slot.nodes.keys().isdisjoint(lost)
    attempts = [len(Result.from_path(tmp_path / "sweep" / name).attempts) for name in names]
    assert attempts == [1, 2, 1]


ON_TWO_NODES = """
where = str(FOLDER / "sweep")
trainer = DataParallelTrainer(goes_on)
if tune.Tuner.can_restore(where):
    tuner = tune.Tuner.restore(where, trainer)
else:
    tuner = tune.Tuner(
        DataParallelTrainer(
            goes_on,
            scaling_config=ScalingConfig(num_workers=2, slurm=SlurmConfig(nodes=2)),
        ),
        param_space={"train_loop_config": {"x": tune.grid_search([1, 2])}},
        tune_config=tune.TuneConfig(max_concurrent_trials=1),
        run_config=run_config(failure_config=FailureConfig(node_timeout_s=5)),
    )
results = tuner.fit()
assert not results.errors and len(results) == 2, results.errors
"""


def test_trials_that_the_nodes_left_do_not_hold_go_on_in_another_job(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    if virtual_slurm.spec.mode != "namespaces":
        pytest.skip("nodes have no power of their own")
    first = RunPaths(tmp_path / "sweep" / "trial_00000")
    node = ""
    try:
        with sweeping(virtual_slurm, tmp_path, ON_TWO_NODES, "--no-kill", nodes=2) as process:
            wait_until(
                lambda: [*first.checkpoints.glob("0*")], lambda: printed(tmp_path), process=process
            )
            node = max(record(tmp_path).trials["trial_00000"].slot.nodes)
            virtual_slurm.power_off(node)
            # So that a job script with a chain submits the next one.
            assert process.wait(TIMEOUT_S) == RunStoppedError.exit_code, printed(tmp_path)
        assert f"(1 more is lost: {node}: " in printed(tmp_path)
        assert record(tmp_path).trials["trial_00000"].state.value == "PENDING"
        assert record(tmp_path).ended is None
        (tmp_path / "go").touch()
        with sweeping(virtual_slurm, tmp_path, ON_TWO_NODES, nodes=2) as process:
            assert process.wait(TIMEOUT_S) == 0, printed(tmp_path)
    finally:
        if node:
            virtual_slurm.power_on(node)
            virtual_slurm.wait_for_state(node, "idle")
    trials = record(tmp_path).trials
    assert [trial.state.value for trial in trials.values()] == 2 * ["TERMINATED"]
    result = Result.from_path(first.root)
    assert len(result.attempts) == 2
    steps = [metrics["step"] for metrics in result.metrics_history]
    assert steps == list(range(len(steps))), "it goes on from its checkpoint"


STARTS_ON_A_DEAD_NODE = """
results = tune.Tuner(
    tune.with_resources(goes_on, {"cpu": 3}),
    param_space={"x": 1},
    run_config=run_config(failure_config=FailureConfig(node_timeout_s=5)),
).fit()
assert not results.errors, results.errors
"""


def is_agent_there(folder: Path) -> bool:
    """Return whether the agent of a run in a folder is a process of this machine's nodes."""
    for name in os.listdir("/proc"):
        with suppress(OSError):
            argv = Path("/proc", name, "cmdline").read_bytes().split(b"\0")
            is_agent = argv[1:3] == [b"-m", b"hpctrain.execute.agent"]
            if is_agent and os.fsencode(folder) in b" ".join(argv):
                return True
    return False


@pytest.mark.long
def test_a_trial_that_starts_on_a_node_that_goes_down_goes_on_elsewhere(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    """Its agent never comes, so no silence is noticed; srun waits for the node."""
    if virtual_slurm.spec.mode != "namespaces":
        pytest.skip("nodes have no power of their own")
    (tmp_path / "go").touch()
    nodes: list[str] = []
    try:
        with sweeping(virtual_slurm, tmp_path, STARTS_ON_A_DEAD_NODE, "--no-kill") as process:
            # Its Python starts on the first node, and it has not said a word yet.
            wait_until(lambda: is_agent_there(tmp_path), lambda: printed(tmp_path), process=process)
            nodes = ["node1"]
            virtual_slurm.power_off("node1")
            assert process.wait(TIMEOUT_S) == 0, printed(tmp_path)
    finally:
        for node in nodes:
            virtual_slurm.power_on(node)
            virtual_slurm.wait_for_state(node, "idle")
    (trial,) = record(tmp_path).trials.values()
    assert trial.state.value == "TERMINATED"
    assert "node1" not in trial.slot.nodes


ON_ONE_NODE = """
def train(config):
    assert "SLURM_STEP_ID" not in os.environ, "it is a process of the node, and no step"
    mine = FOLDER / f"{config['x']}.place"
    mine.write_text("{}")
    hpctrain.report({"at_once": len(list(FOLDER.glob("*.place")))})
    time.sleep(0.5)
    mine.unlink()

results = tune.Tuner(
    train, param_space={"x": tune.grid_search([1, 2, 3, 4])}, run_config=run_config()
).fit()
assert not results.errors
print("at once", max(result.metrics["at_once"] for result in results))
"""


def test_a_sweep_on_one_node_of_an_allocation_has_its_cpus_and_no_more(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    status = run_job(virtual_slurm, tmp_path, ON_ONE_NODE, "--nodes=1", "--ntasks-per-node=1")
    assert status == 0, printed(tmp_path)
    assert "at once 1" in printed(tmp_path)


TOO_LARGE_FOR_ONE_NODE = """
def train(config):
    (FOLDER / "begun").touch()
    hpctrain.report({"x": 1})

try:
    tune.Tuner(
        DataParallelTrainer(train),
        param_space={"scaling_config": ScalingConfig(num_workers=tune.grid_search([1, 3]))},
        run_config=run_config(),
    ).fit()
except hpctrain.ConfigError as error:
    print("refused:", error)
"""


def test_a_trial_that_one_allocated_node_does_not_hold_is_refused_before_anything_starts(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    options = "--nodes=1", "--ntasks-per-node=2"
    assert run_job(virtual_slurm, tmp_path, TOO_LARGE_FOR_ONE_NODE, *options) == 0
    said = "refused: trial_00001 needs 3 CPUs (3 workers with 1 each), and this allocation has 2."
    assert said in printed(tmp_path)
    assert not (tmp_path / "begun").exists()


WITH_MEMORY = """
def train(config):
    say_where(config)
    await_files("trial_00005.*.place", 1)
    hpctrain.report({"x": 1})

class Later:
    "Proposes the last trial, like the first, once the ranks of others have all memory."

    def suggest(self, trial_id):
        if trial_id not in ("trial_00000", "trial_00005"):
            return {"scaling_config": {"resources_per_worker": {"memory": 4 * 2**30}}}
        is_time = trial_id == "trial_00000" or len(list(FOLDER.glob("*.place"))) == 5
        return {"scaling_config": {}} if is_time else None

    def on_trial_result(self, trial_id, result):
        pass

    def on_trial_complete(self, trial_id, result, error):
        pass

results = tune.Tuner(
    DataParallelTrainer(train),
    tune_config=tune.TuneConfig(search_alg=Later(), num_samples=6),
    run_config=run_config(),
).fit()
assert not results.errors, results.errors
"""


def test_trials_share_out_the_memory_of_nodes_and_others_run_beside_them(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    # 8 GiB on each node.
    options = ("--nodes=2", "--mem-per-cpu=2048")
    assert run_job(virtual_slurm, tmp_path, WITH_MEMORY, *options) == 0, printed(tmp_path)
    nodes = {place["trial"]: place["node"] for place in places(tmp_path)}
    assert [nodes[f"trial_0000{i}"] for i in range(1, 5)] == ["node1", "node1", "node2", "node2"]


FAST = """
def train(config):
    rank = hpctrain.get_context().get_world_rank()
    for i in range(30):
        hpctrain.report({"m": config["q"] * i})
        (FOLDER / f"{config['q']}.{rank}.made").write_text(str(i + 1))

trainer = DataParallelTrainer(
    train,
    scaling_config=ScalingConfig(
        num_workers=2, resources_per_worker={"CPU": 4}, slurm=SlurmConfig(nodes=2)
    ),
)
results = tune.Tuner(
    trainer,
    param_space={"train_loop_config": {"q": tune.grid_search([3, 2, 1])}},
    tune_config=tune.TuneConfig(
        metric="m",
        mode="max",
        scheduler=ASHAScheduler(max_t=30, grace_period=1, reduction_factor=4),
    ),
    run_config=run_config(),
).fit()
assert not results.errors, results.errors
print("MADE", [len(result.metrics_history) for result in results])
"""


def test_a_scheduler_stops_trials_on_several_nodes_after_the_report_it_has_decided_on(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    code = f"from hpctrain.tune.schedulers import ASHAScheduler\n{FAST}"
    # As many nodes as one trial needs: one comes after the other.
    assert run_job(virtual_slurm, tmp_path, code, "--nodes=2") == 0, printed(tmp_path)
    assert "MADE [30, 4, 4]" in printed(tmp_path)
    made = {path.name: path.read_text() for path in tmp_path.glob("*.made")}
    assert made == {
        f"{q}.{rank}.made": str(number)
        for q, number in ((3, 30), (2, 4), (1, 4))
        for rank in (0, 1)
    }
