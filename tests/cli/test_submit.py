from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest

from hpctrain import RunStoppedError
from hpctrain.testing.slurm import VirtualCluster

pytestmark = pytest.mark.slurm

ENDLESS = ("--steps", "100000", "--pause", "0.02")


def test_a_run_is_submitted_and_attached_to(login: Any) -> None:
    submitted = login("submit", "train.py", "--steps", "3")
    assert submitted.returncode == 0, submitted.stderr
    assert re.fullmatch(r"\d+\n", submitted.stdout)
    job_id = submitted.stdout.strip()
    assert "the script begins" in submitted.stderr
    assert f"hpctrain: tiny is job {job_id}. Follow it with: hpctrain attach" in submitted.stderr
    attached = login("attach", "tiny")
    assert attached.returncode == 0, attached.stderr
    assert "rank 0 is here" in attached.stdout
    assert attached.stdout.splitlines()[-1] == "hpctrain: tiny finished"
    view = login.status()
    assert (view["state"], view["launcher"], view["job_id"]) == ("finished", "slurm", job_id)
    assert login("logs", "tiny", "--job-log").returncode == 0
    again = login("submit", "train.py", "--steps", "3")
    assert (again.returncode, again.stdout) == (0, "")
    assert "run tiny is finished" in again.stderr


def test_with_wait_the_script_goes_on_with_the_result(login: Any) -> None:
    ended = login("submit", "--wait", "-N", "2", "--time", "5", "-p", "short", "train.py")
    assert ended.returncode == 2
    assert "SlurmConfig(time='5') is 5 minutes, but partition short" in ended.stderr
    ended = login("submit", "--wait", "-N", "2", "--time", "2", "-p", "short", "train.py")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "the script has a result: 4"
    plan = json.loads((login.run_dir() / "plan.json").read_bytes())
    directives = plan["launch_plan"]["directives"]
    assert [directives[name] for name in ("nodes", "time", "partition")] == ["2", "2", "short"]
    assert len(login.status()["nodes"]) == 2


def test_a_dry_run_prints_the_batch_script_and_submits_nothing(login: Any) -> None:
    ended = login("submit", "--dry-run", "-A", "proj", "-q", "fast", "-C", "milan", "train.py")
    assert ended.returncode == 0, ended.stderr
    for line in ("--account=proj", "--qos=fast", "--constraint=milan", "--time=9"):
        assert f"#SBATCH {line}" in ended.stdout.splitlines()
    assert not login.run_dir().exists()


def test_a_job_that_has_not_begun_is_taken_back(login: Any) -> None:
    submitted = login("submit", "train.py", "--sbatch=--hold")
    job_id = submitted.stdout.strip()
    view = login.status()
    assert (view["state"], view["live"], view["job_state"]) == ("submitted", True, "PENDING")
    again = login("submit", "train.py", "--sbatch=--hold")
    assert again.stdout.strip() == job_id
    would = login("cancel", "tiny", "--dry-run")
    assert would.stdout == f"would run: scancel --state=PENDING {job_id}\n"
    cancelled = login("cancel", "tiny")
    assert cancelled.returncode == 0, cancelled.stderr
    view = login.status()
    assert (view["state"], view["live"]) == ("stopped", False)
    assert f"job {job_id} was cancelled before it began" in view["error"]
    assert login("wait", "tiny").returncode == 5


def test_a_follower_says_why_its_job_waits_and_what_to_do(
    login: Any, virtual_slurm: VirtualCluster
) -> None:
    failing = virtual_slurm.run_on("head", ["sbatch", "--parsable", "-o/dev/null", "--wrap=false"])
    failed = failing.stdout.strip()
    login.start("submit", "--wait", "train.py", f"--sbatch=--dependency=afterok:{failed}")
    following = login.started[0]
    printed = []
    for line in following.stdout:
        printed.append(line)
        if "tiny waits (DependencyNeverSatisfied)" in line:
            break
    assert "has ended in another way than it needs, so it never starts" in printed[-1], printed
    assert f"Cancel it (hpctrain cancel {login.run_dir()}) and submit it without" in printed[-1]
    shown = login("status", "tiny").stdout
    assert "waits (DependencyNeverSatisfied): a job that it depends on" in shown
    job_id = login.status()["job_id"]
    freed = virtual_slurm.run_on("head", ["scontrol", "update", f"jobid={job_id}", "dependency="])
    assert freed.returncode == 0, freed.stderr
    rest = following.communicate(timeout=120)[0]
    assert following.returncode == 0, rest
    assert "NeverSatisfied" not in rest, "only what changes is shown"


def test_a_running_job_stops_at_a_report(login: Any) -> None:
    login("submit", "train.py", *ENDLESS)
    metrics = login.run_dir() / "metrics.jsonl"
    login.wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, "the first report")
    view = login.status()
    assert (view["state"], view["job_state"]) == ("running", "RUNNING")
    assert login("cancel", "tiny").returncode == 0
    assert login("wait", "tiny").returncode == 5


def test_now_ends_a_running_job(login: Any) -> None:
    login("submit", "train.py", *ENDLESS)
    metrics = login.run_dir() / "metrics.jsonl"
    login.wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, "the first report")
    ended = login("cancel", "tiny", "--now")
    assert ended.returncode == 0, ended.stderr
    assert login.status()["state"] == "stopped"


SEVERAL = """
import hpctrain
from beside import DOUBLE
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig

def train(config):
    hpctrain.report({"factor": config["factor"] * DOUBLE})

def make(factor):
    return DataParallelTrainer(
        train,
        train_loop_config={"factor": factor},
        scaling_config=ScalingConfig(num_workers=2, slurm=SlurmConfig(time="9")),
        run_config=RunConfig(name=f"tiny-{factor}", verbose=0),
    )
"""


def test_the_runs_that_a_script_did_not_begin_are_named_with_exit_code_2(login: Any) -> None:
    (login.path / "several.py").write_text(SEVERAL + "make(1).fit()\nmake(2).fit()\nmake(3).fit()")
    submitted = login("submit", "several.py")
    assert submitted.returncode == 2
    assert re.fullmatch(r"\d+\n", submitted.stdout), "one job, and it was submitted"
    number = SEVERAL.count("\n")
    assert submitted.stderr.splitlines()[1:] == [
        "hpctrain: several.py ends where it waits for that run. These were not begun:",
        f"  several.py:{number + 2}: make(2).fit()",
        f"  several.py:{number + 3}: make(3).fit()",
        "Let each run be a job (submit() in place of fit(), and hpctrain.wait() at the end), or "
        "the script be one: hpctrain submit --script --workers N several.py",
    ]
    assert login("wait", "tiny-1").returncode == 0
    assert not login.run_dir("tiny-2").exists()
    # The same without hpctrain's command: the first run is finished by now.
    detached = login.run(["env", "HPCTRAIN_DETACH=1", sys.executable, "several.py"])
    assert detached.returncode == 2
    assert re.fullmatch(r"\d+\n", detached.stdout)
    assert detached.stderr.splitlines()[1:3] == [
        "hpctrain: several.py ends where it waits for that run. These were not begun:",
        f"  several.py:{number + 3}: make(3).fit()",
    ]
    assert login("wait", "tiny-2").returncode == 0


def test_a_script_that_waits_for_all_its_runs_at_the_end_submits_them_all(login: Any) -> None:
    (login.path / "several.py").write_text(
        SEVERAL + "handles = [make(factor).submit() for factor in (1, 2)]\n"
        "done, _ = hpctrain.wait(handles)\n"
        "print([handle.result().metrics['factor'] for handle in done])\n"
    )
    submitted = login("submit", "several.py")
    assert submitted.returncode == 0, submitted.stderr
    jobs = submitted.stdout.split()
    assert len(jobs) == len(set(jobs)) == 2
    assert [login("wait", f"tiny-{factor}").returncode for factor in (1, 2)] == [0, 0]
    assert [login.status(f"tiny-{factor}")["job_id"] for factor in (1, 2)] == jobs
    # On the login node the same script waits for them.
    waited = login("run", "several.py")
    assert waited.stdout.splitlines() == ["[2, 4]"], waited.stderr


def test_a_script_that_is_the_job_runs_each_of_its_fits_there(login: Any) -> None:
    (login.path / "several.py").write_text(
        SEVERAL
        + "import sys\nprint([make(int(f)).fit().metrics['factor'] for f in sys.argv[1:]])\n"
    )
    options = ("submit", "--script", "--workers", "2", "-t", "9")
    refused = login("submit", "--script", "several.py")
    assert refused.returncode == 2
    assert "--script needs --workers: no part of the script runs before the job" in refused.stderr
    shown = login(*options, "--dry-run", "several.py", "1", "a b")
    assert shown.stdout.splitlines()[-1].endswith(" several.py 1 'a b'"), shown.stderr
    assert "#SBATCH --time=9" in shown.stdout.splitlines()
    assert not login.run_dir("tiny-1").parent.exists()
    ended = login(*options, "--wait", "several.py", "1", "2")
    assert ended.returncode == 0, ended.stderr
    job_id = ended.stdout.split()[-1]
    assert (login.path / f"slurm-{job_id}.out").read_text().splitlines()[-1] == "[2, 4]"
    for factor in (1, 2):
        view = login.status(f"tiny-{factor}")
        assert (view["state"], view["launcher"], view["job_id"]) == (
            "finished",
            "allocation",
            job_id,
        )
    assert login(*options, "-C", "nosuch", "several.py", "1").returncode == 3


def test_flags_of_a_script_that_is_the_job_win_over_variables_of_sbatch(
    login: Any, virtual_slurm: VirtualCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (login.path / "several.py").write_text("import os\nprint(os.environ['SLURM_JOB_PARTITION'])\n")
    for name, value in (("PARTITION", "high"), ("JOB_NAME", "mine"), ("ARRAY_INX", "0-1")):
        monkeypatch.setenv(f"SBATCH_{name}", value)
    options = ("submit", "--script", "--workers", "2", "-t", "9", "--wait", "several.py")
    for flags, partition in ((("--partition", "main"), "main"), ((), "high")):
        ended = login(*options[:-1], *flags, options[-1])
        assert ended.returncode == 0, ended.stderr
        job_id = ended.stdout.split()[-1]
        assert (login.path / f"slurm-{job_id}.out").read_text() == f"{partition}\n"


THREE = """
import time
import hpctrain
from hpctrain import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig

def train(config):
    checkpoint = hpctrain.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint else 0
    while step < config["steps"]:
        step += 1
        time.sleep(config["pause"])
        save = hpctrain.get_context().get_world_rank() == 0
        hpctrain.report({"step": step}, Checkpoint.from_dict({"step": step}) if save else None)

for name in ("one", "two", "three"):
    result = DataParallelTrainer(
        train,
        train_loop_config={"steps": 40 if name == "two" else 2, "pause": 0.1},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name=name, verbose=0),
    ).fit()
    print(name, result.metrics["step"], len(result.attempts), flush=True)
"""


def test_a_script_that_is_the_job_is_signalled_and_queued_again_in_its_second_fit(
    login: Any, virtual_slurm: VirtualCluster
) -> None:
    (login.path / "three.py").write_text(THREE)
    options = ("submit", "--script", "--workers=2", "-t5")
    checkpoints = login.run_dir("two") / "checkpoints"
    job = login.start(*options, "--wait", "three.py")
    login.wait_until((checkpoints / "000003").exists, "a checkpoint of the second run")
    first = login.status("two")["job_id"]
    virtual_slurm.run_on("head", ["scancel", "--signal=USR2", first])
    printed, _ = job.communicate(timeout=120)
    assert job.returncode == RunStoppedError.exit_code == 5, printed
    log = (login.path / f"slurm-{first}.out").read_text().splitlines()
    assert log[0] == "one 2 1"
    assert log[1].startswith(
        f"hpctrain.errors.RunStoppedError: the run stopped because job {first} got SIGUSR2"
    )
    assert len(log) == 2
    assert not login.run_dir("three").exists()

    second = login(*options, "three.py").stdout.strip()
    saved = int(login.status("two")["checkpoint"].rpartition("/")[2])
    beyond = checkpoints / f"{saved + 2:06}"
    login.wait_until(beyond.exists, "a checkpoint of the second attempt", started=False)
    virtual_slurm.run_on("head", ["scontrol", "requeue", second])
    log_of_second = login.path / f"slurm-{second}.out"
    login.wait_until(lambda: "three" in log_of_second.read_text(), "the last fit", started=False)
    assert log_of_second.read_text().splitlines()[-2:] == ["two 40 3", "three 2 1"]
    history = login("history", "two").stdout
    assert history.startswith("two: finished, 3 attempts, 1 restart, 2 jobs\n")
    nodes = "nodes     node1\n    from      "
    assert re.search(rf"attempt 2: .*, job {second}\n    {nodes}checkpoint {saved:06}\n", history)
    restart = re.search(r"taken away without a warning; restart 1 from checkpoint\s+(\d+)", history)
    assert restart is not None, history
    assert int(restart[1]) >= saved + 2
    assert f"    {nodes}checkpoint {restart[1]}\n" in history
