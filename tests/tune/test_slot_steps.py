"""Trials of an allocation begin one after another in the steps of their slots."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Result
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.testing.slurm import VirtualCluster
from tests.clusters import cluster_with_limits
from tests.tune.test_allocation import TIMEOUT_S, places, printed, status_of, sweeping
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm

# Each rank writes down where it is: its step, the server that it is forked from, and its CPUs.
WHERE = """
from pathlib import Path

def ancestors():
    pid, found = os.getpid(), []
    while pid > 1:
        found.append(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found

def words(pid):
    return Path(f"/proc/{pid}/cmdline").read_text().split("\\0")

def host():
    "The process that holds the step of this slot; 0 where the trial has steps of its own."
    return next((pid for pid in ancestors() if "hpctrain.execute.slot_host" in words(pid)), 0)

def where(config):
    context = hpctrain.get_context()
    place = {
        "trial": context.get_trial_name(),
        "rank": context.get_world_rank(),
        "node": os.environ["SLURMD_NODENAME"],
        "step": os.environ["SLURM_STEP_ID"],
        "cpus": int(os.environ["SLURM_CPUS_ON_NODE"]),
        "cpus_per_task": os.environ["SLURM_CPUS_PER_TASK"],
        "host": host(),
        "is_forked": "hpctrain.worker.fork_server" in words(os.getppid()),
        "command": words(os.getpid())[1:3],
        "cwd": os.getcwd(),
    }
    number = len(list(FOLDER.glob(f"{place['trial']}.{place['rank']}.*.where")))
    path = FOLDER / f"{place['trial']}.{place['rank']}.{number}.where"
    path.with_suffix(".new").write_text(json.dumps(place))
    path.with_suffix(".new").rename(path)
"""


def found(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.where"))]


def processes(cluster: VirtualCluster) -> list[str]:
    """Return the programs of this cluster that keep steps of slots: their sruns, and Python."""
    programs = []
    for name in os.listdir("/proc"):
        with suppress(OSError):
            argv = Path("/proc", name, "cmdline").read_bytes().split(b"\0")
            environment = Path("/proc", name, "environ").read_bytes()
            is_of_cluster = cluster.environ["SLURM_CONF"].encode() in environment
            if b"hpctrain.execute.slot_host" in argv and is_of_cluster:
                programs.append(Path(os.fsdecode(argv[0])).name)
    return programs


def num_hosts(cluster: VirtualCluster) -> int:
    return sum("python" in program for program in processes(cluster))


def sweep(
    cluster: VirtualCluster, folder: Path, code: str, *options: str, nodes: int = 1
) -> list[dict[str, Any]]:
    """Run a sweep to its end; return where its ranks were. No step of a slot is left."""
    with sweeping(cluster, folder, f"{WHERE}\n{code}", *options, nodes=nodes) as process:
        assert process.wait(TIMEOUT_S) == 0, printed(folder)
        assert processes(cluster) == [], printed(folder)
    return found(folder)


ONE_BY_ONE = """
def train(config):
    where(config)
    hpctrain.report({"x": config["x"]})

results = tune.Tuner(
    train,
    param_space={"x": tune.grid_search([0, 1, 2, 3, 4, 5])},
    tune_config=tune.TuneConfig(max_concurrent_trials=2),
    run_config=run_config(),
).fit()
assert not results.errors, results.errors
assert [result.metrics["x"] for result in results] == [0, 1, 2, 3, 4, 5]
"""


def test_trials_of_a_slot_are_forked_in_one_step(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    places = sweep(virtual_slurm, tmp_path, ONE_BY_ONE)
    assert len(places) == 6
    assert all(place["is_forked"] and place["host"] for place in places), printed(tmp_path)
    assert {tuple(place["command"]) for place in places} == {("-m", "hpctrain.worker.main")}
    assert len({place["step"] for place in places}) == 2, "two trials at a time, each in its step"
    for place in places:
        assert (place["cpus"], place["cpus_per_task"]) == (1, "1")
        assert "not-forked" not in [
            event["event"] for event in read_events(RunPaths(tmp_path / "sweep" / place["trial"]))
        ]


def test_a_site_that_wants_no_forks_has_no_steps_of_slots(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    code = f"os.environ['HPCTRAIN_FORK_SERVER'] = '0'\n{ONE_BY_ONE}"
    places = sweep(virtual_slurm, tmp_path, code)
    assert [place["host"] for place in places] == 6 * [0]
    assert len({place["step"] for place in places}) == 6


OTHER_NEEDS = """
def train(config):
    where(config)
    hpctrain.report({"done": 1})

def scaling(workers, cpus, nodes=1):
    return ScalingConfig(
        num_workers=workers,
        resources_per_worker={"CPU": cpus},
        slurm=SlurmConfig(nodes=nodes),
    )

needs = [scaling(1, 1), scaling(1, 3), scaling(1, 3), scaling(2, 2), scaling(2, 1, nodes=2)]
results = tune.Tuner(
    DataParallelTrainer(train),
    param_space={"scaling_config": tune.grid_search(needs)},
    tune_config=tune.TuneConfig(max_concurrent_trials=1),
    run_config=run_config(),
).fit()
assert not results.errors, results.errors
"""


def test_a_trial_with_another_need_gets_a_step_of_that_size(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    places = sweep(virtual_slurm, tmp_path, OTHER_NEEDS, nodes=2)
    by_trial: dict[str, list[dict[str, Any]]] = {}
    for place in places:
        by_trial.setdefault(place["trial"], []).append(place)
    trials = [by_trial[name] for name in sorted(by_trial)]
    assert [ranks[0]["cpus"] for ranks in trials[:4]] == [1, 3, 3, 4]
    assert trials[1][0]["step"] == trials[2][0]["step"]
    assert len({rank["step"] for ranks in trials for rank in ranks}) == 5
    assert all(rank["host"] for ranks in trials for rank in ranks)
    assert [rank["cpus_per_task"] for rank in trials[3]] == ["2", "2"]
    assert [rank["cpus"] for rank in trials[4]] == [1, 1]


KILLED_DURING = """
def train(config):
    where(config)
    saved = hpctrain.get_checkpoint()
    hpctrain.report({"x": config["x"]}, Checkpoint.from_dict({"step": 1}))
    if config["x"] == 0 and saved is None:
        os.kill(host(), signal.SIGKILL)
        time.sleep(60)
    hpctrain.report({"x": config["x"]})

results = tune.Tuner(
    train,
    param_space={"x": tune.grid_search([0, 1, 2])},
    tune_config=tune.TuneConfig(max_concurrent_trials=1),
    run_config=run_config(failure_config=FailureConfig(max_failures=1)),
).fit()
assert not results.errors, results.errors
"""


def test_a_step_that_is_killed_under_a_trial_costs_an_attempt_and_the_next_trial_has_another(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    places = sweep(virtual_slurm, tmp_path, KILLED_DURING)
    assert [place["trial"][-1] for place in places] == ["0", "0", "1", "2"]
    first, again, *others = places
    assert again["host"] == 0, "an executor whose step is gone starts steps of its own"
    assert first["step"] not in {place["step"] for place in (again, *others)}
    assert len({place["step"] for place in others}) == 1
    assert all(place["host"] for place in others)
    assert len(Result.from_path(tmp_path / "sweep" / "trial_00000").attempts) == 2


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
    hpctrain.report({"step": os.environ["SLURM_STEP_ID"]})

results = tune.Tuner(
    train,
    param_space={"x": tune.grid_search([0, 1, 2])},
    tune_config=tune.TuneConfig(max_concurrent_trials=1, scheduler=Kills()),
    run_config=run_config(),
).fit()
assert not results.errors, results.errors
"""


def test_a_step_that_is_killed_between_two_trials_costs_none(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    first, *others = sweep(virtual_slurm, tmp_path, KILLED_BETWEEN)
    assert len(others) == 2
    assert first["host"]
    # Whether the second one meets the dying step, and goes on without, is up to the clock.
    assert first["step"] not in {place["step"] for place in others}
    assert others[1]["host"]


LEFTOVERS = """
import subprocess

def train(config):
    where(config)
    before = FOLDER / "left"
    alive = before.exists() and Path(f"/proc/{before.read_text()}").exists()
    if config["x"] == 0:
        # In a session of its own, and nobody's child.
        subprocess.run(["sh", "-c", f"setsid sleep 600 & echo $! > {before}"], check=True)
        left = before.read_text().strip()
        before.write_text(left)
        assert Path(f"/proc/{left}").exists()
    hpctrain.report({"alive": alive, "x": config["x"]})

results = tune.Tuner(
    train,
    param_space={"x": tune.grid_search([0, 1])},
    tune_config=tune.TuneConfig(max_concurrent_trials=1),
    run_config=run_config(),
).fit()
assert not results.errors, results.errors
assert [result.metrics["alive"] for result in results] == [False, False]
"""


def test_what_a_trial_leaves_behind_ends_before_the_next_one(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    first, second = sweep(virtual_slurm, tmp_path, LEFTOVERS)
    assert first["host"] == second["host"] != 0


LEFT_BY_ATTEMPT = """
import subprocess

def train(config):
    where(config)
    before = FOLDER / "left"
    if not before.exists():
        subprocess.run(["sh", "-c", f"setsid sleep 600 & echo $! > {before}"], check=True)
        assert Path("/proc", before.read_text().strip()).exists()
        raise ValueError("no more")
    hpctrain.report({"alive": Path("/proc", before.read_text().strip()).exists()})

results = tune.Tuner(
    train,
    run_config=run_config(failure_config=FailureConfig(max_failures=1)),
).fit()
assert not results.errors, results.errors
assert [result.metrics["alive"] for result in results] == [False]
"""


def test_what_an_attempt_leaves_behind_ends_before_the_next_one(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    first, second = sweep(virtual_slurm, tmp_path, LEFT_BY_ATTEMPT)
    assert first["host"] == second["host"] != 0


FAILS = """
def train(config):
    where(config)
    if config["x"] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    hpctrain.report({"x": config["x"]})

results = tune.Tuner(
    train,
    param_space={"x": tune.grid_search([0, 1, 2, 3])},
    tune_config=tune.TuneConfig(max_concurrent_trials=1),
    run_config=run_config(),
).fit()
assert len(results.errors) == 1, results.errors
print("error:", results.errors[0])
"""


def test_a_trial_that_fails_costs_no_other_and_the_next_one_has_a_new_step(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    places = sweep(virtual_slurm, tmp_path, FAILS)
    assert [bool(place["host"]) for place in places] == 4 * [True]
    steps = [place["step"] for place in places]
    assert steps[0] == steps[1] != steps[2] == steps[3]
    assert "error: rank 0 of 1 on node1 failed" in printed(tmp_path)
    assert "SIGKILL" in printed(tmp_path)


OUT_OF_MEMORY = """
def train(config):
    where(config)
    hpctrain.report({"x": config["x"]})
    if config["x"] == 1:
        filled = bytearray(2**30)
        for place in range(0, len(filled), 4096):
            filled[place] = 1
        time.sleep(60)

results = tune.Tuner(
    DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(resources_per_worker={"CPU": 1, "memory": 300 * 2**20}),
    ),
    param_space={"train_loop_config": {"x": tune.grid_search([0, 1, 2, 3])}},
    tune_config=tune.TuneConfig(max_concurrent_trials=2),
    run_config=run_config(),
).fit()
print("error:", *results.errors)
assert len(results.errors) == 1, results.errors
"""


def test_a_trial_that_runs_out_of_memory_costs_no_other(tmp_path: Path) -> None:
    with cluster_with_limits() as cluster:
        places = sweep(cluster, tmp_path, OUT_OF_MEMORY, "--mem-per-cpu=1024")
    assert [bool(place["host"]) for place in places] == 4 * [True]
    assert "out of memory" in printed(tmp_path)


ALL_MEMORY = """
def train(config):
    where(config)
    hpctrain.report({"x": config["x"]}, Checkpoint.from_dict({"x": config["x"]}))
    if config["x"] == 1:
        # More than the job has.
        filled = bytearray(4 * 2**30)
        for place in range(0, len(filled), 4096):
            filled[place] = 1
    other = FOLDER / "sweep/trial_00001"
    deadline = time.monotonic() + 80
    while config["x"] == 0 and hpctrain.Result.from_path(other).state != "failed":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    hpctrain.report({"x": config["x"]})

results = tune.Tuner(
    train,
    param_space={"x": tune.grid_search([0, 1, 2, 3])},
    tune_config=tune.TuneConfig(max_concurrent_trials=2),
    run_config=run_config(),
).fit()
print("error:", *results.errors)
print("attempts:", [len(result.attempts) for result in results])
"""


def test_one_without_a_limit_of_its_own_that_takes_all_of_the_job_costs_no_other(
    tmp_path: Path,
) -> None:
    """Of all processes in the job the kernel ends the one with the most memory."""
    with cluster_with_limits() as cluster:
        places = sweep(cluster, tmp_path, ALL_MEMORY, "--mem=1536")
    assert len(places) == 4
    assert "attempts: [1, 1, 1, 1]" in printed(tmp_path)
    assert "out of memory" in printed(tmp_path)
    states = [Result.from_path(tmp_path / f"sweep/trial_0000{i}").state for i in range(4)]
    assert states == ["finished", "failed", "finished", "finished"]


TUNER_KILLED = """
(FOLDER / "pid").write_text(str(os.getpid()))

def train(config):
    where(config)
    goes_on(config)

tune.Tuner(
    train,
    param_space={"x": tune.grid_search([1, 2, 3])},
    tune_config=tune.TuneConfig(max_concurrent_trials=2),
    run_config=run_config(),
).fit()
"""


def kill_tuner(
    cluster: VirtualCluster, folder: Path, code: str, *, shared: str = "", nodes: int, trials: int
) -> None:
    """Kill the tuner of a sweep with two ranks at work: their trials end, and then the steps.

    Parameters
    ----------
    code, shared
        That of the tuner, and that of its job too.
    trials
        How many the ranks are of.
    """
    # The job goes on without the tuner.
    code = f"{WHERE}\nimport subprocess\n{shared}if 'tuner' in sys.argv:\n" + "\n".join(
        f"    {line}" for line in code.splitlines()
    )
    code += (
        "\nelse:\n"
        "    subprocess.run([sys.executable, __file__, 'tuner'])\n"
        "    (FOLDER / 'killed').touch()\n"
        "    await_files('over', 1)\n"
    )
    with sweeping(cluster, folder, code, nodes=nodes) as process:
        wait_until(lambda: len(found(folder)) == 2, lambda: printed(folder), process=process)
        assert num_hosts(cluster) == 2
        os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
        wait_until((folder / "killed").exists, lambda: printed(folder), process=process)
        assert num_hosts(cluster) == 2, "trials go on"
        (folder / "go").touch()
        wait_until(lambda: not processes(cluster), lambda: printed(folder), process=process)
        for number in range(trials):
            result = Result.from_path(folder / "sweep" / f"trial_0000{number}")
            assert result.state == "finished"
            assert len(result.attempts) == 1
        (folder / "over").touch()
        assert process.wait(TIMEOUT_S) == 0, printed(folder)


def test_no_step_outlives_a_killed_tuner_and_the_trials_that_it_has_begun(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    kill_tuner(virtual_slurm, tmp_path, TUNER_KILLED, nodes=1, trials=2)


SIGNALLED = """
def train(config):
    goes_on(config)

results = tune.Tuner(train, param_space={"x": 1}, run_config=run_config()).fit()
"""


def test_a_signal_for_the_step_lets_its_trial_stop_at_its_next_report(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    with sweeping(virtual_slurm, tmp_path, SIGNALLED, nodes=1) as process:
        wait_until(lambda: places(tmp_path), lambda: printed(tmp_path), process=process)
        assert num_hosts(virtual_slurm) == 1
        (place,) = places(tmp_path)
        # As Slurm does before the end of a job: every process of every step gets it.
        subprocess.run(
            [
                "scancel",
                "--signal=USR2",
                f"{status_of(tmp_path, 'trial_00000').job_id}.{place['step']}",
            ],
            env={**os.environ, **virtual_slurm.environ},
            check=True,
            timeout=TIMEOUT_S,
        )
        assert process.wait(TIMEOUT_S) == 5, printed(tmp_path)
    assert "got SIGUSR2" in printed(tmp_path)
    result = Result.from_path(tmp_path / "sweep" / "trial_00000")
    assert len(result.attempts) == 1
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["step"] == result.metrics_history[-1]["step"]


STOPPED = """
from hpctrain.tune.schedulers import ASHAScheduler

def train(config):
    where(config)
    for step in range(20):
        hpctrain.report({"loss": config["x"] + step})
        time.sleep(0.05)

results = tune.Tuner(
    train,
    param_space={"x": tune.grid_search([0, 1, 2, 3])},
    tune_config=tune.TuneConfig(
        metric="loss",
        mode="min",
        scheduler=ASHAScheduler(max_t=20, grace_period=1, reduction_factor=4),
        max_concurrent_trials=1,
    ),
    run_config=run_config(),
).fit()
assert not results.errors, results.errors
"""


def test_a_trial_that_a_scheduler_stops_leaves_its_step_to_the_next_one(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    places = sweep(virtual_slurm, tmp_path, STOPPED)
    assert len({place["step"] for place in places}) == 1
    assert len(places) == 4
    lengths = [
        len(Result.from_path(tmp_path / "sweep" / f"trial_0000{i}").metrics_history)
        for i in range(4)
    ]
    assert lengths[0] == 20
    assert lengths[-1] < 20


LOSSES = """
import importlib

def train(config):
    import torch
    import its_own

    where(config)
    torch.manual_seed(config["seed"])
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    model = hpctrain.torch.prepare_model(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(3):
        loss = (model(torch.randn(32, 16)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hpctrain.report({"loss": loss.item().hex(), "is_own": its_own.NUMBER})

import hpctrain.torch
from hpctrain.torch import TorchTrainer

results = tune.Tuner(
    TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2, slurm=SlurmConfig(nodes=1))),
    param_space={"train_loop_config": {"seed": tune.grid_search([1, 2, 3])}},
    tune_config=tune.TuneConfig(max_concurrent_trials=1),
    run_config=run_config(),
).fit()
assert not results.errors, results.errors
"""


def test_losses_are_those_of_trials_with_steps_of_their_own(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    losses = []
    for value in "10":
        folder = tmp_path / value
        folder.mkdir()
        (folder / "its_own.py").write_text("NUMBER = 1\n")
        code = f"os.environ['HPCTRAIN_FORK_SERVER'] = '{value}'\n{LOSSES}"
        places = sweep(virtual_slurm, folder, code)
        assert {bool(place["host"]) for place in places} == {value == "1"}
        runs = [folder / "sweep" / f"trial_0000{i}" for i in range(3)]
        losses.append([[m["loss"] for m in Result.from_path(run).metrics_history] for run in runs])
    assert losses[0] == losses[1]
    assert len({loss for run in losses[0] for loss in run}) == 9


EDITED = """
def train(config):
    import its_own

    where(config)
    hpctrain.report({"number": its_own.NUMBER})
    (FOLDER / "its_own.py").write_text(f"NUMBER = {config['x'] + 10}")

results = tune.Tuner(
    train,
    param_space={"x": tune.grid_search([0, 1, 2])},
    tune_config=tune.TuneConfig(max_concurrent_trials=1),
    run_config=run_config(),
).fit()
assert not results.errors, results.errors
print("numbers", [result.metrics["number"] for result in results])
"""


def test_own_modules_are_imported_in_each_trial_as_they_were_when_the_sweep_began(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    (tmp_path / "its_own.py").write_text("NUMBER = 1\n")
    found_places = sweep(virtual_slurm, tmp_path, EDITED)
    assert len({place["step"] for place in found_places}) == 1
    assert "numbers [1, 1, 1]" in printed(tmp_path)


def test_ranks_that_do_not_start_in_the_step_start_in_one_of_their_own(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    # hydra refuses it; srun does not read it.
    code = f"os.environ['MPIEXEC_PORT_RANGE'] = 'bogus'\n{ONE_BY_ONE}"
    found_places = sweep(virtual_slurm, tmp_path, code)
    assert [place["host"] for place in found_places] == 6 * [0]
    first = (tmp_path / "sweep" / "trial_00000" / "executor.log").read_text()
    assert "starts steps of its own, and none in the step of its slot: mpiexec ended" in first
    assert "own: 3 in a row could not begin in that of their slot" in printed(tmp_path)
    assert (tmp_path / "sweep" / "trial_00005" / "executor.log").read_text() == ""
    # By srun: our own mpiexec is what has failed.
    assert len(Result.from_path(tmp_path / "sweep" / "trial_00000").attempts) == 2
    assert [place["cpus"] for place in found_places] == 6 * [1]
