"""Sweeps whose trials are jobs of the virtual cluster, submitted from a login node."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpctrain import ConfigError, DataParallelTrainer, Result, RunConfig, ScalingConfig, SlurmConfig
from hpctrain.launch.life import LifeTest
from hpctrain.launch.live_watch import JobBoard
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import RunStatus, read_status
from hpctrain.testing.slurm import ClusterSpec, VirtualCluster
from hpctrain.tune.job_life import JobLife
from hpctrain.tune.jobs_runner import JobsRunner
from hpctrain.tune.ledger import SweepPaths, SweepRecord, read_record
from hpctrain.tune.runner import End, NotNowError
from hpctrain.tune.trial import Trial
from tests.clusters import own_cluster
from tests.docs.code_blocks import blocks_of
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm

DOCS = Path(__file__).parents[2] / "docs"
HPCTRAIN = [sys.executable, "-m", "hpctrain.cli"]
TIMEOUT_S = 90

# A trial goes on until there is a file for it, and begins where its checkpoint is.
TRIALS = """
import os, pathlib, sys, time
import hpctrain
from hpctrain import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig, tune
from hpctrain.tune.schedulers import ASHAScheduler, TrialScheduler

FOLDER = pathlib.Path(os.environ["FOLDER"])

def goes_on(config):
    saved = hpctrain.get_checkpoint()
    step = 0 if saved is None else saved.to_dict()["step"] + 1
    name = hpctrain.get_context().get_trial_name()
    deadline = time.monotonic() + 80
    while not (FOLDER / "go").exists() and not (FOLDER / f"go.{name}").exists():
        assert time.monotonic() < deadline
        hpctrain.report({"step": step, "x": config["x"]}, Checkpoint.from_dict({"step": step}))
        step += 1
        time.sleep(0.1)
    hpctrain.report({"step": step, "x": config["x"]})

def trainer(function, **options):
    slurm = SlurmConfig(time="10:00", **options)
    return DataParallelTrainer(function, scaling_config=ScalingConfig(num_workers=1, slurm=slurm))

def run_config(**options):
    return RunConfig(storage_path=str(FOLDER), name="sweep", **options)

def space(number):
    return {"train_loop_config": {"x": tune.grid_search(list(range(number)))}}

def sweep_of(function, number, **config):
    if tune.Tuner.can_restore(FOLDER / "sweep"):
        return tune.Tuner.restore(FOLDER / "sweep", function)
    return tune.Tuner(
        function,
        param_space=space(number),
        tune_config=tune.TuneConfig(launcher="jobs", **config),
        run_config=run_config(),
    )
"""


class Login:
    """A directory on a login node of a cluster, with a script of a sweep."""

    def __init__(self, cluster: VirtualCluster, folder: Path, code: str) -> None:
        self.folder = folder
        self.script = folder / "sweep.py"
        self.script.write_text(TRIALS + code)
        clean = {name: value for name, value in os.environ.items() if "HPCTRAIN" not in name}
        self.environment = {**clean, **cluster.environ, "FOLDER": str(folder)}

    @contextmanager
    def sweeping(self) -> Iterator[subprocess.Popen[str]]:
        """Run the script for the time of the block at most, and leave no job behind."""
        with open(self.folder / "printed", "a", encoding="utf-8") as printed:
            process = subprocess.Popen(
                [sys.executable, str(self.script)],
                env=self.environment,
                stdout=printed,
                stderr=subprocess.STDOUT,
                text=True,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait(TIMEOUT_S)

    def __call__(self, *argv: str) -> str:
        done = subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self) -> str:
        """Run the script to its end; return what it printed."""
        with self.sweeping() as process:
            assert process.wait(TIMEOUT_S) == 0, self.printed()
        return self.printed()

    def printed(self) -> str:
        return (self.folder / "printed").read_text()

    def jobs(self) -> dict[str, tuple[str, str]]:
        """Return name and state of the jobs of the sweep that wait or run, by id."""
        rows = [line.split("|") for line in self("squeue", "-h", "--format=%A|%j|%T").splitlines()]
        return {
            job_id: (name, state)
            for job_id, name, state in rows
            if name.startswith("sweep-") and state in ("PENDING", "RUNNING")
        }

    def cancel_all(self) -> None:
        if jobs := list(self.jobs()):
            self("scancel", *jobs)

    @property
    def record(self) -> SweepRecord:
        return read_record(SweepPaths(root=self.folder / "sweep"))

    def states(self) -> list[str]:
        return [trial.state.value for trial in self.record.trials.values()]

    def status(self, number: int) -> RunStatus | None:
        return read_status(RunPaths(self.path(number)))

    def path(self, number: int) -> Path:
        return self.folder / "sweep" / f"trial_{number:05d}"

    def result(self, number: int) -> Result:
        return Result.from_path(self.path(number))

    def wait_for_checkpoints(self, *numbers: int) -> None:
        def are_there() -> bool:
            return all(any(self.path(n).glob("checkpoints/0*")) for n in numbers)

        wait_until(are_there, self.printed, timeout_s=TIMEOUT_S)

    def job_of(self, number: int) -> str:
        status = self.status(number)
        assert status is not None
        assert status.job_id is not None
        return status.job_id

    def restarts(self, job_id: str) -> int:
        found = re.search(r"Restarts=(\d+)", self("scontrol", "show", "job", job_id))
        assert found is not None
        return int(found[1])


@pytest.fixture
def leaves_nothing(virtual_slurm: VirtualCluster, tmp_path: Path) -> Iterator[None]:
    yield
    Login(virtual_slurm, tmp_path, "").cancel_all()


def are_without_gaps(result: Result) -> bool:
    """Return whether no step was lost, and none was done twice."""
    steps = [metrics["step"] for metrics in result.metrics_history]
    return steps == list(range(len(steps)))


MANY = """
def train(config):
    hpctrain.report({"x": config["x"]})

results = sweep_of(trainer(train), 6, max_jobs=2).fit()
print("ended", sorted(result.metrics["x"] for result in results), results.num_errors)
"""


def test_each_trial_is_a_job_and_never_are_there_more_than_max_jobs(
    virtual_slurm: VirtualCluster, tmp_path: Path, leaves_nothing: None
) -> None:
    login = Login(virtual_slurm, tmp_path, MANY)
    seen: list[dict[str, tuple[str, str]]] = []
    with login.sweeping() as process:
        while process.poll() is None:
            seen.append(login.jobs())
        assert process.wait(TIMEOUT_S) == 0, login.printed()
    assert "ended [0, 1, 2, 3, 4, 5] 0" in login.printed()
    assert max(map(len, seen)) <= 2
    names = {name for jobs in seen for name, _ in jobs.values()}
    assert names <= {f"sweep-trial_0000{number}" for number in range(6)}
    assert len(names) >= 3, "it was looked often"
    jobs = [login.job_of(number) for number in range(6)]
    assert len(set(jobs)) == 6, "a job each, and no array"
    assert login.states() == 6 * ["TERMINATED"]
    # What has ended begins no job when the script is started again.
    login.run()
    assert [login.job_of(number) for number in range(6)] == jobs


# What the page leaves to its reader.
OF_A_READER = """
import hpctrain

def train(config):
    hpctrain.report({"lr": config["lr"]})

"""


def test_the_script_of_the_page_runs_and_goes_on(
    virtual_slurm: VirtualCluster, tmp_path: Path, leaves_nothing: None
) -> None:
    pytest.importorskip("torch")
    (page,) = [b.text for b in blocks_of(DOCS / "tune.rst") if b.name == "tune-jobs"]
    for theirs, ours in {
        'partition="gpu", account="abc", time="4:00:00"': 'time="10:00"',
        "num_workers=4, use_gpu=True": "num_workers=2",
        "num_samples=50": "num_samples=2",
        "/scratch/me": str(tmp_path),
    }.items():
        assert theirs in page
        page = page.replace(theirs, ours)
    login = Login(virtual_slurm, tmp_path, f"{OF_A_READER}{page}\nprint('ended', len(results))\n")
    assert "ended 2" in login.run()
    jobs = [login.job_of(number) for number in range(2)]
    login.run()
    assert [login.job_of(number) for number in range(2)] == jobs


GOES_ON = """
results = sweep_of(trainer(goes_on), 3, max_jobs=3).fit()
print("ended", [result.metrics["x"] for result in results], results.num_errors)
"""


def test_a_requeue_and_a_scancel_are_of_one_trial_and_of_no_sibling(
    virtual_slurm: VirtualCluster, tmp_path: Path, leaves_nothing: None
) -> None:
    login = Login(virtual_slurm, tmp_path, GOES_ON)
    with login.sweeping() as process:
        login.wait_for_checkpoints(0, 1, 2)
        jobs = [login.job_of(number) for number in range(3)]
        login("scontrol", "requeue", jobs[0])
        login("scancel", jobs[2])
        wait_until(lambda: len(login.result(0).attempts) == 2, login.printed, process=process)
        wait_until(lambda: "TERMINATED" in login.states(), login.printed, process=process)
        shown = login(*HPCTRAIN, "tune", "status", str(tmp_path / "sweep"))
        assert shown.splitlines()[1].split()[:3] == ["TRIAL", "STATE", "JOB"]
        assert all(job_id in shown for job_id in jobs)
        (tmp_path / "go").touch()
        assert process.wait(TIMEOUT_S) == 0, login.printed()
    assert "ended [0, 1, 2] 0" in login.printed()
    assert [login.job_of(number) for number in range(3)] == jobs
    assert [login.restarts(job_id) for job_id in jobs] == [1, 0, 0]
    assert [len(login.result(number).attempts) for number in range(3)] == [2, 1, 1]
    assert [login.result(number).state for number in range(3)] == [
        "finished",
        "finished",
        "stopped",
    ]
    assert are_without_gaps(login.result(0)), "it goes on from its checkpoint"


def test_a_killed_tuner_ends_no_job_and_the_next_one_adopts_them(
    virtual_slurm: VirtualCluster, tmp_path: Path, leaves_nothing: None
) -> None:
    login = Login(virtual_slurm, tmp_path, GOES_ON.replace("3, max_jobs=3", "4, max_jobs=3"))
    with login.sweeping() as process:
        login.wait_for_checkpoints(0, 1, 2)
        jobs = [login.job_of(number) for number in range(3)]
        process.kill()
        assert process.wait(TIMEOUT_S) == -signal.SIGKILL
    # One ends while nobody looks.
    (tmp_path / "go.trial_00000").touch()
    wait_until(lambda: login.result(0).state == "finished")
    with login.sweeping() as process:
        wait_until(lambda: "trial_00001 goes on" in login.printed(), login.printed, process=process)
        assert [login.job_of(number) for number in range(3)] == jobs
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == -signal.SIGINT, login.printed()
    said = login.printed().splitlines()[-1]
    assert f"these go on: trial_00001 (job {jobs[1]}), trial_00002 (job {jobs[2]})" in said
    assert f"hpctrain tune stop {tmp_path / 'sweep'} TRIAL" in said
    assert set(jobs[1:]) <= set(login.jobs()), "Ctrl-C ends none either"
    login(*HPCTRAIN, "tune", "stop", str(tmp_path / "sweep"), "trial_00001")
    (tmp_path / "go.trial_00002").touch()
    (tmp_path / "go.trial_00003").touch()
    login.run()
    assert "ended [0, 1, 2, 3] 0" in login.printed()
    assert login.states() == 4 * ["TERMINATED"]
    assert [login.job_of(number) for number in range(3)] == jobs
    assert [len(login.result(number).attempts) for number in range(4)] == [1, 1, 1, 1]
    states = [login.result(number).state for number in range(4)]
    assert states == ["finished", "stopped", "finished", "finished"]


# The better trial pauses once, and the worse one begins to report when the better one is through.
SCHEDULED = """
def train(config):
    saved = hpctrain.get_checkpoint()
    step = 0 if saved is None else saved.to_dict()["step"] + 1
    while config["x"] == 0 and not (FOLDER / "through").exists():
        time.sleep(0.05)
    deadline = time.monotonic() + 80
    while time.monotonic() < deadline:
        hpctrain.report({"score": config["x"], "step": step}, Checkpoint.from_dict({"step": step}))
        step += 1
        time.sleep(0.2)
        if config["x"] and saved is not None and step > 3:
            (FOLDER / "through").touch()
            return

class Pauses(ASHAScheduler):
    has_paused = False

    def on_result(self, trial_id, metrics):
        if trial_id == "trial_00001" and not self.has_paused:
            self.has_paused = True
            return TrialScheduler.PAUSE
        return super().on_result(trial_id, metrics)

scheduler = Pauses(max_t=2000, grace_period=3, reduction_factor=2)
config = {"metric": "score", "mode": "max", "scheduler": scheduler}
results = sweep_of(trainer(train), 2, max_jobs=2, **config).fit()
print("ended", [result.metrics["step"] for result in results], results.num_errors)
"""


def test_a_scheduler_stops_a_job_early_and_a_paused_trial_goes_on_as_another_job(
    virtual_slurm: VirtualCluster, tmp_path: Path, leaves_nothing: None
) -> None:
    login = Login(virtual_slurm, tmp_path, SCHEDULED)
    printed = login.run()
    worse, better = login.result(0), login.result(1)
    assert worse.state == "stopped"
    assert "stopped by the scheduler after report" in login.record.trials["trial_00000"].reason
    assert worse.checkpoint is not None, "it stopped at a report, and was not killed"
    assert len(worse.job_ids) == 1
    assert "trial_00001 is paused after report" in printed
    assert better.state == "finished"
    assert len(set(better.job_ids)) == 2
    assert are_without_gaps(better)
    assert login.states() == 2 * ["TERMINATED"]


def trials_runner(folder: Path, slurm: SlurmConfig) -> JobsRunner:
    class Quick(JobsRunner):
        """Believes at once that a job is over: this filesystem shows no files late."""

        def _make_life(self, paths: RunPaths) -> LifeTest:
            return JobLife(paths, JobBoard(), late_files_s=0)

    return Quick(
        lambda name, values: DataParallelTrainer(
            print,
            scaling_config=ScalingConfig(num_workers=1, slurm=slurm),
            run_config=RunConfig(name=name, storage_path=str(folder), verbose=0, launcher="slurm"),
        ),
        lambda trial_id: folder / trial_id,
    )


def wait_for_end(runner: JobsRunner, trial: Trial) -> End:
    end = wait_until(lambda: runner.look(trial).end)
    assert end is not None
    return end


def test_jobs_that_are_cancelled_or_die_before_they_begin_end_their_trials(
    in_slurm: VirtualCluster, tmp_path: Path, leaves_nothing: None
) -> None:
    login = Login(in_slurm, tmp_path, "")
    sweep = tmp_path / "sweep"
    held = trials_runner(sweep, SlurmConfig(sbatch_args=["--hold"]))
    waiting = Trial(trial_id="trial_00000", config={})
    held.start(waiting)
    assert not held.look(waiting).end
    (shown,) = login.jobs().values()
    assert shown == ("sweep-trial_00000", "PENDING")
    login("scancel", login.job_of(0))
    end = wait_for_end(held, waiting)
    assert end.was_stopped
    assert not end.failed
    assert "was cancelled before it began" in end.reason
    # A script that ends by itself says why.
    broken = trials_runner(sweep, SlurmConfig(setup=["echo no such module; exit 7"]))
    dying = Trial(trial_id="trial_00001", config={})
    broken.start(dying)
    end = wait_for_end(broken, dying)
    assert end.failed
    assert "no such module" in end.reason
    assert not broken.attach(dying), "it is to begin again"


def test_a_stop_takes_a_job_back_that_has_not_begun(
    in_slurm: VirtualCluster, tmp_path: Path, leaves_nothing: None
) -> None:
    login = Login(in_slurm, tmp_path, "")
    runner = trials_runner(tmp_path / "sweep", SlurmConfig(sbatch_args=["--hold"]))
    trial = Trial(trial_id="trial_00000", config={})
    runner.start(trial)
    assert runner.attach(trial)
    runner.stop(trial)
    assert not login.jobs()
    end = wait_for_end(runner, trial)
    assert end.was_stopped
    assert not end.failed


@pytest.mark.parametrize(
    ("printed", "error", "says"),
    [
        ("Unable to contact slurm controller (connect failure)", NotNowError, "Unable to contact"),
        (
            "Unable to create job record, try again",
            NotNowError,
            r"no more jobs now \(MaxJobCount\)",
        ),
        ("QOSMaxSubmitJobPerUserLimit", NotNowError, r"\(QOSMaxSubmitJobPerUserLimit\)"),
        ("QOSMaxWallDurationPerJobLimit", ConfigError, "QOSMaxWallDurationPerJobLimit"),
        ("Invalid account or account/partition combination", ConfigError, "Invalid account"),
    ],
)
def test_a_trial_waits_for_what_passes_and_is_refused_what_does_not(
    printed: str,
    error: type[Exception],
    says: str,
    in_slurm: VirtualCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sbatch is one of ours: these answers are hard to get from a cluster."""
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(f"#!/bin/sh\necho 'sbatch: error: {printed}' >&2\nexit 1\n")
    sbatch.chmod(0o755)
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", f"{sbatch.parent}:{path}")
    runner = trials_runner(tmp_path / "sweep", SlurmConfig(sbatch_args=["--hold"]))
    trial = Trial(trial_id="trial_00000", config={})
    with pytest.raises(error, match=says):
        runner.start(trial)
    assert not runner.attach(trial), "no job waits or runs"
    # Later it is taken.
    monkeypatch.setenv("PATH", path)
    runner.start(trial)
    assert runner.attach(trial)
    runner.end([trial], patience_s=45.0)
    assert wait_for_end(runner, trial).was_stopped


@pytest.fixture(scope="module")
def limited() -> Iterator[VirtualCluster]:
    """A cluster that takes two jobs of this user at a time."""
    spec = ClusterSpec(num_nodes=2, cpus_per_node=4, gpus_per_node=0, accounting=True)
    accounting = ("add account few cluster=hpctrain", "add user root account=few maxsubmitjobs=2")
    with own_cluster(spec, *accounting) as cluster:
        yield cluster


LIMITED = """
def train(config):
    hpctrain.report({"x": config["x"]})

results = sweep_of(trainer(train, account="few"), 4, max_jobs=4).fit()
print("ended", sorted(result.metrics["x"] for result in results), results.num_errors)
"""


def test_a_sweep_lives_with_the_number_of_jobs_that_the_site_takes(
    limited: VirtualCluster, tmp_path: Path
) -> None:
    login = Login(limited, tmp_path, LIMITED)
    printed = login.run()
    assert "ended [0, 1, 2, 3] 0" in printed
    waits = "trial_00002 waits, and is tried again later: Slurm takes no more jobs now ("
    assert printed.count("waits, and is tried again later") == 1, "it is said once"
    assert waits in printed
    assert "AssocMaxSubmitJobLimit" in printed
    assert login.states() == 4 * ["TERMINATED"]
    events = [json.loads(line) for line in (tmp_path / "sweep/tune.jsonl").read_text().splitlines()]
    assert all(event["event"] != "trial-failed" for event in events)
    assert [len(set(login.result(number).job_ids)) for number in range(4)] == [1, 1, 1, 1]


NOT_REQUEUED = """
limits = {"account": "few", "sbatch_args": ["--no-requeue"]}
results = sweep_of(trainer(goes_on, **limits), 3, max_jobs=2).fit()
print("ended", [result.metrics["x"] for result in results], results.num_errors)
"""


def test_a_job_that_may_not_be_requeued_is_followed_by_another_one_within_the_limits(
    limited: VirtualCluster, tmp_path: Path
) -> None:
    """The site takes two jobs, and both are at work: a third one would be refused."""
    login = Login(limited, tmp_path, NOT_REQUEUED)
    with login.sweeping() as process:
        login.wait_for_checkpoints(0, 1)
        first = login.job_of(0)
        login("scancel", "--signal=USR2", first)
        wait_until(lambda: len(login.result(0).attempts) == 2, login.printed, process=process)
        assert login.job_of(0) != first
        (tmp_path / "go").touch()
        assert process.wait(TIMEOUT_S) == 0, login.printed()
    assert "trial_00000 is to go on: job " in login.printed()
    assert "ended [0, 1, 2] 0" in login.printed()
    assert "waits, and is tried again later" not in login.printed(), "no job is one too many"
    result = login.result(0)
    assert len(result.job_ids) == 2
    assert are_without_gaps(result), "it goes on from its checkpoint"
    assert len(login.result(1).job_ids) == 1


def test_a_trial_without_a_tuner_waits_if_the_site_takes_no_further_job(
    limited: VirtualCluster, tmp_path: Path
) -> None:
    login = Login(limited, tmp_path, NOT_REQUEUED)
    with login.sweeping() as process:
        login.wait_for_checkpoints(0, 1)
        process.kill()
        process.wait(TIMEOUT_S)
    login("scancel", "--signal=USR2", login.job_of(0))
    wait_until(lambda: login.result(0).state == "stopped")
    assert "The tuner of its sweep continues it in another job" in str(login.result(0).error)
    # There is room for one more.
    (tmp_path / "go.trial_00001").touch()
    wait_until(lambda: login.result(1).state == "finished")
    (tmp_path / "go").touch()
    login.run()
    assert "ended [0, 1, 2] 0" in login.printed()
    assert are_without_gaps(login.result(0))


def test_a_trial_without_a_tuner_submits_its_next_job_itself(
    virtual_slurm: VirtualCluster, tmp_path: Path, leaves_nothing: None
) -> None:
    code = NOT_REQUEUED.replace('"account": "few", ', "").replace("3, max_jobs=2", "1, max_jobs=1")
    login = Login(virtual_slurm, tmp_path, code)
    with login.sweeping() as process:
        login.wait_for_checkpoints(0)
        process.kill()
        process.wait(TIMEOUT_S)
    login("scancel", "--signal=USR2", login.job_of(0))
    wait_until(lambda: len(login.result(0).attempts) == 2)
    (tmp_path / "go").touch()
    wait_until(lambda: login.result(0).state == "finished")
    assert are_without_gaps(login.result(0))
    login.run()
    assert "ended [0] 0" in login.printed()


# What the script says instead, what the environment says, and what is printed.
BAD: dict[str, tuple[str, dict[str, str], str]] = {
    "inside an allocation": (
        "trainer(train)",
        {"SLURM_JOB_ID": "1"},
        "this process is in job 1. Leave launcher and max_jobs out",
    ),
    "another launcher of the run": (
        "trainer(train)",
        {"HPCTRAIN_LAUNCHER": "local"},
        "launcher='local' (RunConfig, --launcher or HPCTRAIN_LAUNCHER) starts them in another way",
    ),
    "hpctrain submit": (
        "trainer(train)",
        {"HPCTRAIN_DETACH": "1"},
        "Start it with: python SCRIPT",
    ),
    "no Slurm": (
        "trainer(train)",
        {"PATH": "/nowhere"},
        "this machine cannot submit jobs: there is no sbatch",
    ),
    "no such partition": ("trainer(train, partition='nowhere')", {}, "nowhere"),
    "more nodes than workers": ("trainer(train, nodes=9)", {}, "nodes"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_impossible_is_refused_before_anything_starts(
    case: str, virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    trainer, variables, says = BAD[case]
    login = Login(virtual_slurm, tmp_path, MANY.replace("trainer(train)", trainer))
    login.environment |= variables
    with login.sweeping() as process:
        assert process.wait(TIMEOUT_S) == 2, login.printed()
    assert says in login.printed().splitlines()[-1]
    assert not (tmp_path / "sweep").exists()
