"""``hpctrain doctor`` on virtual clusters: what it finds there, and what it says of a good one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hpctrain.testing.slurm import ClusterSpec, VirtualCluster
from tests.clusters import own_cluster
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm

HPCTRAIN = [sys.executable, "-m", "hpctrain.cli"]
SCRIPT = """
import sys

from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig


def train():
    raise AssertionError("nothing is trained")


if __name__ == "__main__":
    storage, mpi = sys.argv[1:]
    DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(
            num_workers=4,
            slurm=SlurmConfig(time="5", tasks_per_node=2, mpi=mpi),
        ),
        run_config=RunConfig(storage_path=storage, name="run"),
    ).fit()
"""

SUBMITTED = """
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig


def train():
    pass


if __name__ == "__main__":
    DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2, slurm=SlurmConfig(SLURM)),
        run_config=RunConfig(storage_path="runs", name="warned", launcher="slurm"),
    ).submit()
"""


def doctor(cluster: VirtualCluster, *words: str, cwd: Path, code: int, as_json: bool = True) -> Any:
    argv = [*HPCTRAIN, "doctor", *(["--json"] if as_json else []), *words]
    done = subprocess.run(
        argv,
        cwd=cwd,
        env={**os.environ, **cluster.environ},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout) if as_json else done.stdout


def levels(told: dict[str, Any]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for finding in told["findings"]:
        found.setdefault(finding["check"], set()).add(finding["level"])
    return found


def what(told: dict[str, Any], level: str) -> str:
    return "\n".join(
        f"{f['check']}: {f['what']} | {f['next']}" for f in told["findings"] if f["level"] == level
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_good_request_is_checked_on_two_nodes_and_leaves_nothing(
    virtual_slurm: VirtualCluster, script: Path, tmp_path: Path
) -> None:
    told = doctor(virtual_slurm, str(script), "runs", "auto", cwd=tmp_path, code=0)
    assert told["starts"] is True
    found = levels(told)
    good = {"partition", "nodes", "storage", "versions", "clocks", "imports", "interfaces", "ports"}
    assert {check for check, seen in found.items() if seen == {"ok"}} >= good, told
    assert "ok" in found["MPI"]
    launchers = [f["what"] for f in told["findings"] if f["check"] == "MPI"]
    offered = subprocess.run(
        ["srun", "--mpi=list"],
        env={**os.environ, **virtual_slurm.environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    kinds = set((offered.stdout + offered.stderr).split()) & {"pmi2", "pmix", "cray_shasta"}
    assert "pmi2" in kinds
    for launcher in (*(f"srun --mpi={kind}:" for kind in kinds), "/mpiexec"):
        assert any(launcher in said for said in launchers), launchers
    (ranks,) = [finding["ranks"] for finding in told["findings"] if "ranks" in finding]
    assert [rank["local_rank"] for rank in ranks] == [0, 1, 0, 1]
    assert len({rank["host"] for rank in ranks}) == 2
    assert all(rank["cpus"] for rank in ranks)
    # Nothing of the run, and nothing of the probe.
    assert list((tmp_path / "runs").iterdir()) == []
    queue = virtual_slurm.run_on("head", ["squeue", "--noheader", "--name=hpctrain-doctor"])
    assert queue.stdout.strip() == ""


def test_a_pmi_that_makes_singletons_is_an_error_that_names_one_that_works(
    virtual_slurm: VirtualCluster, script: Path, tmp_path: Path
) -> None:
    told = doctor(virtual_slurm, str(script), "runs", "cray_shasta", cwd=tmp_path, code=3)
    assert told["starts"] is False
    assert "MPI: srun --mpi=cray_shasta" in what(told, "error")
    assert "SlurmConfig(mpi='pmi2')" in what(told, "error")


def test_a_request_that_never_starts_is_not_probed(
    virtual_slurm: VirtualCluster, script: Path, tmp_path: Path
) -> None:
    told = doctor(
        virtual_slurm, "--partition=short", str(script), "runs", "auto", cwd=tmp_path, code=3
    )
    assert "partition short ends jobs after 2" in what(told, "error")
    told = doctor(virtual_slurm, "--partition=none", "--no-probe", cwd=tmp_path, code=3)
    assert "this cluster has" in what(told, "error")


def test_a_run_that_is_shorter_than_a_probe_is_probed_in_its_time(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    told = doctor(virtual_slurm, "--partition=short", "--time=1", cwd=tmp_path, code=0)
    assert "storage: " in what(told, "ok")


def test_what_a_script_and_its_children_print_is_no_part_of_the_json(
    virtual_slurm: VirtualCluster, script: Path, tmp_path: Path
) -> None:
    noise = "import os\nprint('loud')\nos.system('echo from a child')\n"
    script.write_text(noise + script.read_text())
    told = doctor(virtual_slurm, "--no-probe", str(script), "runs", "auto", cwd=tmp_path, code=0)
    assert told["starts"] is True


def test_a_storage_that_cannot_be_made_is_an_error_beside_the_other_findings(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    told = doctor(virtual_slurm, "--storage=file", cwd=tmp_path, code=3)
    assert "cannot be made" in what(told, "error")
    assert "partition" in levels(told)


def test_the_end_of_a_doctor_is_the_end_of_its_job(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [*HPCTRAIN, "doctor", "--partition=high", "--storage=runs"],
        cwd=tmp_path,
        env={**os.environ, **virtual_slurm.environ},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stderr is not None
        try:
            line = ""
            while "looks at" not in line:
                line = process.stderr.readline()
                assert line, "it has ended"
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 128 + signal.SIGTERM
        finally:
            process.kill()
    queue = ["squeue", "--noheader", "--name=hpctrain-doctor", "--states=PENDING,RUNNING"]
    wait_until(lambda: virtual_slurm.run_on("head", queue).stdout.strip() == "", "its end")
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_script_that_does_not_come_to_its_fit_is_an_error(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    (tmp_path / "bad.py").write_text("1 / 0\n")
    told = doctor(virtual_slurm, "bad.py", cwd=tmp_path, code=3)
    assert "bad.py failed before its fit(): ZeroDivisionError" in what(told, "error")
    (tmp_path / "empty.py").write_text("")
    told = doctor(virtual_slurm, "empty.py", cwd=tmp_path, code=3)
    assert "without a call of fit()" in what(told, "error")


def test_the_text_is_whole_at_80_columns(
    virtual_slurm: VirtualCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = doctor(virtual_slurm, "--no-probe", "--workers=3", cwd=tmp_path, code=0, as_json=False)
    # Paths stay in one piece.
    lines = [line for line in said.splitlines() if str(tmp_path) not in line]
    assert max(map(len, lines)) <= 80
    assert said.splitlines()[-1].startswith("0 errors, ")


@pytest.fixture(scope="module")
def strict() -> Iterator[VirtualCluster]:
    """A cluster with accounting whose nodes have a /tmp of their own."""
    spec = ClusterSpec(num_nodes=2, gpus_per_node=0, accounting=True, private_tmp=os.geteuid() == 0)
    accounting = (
        "add qos brief maxwall=1",
        "add qos single maxsubmitjobsperuser=0",
        "modify user root set qos+=brief",
        "add account hasty cluster=hpctrain",
        "add user root account=hasty maxwall=1",
        "add user daemon account=hpctrain",
        # Of the same database.
        "add cluster elsewhere",
        "add account distant cluster=elsewhere",
        "add user root account=distant cluster=elsewhere",
    )
    with own_cluster(spec, *accounting) as cluster:
        yield cluster


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that all nodes see, also where each has a /tmp of its own."""
    with tempfile.TemporaryDirectory(prefix="hpctrain-", dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--account=nope"], r"account 'nope' is none of user"),
        (["--account=distant"], r"account 'distant' is none of user"),
        (["--qos=single"], r"QOS 'single' is none of account"),
        (["--qos=brief", "--time=5"], r"QOS 'brief': 00:01:00 for a job at most"),
    ],
)
def test_what_accounting_refuses_is_found_before_it_is_submitted(
    strict: VirtualCluster, shared: Path, options: Sequence[str], said: str
) -> None:
    told = doctor(strict, *options, cwd=shared, code=3)
    assert said in what(told, "error")
    assert "no probe job" in what(told, "note")


@pytest.fixture
def reservations(strict: VirtualCluster) -> Iterator[None]:
    """One node for this user and ten minutes, and one for another user."""
    whose = {"mine": "root", "theirs": "daemon"}
    try:
        for (name, user), node in zip(whose.items(), strict.node_names, strict=True):
            words = f"ReservationName={name} Users={user} Nodes={node} StartTime=now Duration=10"
            made = strict.run_on("head", ["scontrol", "create", "reservation", *words.split()])
            assert made.returncode == 0, made.stdout + made.stderr
        yield
    finally:
        for name in whose:
            strict.run_on("head", ["scontrol", "delete", f"ReservationName={name}"])


@pytest.mark.skipif(os.geteuid() != 0, reason="the cluster's user is root")
@pytest.mark.parametrize(
    ("slurm", "said"),
    [
        (
            "reservation='mine', time='5', nodes=2",
            "reservation 'mine' has 1 node, and 2 are needed",
        ),
        (
            "reservation='mine', time='20', nodes=1",
            "reservation 'mine' lasts 00:10:00, and the job asks for 00:20:00",
        ),
        (
            "reservation='theirs', time='5', nodes=1",
            "reservation 'theirs' is not for user 'root'",
        ),
        ("reservation='none', time='5', nodes=1", "there is no reservation 'none'"),
    ],
    ids=["nodes", "time", "user", "name"],
)
def test_a_reservation_that_is_too_small_or_of_another_user_is_an_error(
    strict: VirtualCluster, shared: Path, reservations: None, slurm: str, said: str
) -> None:
    (shared / "train.py").write_text(SUBMITTED.replace("SLURM", slurm))
    told = doctor(strict, "train.py", cwd=shared, code=3)
    assert said in what(told, "error")
    assert "no probe job" in what(told, "note")


def test_a_submission_beyond_a_limit_of_its_association_warns_that_it_may_never_start(
    strict: VirtualCluster, shared: Path
) -> None:
    # Of the default QOS Slurm's controller does not say whether it lifts the association's limits.
    slurm = "time='5', account='hasty', qos='normal', sbatch_args=['--hold']"
    (shared / "train.py").write_text(SUBMITTED.replace("SLURM", slurm))
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=shared,
        env={**os.environ, **strict.environ},
        capture_output=True,
        text=True,
        timeout=120,
    )
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        warned = [line for line in done.stderr.splitlines() if "it may never start" in line]
        assert len(warned) == 1, done.stderr
        assert "user 'root' in account 'hasty': 00:01:00 for a job at most" in warned[0]
    finally:
        strict.run_on("head", ["scancel", "--name=warned"])


def test_a_run_that_never_starts_is_explained_with_the_field_to_change(
    strict: VirtualCluster, shared: Path
) -> None:
    slurm = "time='5', account='hasty', qos='normal'"
    (shared / "train.py").write_text(SUBMITTED.replace("SLURM", slurm))

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            cwd=shared,
            env={**os.environ, **strict.environ},
            capture_output=True,
            text=True,
            timeout=120,
        )

    try:
        assert run(sys.executable, "train.py").returncode == 0
        said = ""

        def never_starts() -> bool:
            nonlocal said
            done = run(*HPCTRAIN, "why", "warned", "--storage", "runs")
            said = done.stdout + done.stderr
            return done.returncode == 3

        wait_until(never_starts, lambda: said, interval_s=0.5)
        assert "AssocMaxWallDurationPerJobLimit" in said
        assert "SlurmConfig(time=" in said
    finally:
        strict.run_on("head", ["scancel", "--name=warned"])


def test_a_storage_that_nodes_do_not_see_is_found_by_the_probe(
    strict: VirtualCluster, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("a /tmp of its own for each node needs root")
    with tempfile.TemporaryDirectory(prefix="hpctrain-", dir="/tmp") as unseen:
        told = doctor(strict, f"--storage={unseen}/runs", cwd=shared, code=3)
    assert "storage: nodes do not see" in what(told, "error")
    # Slurm writes names of accounts small, and does not ask who LOGNAME says one is.
    monkeypatch.setenv("LOGNAME", "bob")
    told = doctor(strict, "--account=HPCTRAIN", f"--storage={shared}/runs", cwd=shared, code=0)
    assert "storage: " in what(told, "ok")
    assert "account 'hpctrain'" in what(told, "ok")


def test_a_job_that_waits_is_named_with_its_reason(strict: VirtualCluster, shared: Path) -> None:
    options = ["--parsable", "--exclusive", "--nodes=2", "--output=/dev/null", "--wrap=sleep 300"]
    occupant = strict.run_on("head", ["sbatch", *options]).stdout.strip()
    try:
        told = doctor(strict, "--patience=1", f"--storage={shared}/runs", cwd=shared, code=0)
        assert "waits" in what(told, "note")
        assert "nodes were not probed" in what(told, "note")
    finally:
        strict.run_on("head", ["scancel", occupant])
