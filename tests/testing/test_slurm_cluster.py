from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctrain.testing.pytest_plugin import require_components
from hpctrain.testing.slurm import (
    ClusterError,
    ClusterSpec,
    VirtualCluster,
    best_mode,
    describe_missing,
    missing_components,
)
from hpctrain.testing.slurm.processes import HOST_PROC, ProcessIdentity, run_bounded, wait_until

pytest_plugins = ["pytester"]

SMALL = ClusterSpec(num_nodes=2, cpus_per_node=2, gpus_per_node=0)
FLAT = dataclasses.replace(SMALL, mode="flat")


@pytest.fixture
def state_dir() -> Iterator[Path]:
    yield from short_state_dir()


@pytest.fixture
def second_state_dir() -> Iterator[Path]:
    yield from short_state_dir()


def short_state_dir() -> Iterator[Path]:
    # tmp_path is too long for the paths of sockets.
    path = Path(tempfile.mkdtemp(prefix="hc-", dir="/tmp"))
    yield path
    with contextlib.suppress(ClusterError):
        VirtualCluster.attach(path).stop()
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[VirtualCluster]:
    require_namespaces(spec := ClusterSpec(private_tmp=True, slurmd_timeout_s=5))
    path = Path(tempfile.mkdtemp(prefix="hc-", dir="/tmp"))
    with VirtualCluster.start(spec, state_dir=path) as cluster:
        yield cluster
    assert not path.exists()


def require_namespaces(spec: ClusterSpec) -> None:
    require_components(spec)
    if best_mode() == "flat":
        pytest.skip("namespaces need root")


def lines(completed: subprocess.CompletedProcess[str]) -> list[str]:
    assert completed.returncode == 0, completed.stderr
    return sorted(completed.stdout.split())


def host_client(cluster: VirtualCluster, argv: list[str]) -> subprocess.CompletedProcess[str]:
    variables = [f"{name}={value}" for name, value in cluster.environ.items()]
    return run_bounded(["env", *variables, *argv], timeout_s=30)


def processes_naming(text: str) -> list[str]:
    """Return the command lines of living processes that contain a text."""
    found = []
    for directory in HOST_PROC.iterdir():
        if directory.name.isdecimal() and ProcessIdentity.of(int(directory.name)):
            try:
                command = (directory / "cmdline").read_text()
            except OSError:
                continue
            if text in command:
                found.append(command)
    return found


# ---- without a cluster


def test_a_missing_program_is_named_with_the_command_that_installs_it():
    spec = ClusterSpec(accounting=True)
    missing = missing_components(spec, search_path="/nowhere")
    assert {"slurmctld", "slurmd", "munged", "ip", "unshare", "slurmdbd"} <= set(missing)
    message = describe_missing(missing, spec)
    assert "slurmctld, slurmd," in message
    assert "apt-get install -y --no-install-recommends slurmctld slurmd slurm-client" in message
    assert "mariadb-server" in message


def test_a_flat_cluster_needs_no_tools_for_namespaces():
    missing = missing_components(FLAT, search_path="/nowhere")
    assert not {"ip", "unshare", "nsenter", "slurmdbd"} & set(missing)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_nodes": 0}, "num_nodes=0 is out of range. Use 1 to 200"),
        ({"mode": "docker"}, "mode='docker' is unknown"),
        ({"mode": "flat", "private_tmp": True}, "Use mode='namespaces'"),
        ({"mode": "flat", "memory_limits": True}, "Use mode='namespaces'"),
        ({"shared": (Path("data"),)}, "Use an absolute one"),
    ],
)
def test_an_impossible_spec_is_refused(fields, message):
    with pytest.raises(ClusterError, match=message):
        ClusterSpec(**fields)


def test_a_spec_survives_being_written_down():
    spec = ClusterSpec(shared=(Path("/tmp/data"),), mpi_default="pmi2")
    assert ClusterSpec.from_json(spec.to_json()) == spec


def test_attaching_where_nothing_runs_says_so(tmp_path):
    with pytest.raises(ClusterError, match="There is no virtual cluster in"):
        VirtualCluster.attach(Path("/tmp/hc-none"))


@pytest.mark.slurm
def test_a_state_dir_that_is_too_long_for_sockets_is_refused():
    require_components(FLAT)
    path = Path("/tmp") / ("x" * 36)
    with pytest.raises(ClusterError, match=r"has 41 characters.*at most 40"):
        VirtualCluster.start(FLAT, state_dir=path)
    assert not path.exists()


@pytest.mark.slurm
def test_a_state_dir_with_foreign_files_is_refused_and_left_alone(state_dir):
    require_components(FLAT)
    (state_dir / "thesis.tex").touch()
    with pytest.raises(ClusterError, match="is not empty"):
        VirtualCluster.start(FLAT, state_dir=state_dir)
    assert (state_dir / "thesis.tex").exists()


def test_the_fixture_fails_instead_of_skipping_where_all_is_required(pytester, monkeypatch):
    pytester.makepyfile("def test_cluster(virtual_slurm): pass")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    pytester.makeconftest(
        """
        import hpctrain.testing.pytest_plugin as plugin
        plugin.missing_components = lambda spec: ("slurmctld",)
        pytest_plugins = ["hpctrain.testing.pytest_plugin"]
        """
    )
    monkeypatch.delenv("HPCTRAIN_REQUIRE_ALL", raising=False)
    skipped = pytester.runpytest_subprocess("-rs")
    skipped.assert_outcomes(skipped=1)
    skipped.stdout.fnmatch_lines("*needs slurmctld*apt-get install*")
    monkeypatch.setenv("HPCTRAIN_REQUIRE_ALL", "1")
    pytester.runpytest_subprocess().assert_outcomes(errors=1)


# ---- namespaces


@pytest.mark.slurm
def test_srun_reaches_four_hosts(cluster):
    srun = cluster.run_on("head", ["srun", "-N4", "-n4", "hostname"])
    assert lines(srun) == ["node1", "node2", "node3", "node4"]


@pytest.mark.slurm
def test_the_host_is_a_login_node(cluster):
    assert lines(host_client(cluster, ["srun", "-N2", "-n2", "hostname"]))[0].startswith("node")


@pytest.mark.slurm
def test_sbatch_runs_a_script(cluster):
    output = cluster.state_dir / "hello"
    script = cluster.state_dir / "hello.sh"
    script.write_text("#!/bin/sh\nsrun hostname | wc -l\n")
    submit = ["sbatch", "--wait", "-N2", "-n2", f"--output={output}", str(script)]
    assert cluster.run_on("head", submit).returncode == 0
    assert output.read_text() == "2\n"


@pytest.mark.slurm
def test_a_job_that_asks_for_no_time_has_a_limit_whichever_scheduler_starts_it(cluster):
    # A job that waits has the limit that the main scheduler would leave it.
    for partition, limit in (("main", "365-00:00:00"), ("short", "2:00")):
        options = ["--hold", "--parsable", f"--partition={partition}", "--output=/dev/null"]
        (job_id,) = lines(cluster.run_on("head", ["sbatch", *options, "--wrap=true"]))
        shown = cluster.run_on("head", ["squeue", "-h", f"--jobs={job_id}", "--format=%l"])
        assert lines(shown) == [limit]
        assert not lines(cluster.run_on("head", ["scancel", job_id]))


@pytest.mark.slurm
def test_gpus_are_allocated(cluster):
    show = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    assert lines(cluster.run_on("head", ["srun", "--gres=gpu:2", *show])) == ["0,1"]
    too_many = cluster.run_on("head", ["srun", "--gres=gpu:5", *show])
    assert "Requested node configuration is not available" in too_many.stderr


@pytest.mark.slurm
def test_a_private_tmp_hides_what_the_login_node_has_there(cluster, tmp_path):
    (tmp_path / "dataset").touch()
    assert cluster.run_on("head", ["ls", str(tmp_path)]).stdout == "dataset\n"
    assert cluster.run_on("node1", ["ls", str(tmp_path)]).returncode != 0
    assert cluster.run_on("node1", ["ls", str(cluster.layout.slurm_conf)]).returncode == 0


@pytest.mark.slurm
def test_sacct_fails_without_accounting(cluster):
    sacct = cluster.run_on("head", ["sacct"])
    assert (sacct.returncode, sacct.stderr) == (1, "Slurm accounting storage is disabled\n")


@pytest.mark.slurm
def test_a_command_on_a_node_is_killed_in_time(cluster):
    with pytest.raises(ClusterError, match=r"did not end within 0\.2 s"):
        cluster.run_on("node1", ["sleep", "987654"], timeout_s=0.2)
    wait_until(lambda: not processes_naming("987654"), what="sleep to die", timeout_s=5)


@pytest.mark.slurm
def test_daemons_die_and_come_back_alone(state_dir):
    # A cluster of its own: a killed controller forgets what other tests did in the last seconds.
    require_namespaces(SMALL)
    with VirtualCluster.start(SMALL, state_dir=state_dir) as cluster:
        cluster.kill_slurmd("node2")
        status = cluster.status().of("node2")
        assert (status.powered, status.slurmd_alive) == (True, False)
        cluster.start_slurmd("node2")
        cluster.kill_controller()
        assert not cluster.status().controller_alive
        cluster.start_controller()
        cluster.wait_for_state("node1", "idle", timeout_s=60)
        cluster.wait_for_state("node2", "idle", timeout_s=60)
        assert cluster.status().ready


@pytest.mark.slurm
def test_a_node_without_power_is_down_until_it_is_back(cluster):
    cluster.power_off("node2")
    assert not cluster.status().of("node2").powered
    with pytest.raises(ClusterError, match="node2 is off"):
        cluster.run_on("node2", ["true"])
    cluster.wait_for_state("node2", "down", timeout_s=45)
    cluster.power_on("node2")
    cluster.wait_for_state("node2", "idle", timeout_s=30)
    assert lines(cluster.run_on("head", ["srun", "-w", "node2", "hostname"])) == ["node2"]


@pytest.mark.slurm
def test_an_unplugged_node_is_reached_again_when_it_is_plugged(cluster):
    ping = ["bash", "-c", "exec 3<>/dev/tcp/node3/6818"]
    cluster.unplug("node3")
    with pytest.raises(ClusterError, match="did not end within"):
        cluster.run_on("head", ping, timeout_s=0.5)
    cluster.plug("node3")
    assert cluster.run_on("head", ping).returncode == 0


@pytest.mark.slurm
def test_two_clusters_coexist_and_one_is_stopped_by_another_process(cluster, state_dir):
    second = VirtualCluster.start(SMALL, state_dir=state_dir)
    try:
        assert second.addresses.head != cluster.addresses.head
        with pytest.raises(ClusterError, match="already holds a cluster"):
            VirtualCluster.start(SMALL, state_dir=state_dir)
        attached = VirtualCluster.attach(state_dir)
        assert attached == second
        assert lines(attached.run_on("head", ["srun", "-N2", "hostname"])) == ["node1", "node2"]
        attached.stop()
        assert not state_dir.exists()
        assert not Path("/sys/class/net", second.addresses.interface).exists()
        assert not processes_naming(str(state_dir))
        assert len(lines(cluster.run_on("head", ["srun", "-N4", "hostname"]))) == 4
    finally:
        second.stop()


@pytest.mark.slurm
def test_a_start_that_fails_leaves_nothing_but_logs_and_can_be_repeated(state_dir):
    require_namespaces(SMALL)
    # slurmctld refuses this, when munged and the nodes are already up.
    broken = dataclasses.replace(SMALL, mpi_default="none\nNonsense=yes")
    with pytest.raises(ClusterError) as caught:
        VirtualCluster.start(broken, state_dir=state_dir, timeout_s=5).stop()
    assert "Nonsense" in str(caught.value)
    assert f"All logs are kept in {state_dir}/log" in str(caught.value)
    assert os.listdir(state_dir) == ["log"]
    assert not processes_naming(str(state_dir))
    VirtualCluster.start(SMALL, state_dir=state_dir).stop()


@pytest.mark.slurm
def test_limits_are_enforced_at_submission_on_request(state_dir):
    require_namespaces(spec := dataclasses.replace(SMALL, enforce_part_limits=True))
    with VirtualCluster.start(spec, state_dir=state_dir) as cluster:
        refused = cluster.run_on("head", ["srun", "--partition=short", "--time=5", "true"])
        assert "Requested time limit is invalid" in refused.stderr


# ---- flat


@pytest.mark.slurm
def test_flat_clusters_coexist_and_leave_no_processes(state_dir, second_state_dir):
    require_components(FLAT)
    with (
        VirtualCluster.start(FLAT, state_dir=state_dir) as first,
        VirtualCluster.start(FLAT, state_dir=second_state_dir) as second,
    ):
        for cluster in (first, second):
            show = ["srun", "-N2", "sh", "-c", "echo $SLURMD_NODENAME"]
            assert lines(cluster.run_on("head", show)) == ["node1", "node2"]
        srun = first.popen_on("head", ["srun", "-N2", "sleep", "876543"])
        wait_until(
            lambda: first.run_on("head", ["squeue", "-h", "-t", "R"]).stdout != "",
            what="the job to run",
            timeout_s=20,
        )
        first.stop()
        assert srun.wait(timeout=10) != 0
        assert not processes_naming("876543")
        assert not processes_naming(str(state_dir))
        assert second.status().ready
        with pytest.raises(ClusterError, match="neither power nor network"):
            second.power_off("node1")


# ---- accounting


@pytest.mark.slurm
def test_accounting_knows_ended_jobs_and_refuses_an_unknown_account(state_dir, tmp_path):
    require_namespaces(spec := dataclasses.replace(SMALL, accounting=True))
    with VirtualCluster.start(spec, state_dir=state_dir, database_cache=tmp_path) as cluster:
        assert cluster.run_on("head", ["srun", "--account=hpctrain", "true"]).returncode == 0
        refused = cluster.run_on("head", ["srun", "--account=nobodys", "true"])
        assert "Invalid account" in refused.stderr
        sacct = ["sacct", "--noheader", "--parsable2", "--format=State,Account", "--allocations"]
        wait_until(
            lambda: "COMPLETED|hpctrain\n" in cluster.run_on("head", sacct).stdout,
            what="sacct to know the job",
            timeout_s=20,
        )
    assert len(list(tmp_path.iterdir())) == 1
