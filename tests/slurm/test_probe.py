from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpctrain.config import ScalingConfig, SlurmConfig
from hpctrain.errors import ConfigError, LaunchError
from hpctrain.plan.allocation import AllocatedNode
from hpctrain.plan.resources import NodeShape, Placement
from hpctrain.plan.site import Site
from hpctrain.slurm import probe
from hpctrain.slurm.client import run_slurm
from hpctrain.slurm.output import parse_job, read_allocation
from hpctrain.slurm.partitions import parse_partitions
from hpctrain.slurm.probe import (
    allocation_nodes,
    can_submit,
    check_partition,
    default_partition,
    explain_refusal,
    place_on_partition,
    query_partition,
)

# sinfo --noheader --format=%P|%a|%l|%D|%c|%G|%m of a cluster with Slurm 22.05.
SINFO = """\
batch*|up|1-00:00:00|12|64|(null)|1
batch*|up|1-00:00:00|2|32+|(null)|1
gpu|up|12:00:00|4|48|gpu:a100:4(S:0-1)|1
gpu|up|12:00:00|1|48|gpu:a100:4(S:0-1),craynetwork:8|1
mixed|up|infinite|2|8|gpu:2|1
mixed|up|infinite|2|8|gpu:v100:1,gpu:k80:2|1
old|down|30:00|3|4|(null)|1
"""


def test_without_a_name_the_default_partition_is_meant_and_its_smallest_node_counts():
    partition = parse_partitions(SINFO, None)
    assert (partition.name, partition.available) == ("batch", True)
    assert partition.others == ("batch", "gpu", "mixed", "old")
    assert (partition.longest.max_time, partition.num_nodes) == ("1-00:00:00", 14)
    assert partition.node_shape == NodeShape(cpus=32, gpus=0)


def test_gpus_are_counted_whatever_their_type_and_whatever_else_a_node_has():
    assert parse_partitions(SINFO, "gpu").node_shape == NodeShape(cpus=48, gpus=4)
    assert parse_partitions(SINFO, "mixed").node_shape == NodeShape(cpus=8, gpus=2)


def test_a_partition_that_is_not_there_is_told_with_those_that_are():
    message = r"partition='gpus'\): this cluster has batch, gpu, mixed, old\. Use one of these"
    with pytest.raises(ConfigError, match=message):
        parse_partitions(SINFO, "gpus")


def test_a_cluster_without_a_default_partition_asks_for_one():
    message = r"no default partition\. Give SlurmConfig\(partition=\.\.\.\): one of batch, gpu"
    with pytest.raises(ConfigError, match=message):
        parse_partitions(SINFO.replace("*", ""), None)


def test_several_partitions_count_as_one_that_takes_what_any_of_them_takes():
    partition = parse_partitions(SINFO, "gpu,batch,old")
    assert (partition.name, partition.available) == ("gpu,batch,old", True)
    assert (partition.longest.max_time, partition.num_nodes) == ("1-00:00:00", 14)
    assert partition.node_shape == NodeShape(cpus=32, gpus=0)
    assert parse_partitions(SINFO, "batch,mixed").longest.max_time == "infinite"
    message = r"'gpu,cpu'\): this cluster has batch, gpu, mixed, old, and no cpu\. Use one of these"
    with pytest.raises(ConfigError, match=message):
        parse_partitions(SINFO, "gpu,cpu")


def test_what_is_not_a_row_is_overlooked():
    assert parse_partitions("slurm_load: a warning\n" + SINFO, "gpu").num_nodes == 5


@pytest.fixture
def sinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The answer of a command in place of sinfo, which counts its calls in ``calls``."""
    command, answer = tmp_path / "sinfo", tmp_path / "answer"
    command.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/calls\ncat {answer}\n")
    command.chmod(0o755)
    answer.write_text(SINFO)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return answer


def test_a_process_that_knows_the_default_partition_does_not_ask_again(
    sinfo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setattr(probe, "_default_names", [])
    # Which one is the default is not known from that.
    assert query_partition("gpu").name == "gpu"
    assert [default_partition(), default_partition()] == ["batch", "batch"]
    assert calls.read_text().count("asked") == 2
    # The newest answer counts.
    sinfo.write_text(SINFO.replace("*", "").replace("mixed|", "mixed*|"))
    query_partition(None)
    assert default_partition() == "mixed"
    assert calls.read_text().count("asked") == 3


def placement(num_nodes: int = 1) -> Placement:
    return Placement(
        tasks_per_node=(4,) * num_nodes,
        cpus_per_task=1,
        gpus_per_task=0,
        mem_bytes_per_task=None,
    )


def timed(time: Any) -> ScalingConfig:
    return ScalingConfig(slurm=SlurmConfig(time=time))


def test_what_a_partition_can_start_passes():
    check_partition(timed("1-00:00:00"), placement(14), parse_partitions(SINFO, "batch"))
    check_partition(timed("30-00"), placement(4), parse_partitions(SINFO, "mixed"))
    check_partition(timed(None), placement(4), parse_partitions(SINFO, "gpu"))


def test_a_partition_that_is_down_is_refused_with_the_others():
    message = r"partition old is down, .*wait for ever\. Others: batch, gpu, mixed\."
    with pytest.raises(ConfigError, match=message):
        check_partition(timed(None), placement(), parse_partitions(SINFO, "old"))


def test_more_nodes_than_a_partition_has_are_refused():
    message = r"num_workers=24 needs 6 nodes with at most 4 workers each, but partition gpu has 5\."
    with pytest.raises(ConfigError, match=message):
        check_partition(timed(None), placement(6), parse_partitions(SINFO, "gpu"))


def test_what_one_of_several_partitions_can_start_passes():
    check_partition(timed("1-00:00:00"), placement(14), parse_partitions(SINFO, "gpu,batch"))
    with pytest.raises(ConfigError, match=r"partition gpu,batch ends jobs after 1440"):
        check_partition(timed("2-00:00:00"), placement(), parse_partitions(SINFO, "gpu,batch"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cpus": 96}, r"time='3-00'\) is 4320 minutes, but partition big ends jobs after 1440"),
        ({"num_workers": 5, "cpus": 48}, r"needs 5 nodes .* partition long has 4\."),
    ],
)
def test_a_job_starts_in_one_partition_that_has_both_its_nodes_and_its_time(
    sinfo: Path, fields: dict[str, Any], message: str
) -> None:
    sinfo.write_text("long|up|7-00:00:00|4|48|(null)|1\nbig|up|1-00:00:00|9|96|(null)|1\n")
    slurm = {"partition": "long,big", "time": "3-00"}
    with pytest.raises(ConfigError, match=message):
        place_unequal(slurm=slurm, **fields)
    assert place_unequal(slurm={**slurm, "qos": "any"}, **fields)
    assert place_unequal(slurm={**slurm, "time": "1-00"}, **fields)
    spread = place_unequal(num_workers=9, placement_strategy="SPREAD", slurm=slurm)
    assert spread.tasks_per_node == (3, 2, 2, 2)


@pytest.mark.parametrize(("of_request", "of_site"), [("long", None), (None, "long")])
def test_a_qos_may_lift_the_time_limit_of_a_partition_whoever_names_it(
    sinfo: Path, of_request: str | None, of_site: str | None
) -> None:
    scaling = ScalingConfig(slurm=SlurmConfig(partition="gpu", time="2-00", qos=of_request))
    site = Site(directives={} if of_site is None else {"qos": of_site})
    assert place_on_partition(scaling, site, needs_answer=True)[1] == NodeShape(cpus=48, gpus=4)
    with pytest.raises(ConfigError, match=r"partition gpu ends jobs after 720"):
        place_on_partition(timed("2-00"), Site(directives={"partition": "gpu"}), needs_answer=True)


UNEQUAL = """\
all*|up|infinite|20|48|(null)|1
all*|up|infinite|4|96|(null)|1
all*|up|infinite|2|64|gpu:a100:4|1
all*|up|infinite|1|128|gpu:a100:8|1
"""


@pytest.mark.parametrize(
    ("fields", "tasks_per_node"),
    [
        pytest.param({"num_workers": 48}, (48,), id="the smallest where it suffices"),
        pytest.param({"num_workers": 3, "cpus": 96}, (1, 1, 1), id="larger nodes"),
        pytest.param({"num_workers": 2, "cpus": 64}, (1, 1), id="one kind left out"),
        pytest.param({"num_workers": 4, "use_gpu": True}, (4,), id="nodes with GPUs"),
        pytest.param(
            {"num_workers": 8, "use_gpu": True, "placement_strategy": "STRICT_PACK"},
            (8,),
            id="the node with the most GPUs",
        ),
        pytest.param({"num_workers": 96, "slurm": {"nodes": 1}}, (96,), id="nodes that are asked"),
    ],
)
def test_a_job_is_for_nodes_that_are_large_enough(
    sinfo: Path, fields: dict[str, Any], tasks_per_node: tuple[int, ...]
) -> None:
    sinfo.write_text(UNEQUAL)
    assert place_unequal(**fields).tasks_per_node == tasks_per_node


def place_unequal(
    *,
    cpus: int | None = None,
    memory: int | None = None,
    slurm: Any = (),
    site: Site | None = None,
    **fields: Any,
) -> Placement:
    asked = {"CPU": cpus, "memory": memory}
    resources = {name: amount for name, amount in asked.items() if amount is not None}
    scaling = ScalingConfig(
        resources_per_worker=resources, slurm=SlurmConfig(**dict(slurm)), **fields
    )
    return place_on_partition(scaling, site or Site(), needs_answer=True)[0]


@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        pytest.param("4|64|gpu:4|1 4|16|gpu:8|1", {}, id="more CPUs but fewer GPUs"),
        pytest.param("4|64|gpu:4|1 4|16|gpu:8|1 2|64|gpu:2|1", {}, id="and others"),
        pytest.param("1|64|gpu:4|1 1|16|gpu:8|1 1|32|gpu:6|1", {}, id="on nodes of two kinds"),
        pytest.param(
            "4|64|gpu:4|9000 4|64|gpu:8|4000",
            {"memory": 2 * 2**30},
            id="more memory but fewer GPUs",
        ),
    ],
)
def test_a_job_fits_where_nodes_of_one_kind_have_all_that_it_needs(
    sinfo: Path, rows: str, fields: dict[str, Any]
) -> None:
    sinfo.write_text("".join(f"all*|up|infinite|{row}\n" for row in rows.split()))
    asked = {"num_workers": 8, "use_gpu": True, "cpus": 8, "slurm": {"tasks_per_node": 4}}
    assert place_unequal(**{**asked, **fields}).tasks_per_node == (4, 4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_workers": 1, "cpus": 200}, r"CPU=200, but a node has 128"),
        ({"num_workers": 6, "cpus": 96}, r"needs 6 nodes .* partition all has 5\."),
        ({"num_workers": 20, "use_gpu": True}, r"needs 5 nodes .* partition all has 3\."),
    ],
)
def test_what_no_nodes_hold_is_refused_with_those_that_come_next(
    sinfo: Path, fields: dict[str, Any], message: str
) -> None:
    sinfo.write_text(UNEQUAL)
    with pytest.raises(ConfigError, match=message):
        place_unequal(**fields)


def test_a_worker_goes_where_its_memory_is(sinfo: Path) -> None:
    sinfo.write_text("all*|up|infinite|20|64|(null)|9000\nall*|up|infinite|2|64|(null)|99000\n")
    assert place_unequal(num_workers=8, memory=2**31).tasks_per_node == (4, 4)
    assert place_unequal(num_workers=8, memory=2**34).tasks_per_node == (4, 4)
    with pytest.raises(ConfigError, match="memory=1099511627776, but a node has 1038090"):
        place_unequal(num_workers=1, memory=2**40)
    sinfo.write_text("all*|up|infinite|20|64|(null)|1\n")
    assert place_unequal(num_workers=8, memory=2**40).tasks_per_node == (8,)


@pytest.mark.parametrize(
    ("few", "num_nodes"),
    [
        pytest.param("1|64|(null)|128000", 8, id="less memory"),
        pytest.param("1|32|(null)|257000", 8, id="fewer CPUs"),
        pytest.param("1|128|(null)|128000", 8, id="less memory but more CPUs"),
        pytest.param("99|64|(null)|514000", 8, id="more memory"),
        pytest.param("100|64|(null)|128000", 16, id="half of them"),
    ],
)
def test_a_few_small_nodes_among_many_do_not_make_a_run_larger(
    sinfo: Path, few: str, num_nodes: int
) -> None:
    sinfo.write_text(f"all*|up|infinite|100|64|(null)|257000\nall*|up|infinite|{few}\n")
    asked: dict[str, Any] = {"num_workers": 64, "cpus": 8, "memory": 30 * 2**30}
    assert place_unequal(**asked).num_nodes == num_nodes
    # Who spreads workers out asks for all nodes.
    every = 100 + int(few.split("|")[0])
    spread = place_unequal(**{**asked, "num_workers": every, "placement_strategy": "SPREAD"})
    assert spread.num_nodes == every


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"accelerator_type": "a100"}, id="a type of GPU"),
        pytest.param({"label_selector": {"gpu": "a100"}}, id="a label"),
        pytest.param({"slurm": {"constraint": "a100"}}, id="a constraint"),
        pytest.param({"slurm": {"reservation": "course"}}, id="a reservation"),
        pytest.param({"site": Site(directives={"constraint": "a100"})}, id="the site"),
        *(
            pytest.param({"slurm": {"sbatch_args": [option]}}, id=option)
            for option in (
                "--nodelist=node[1-9]",
                "-wnode1",
                "--exclude=node101",
                "-x node101",
                "--nodel=node1",
                "--nodefile=nodes",
                "--gres=nvme:1",
            )
        ),
    ],
)
def test_a_job_that_chooses_among_nodes_may_run_on_the_smallest(
    sinfo: Path, fields: dict[str, Any]
) -> None:
    sinfo.write_text("gpu*|up|infinite|100|64|gpu:a100:4|1\ngpu*|up|infinite|150|64|gpu:h100:8|1\n")
    asked: dict[str, Any] = {"num_workers": 8, "use_gpu": True}
    assert place_unequal(**asked, **fields).tasks_per_node == (4, 4)
    mailed = {"sbatch_args": ["--mail-type=END", "--exclusive"]}
    assert place_unequal(**asked, slurm=mailed).tasks_per_node == (8,)


def test_nodes_that_differ_are_not_added_up_and_hidden_partitions_take_jobs(
    sinfo: Path, tmp_path: Path
) -> None:
    sinfo.write_text("all*|up|infinite|24|48+|(null)|1\n")
    (tmp_path / "sinfo").write_text(
        '#!/bin/sh\ncase "$*" in *--all*--exact*)\n'
        'echo "all*|up|infinite|20|48|(null)|1"; echo "all*|up|infinite|4|96|(null)|1"\n'
        'echo "hidden|up|infinite|4|8|(null)|1";; *) cat answer; esac\n'
    )
    assert place_unequal(num_workers=1, cpus=96).tasks_per_node == (1,)
    assert place_unequal(num_workers=9, slurm={"partition": "hidden"}).tasks_per_node == (5, 4)


def test_gpus_that_the_profile_alone_knows_are_of_all_nodes(sinfo: Path) -> None:
    sinfo.write_text("all*|up|infinite|20|48|(null)|1\nall*|up|infinite|4|96|(null)|1\n")
    placed = place_unequal(num_workers=96, use_gpu=True, site=Site(gpus_per_node=4))
    assert placed.tasks_per_node == (4,) * 24


def test_a_plugin_of_the_site_may_choose_the_partition(
    sinfo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sinfo.write_text(SINFO.replace("*", ""))
    site = Site(cpus_per_node=4)
    placed, _ = place_on_partition(ScalingConfig(num_workers=6), site, needs_answer=True)
    assert placed.tasks_per_node == (3, 3)
    assert "warning: the limits of the partition are not checked" in capsys.readouterr().err
    # Nothing says how many workers a node holds.
    with pytest.raises(ConfigError, match=r"no default partition\. Give SlurmConfig"):
        place_on_partition(ScalingConfig(num_workers=6), Site(), needs_answer=True)


def test_more_time_than_a_partition_gives_is_refused():
    message = r"time='1-00'\) is 1440 minutes, but partition gpu ends jobs after 720 \(12:00:00\)"
    with pytest.raises(ConfigError, match=message):
        check_partition(timed("1-00"), placement(), parse_partitions(SINFO, "gpu"))


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        (
            "sbatch: error: Batch job submission failed: Invalid account or account/partition "
            "combination specified",
            "account='a1', partition='gpu': 'sacctmgr show associations user=$USER' lists",
        ),
        ("sbatch: error: Invalid qos specification", "qos='q1': 'sacctmgr show qos'"),
        ("error: invalid partition specified: gpu", "partition='gpu': 'sinfo' lists"),
        (
            "Requested time limit is invalid (missing or exceeds some limit)",
            "time='1:00:00': ask for less",
        ),
        ("error: Invalid feature specification", "constraint='milan': 'sinfo -o %f' lists"),
        ("error: Requested reservation is invalid", "reservation='r1': 'scontrol show"),
        (
            "Requested node configuration is not available",
            "no node of the partition ever has this much",
        ),
    ],
)
def test_a_refusal_of_slurm_is_explained_by_what_was_asked_for(said: str, hint: str):
    scaling = ScalingConfig(
        slurm=SlurmConfig(
            account="a1",
            partition="gpu",
            qos="q1",
            time="1:00:00",
            constraint="milan",
            reservation="r1",
        )
    )
    message = explain_refusal(said, scaling)
    assert message.startswith(f"Slurm refused the job: {said}.")
    assert f"Look at {hint}" in message


def test_a_refusal_that_nobody_knows_is_passed_on_as_it_is():
    assert explain_refusal("the moon is full\n", ScalingConfig()) == (
        "Slurm refused the job: the moon is full."
    )


def answer_with(
    monkeypatch: pytest.MonkeyPatch, returncode: int, stdout: str = "", stderr: str = ""
) -> None:
    monkeypatch.setattr(probe.environ, "find_program", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(
        probe,
        "run_slurm",
        lambda argv: subprocess.CompletedProcess(argv, returncode, stdout, stderr),
    )


def test_a_machine_without_sbatch_cannot_submit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probe.environ, "find_program", lambda _: None)
    assert not can_submit()


def test_a_machine_whose_controller_answers_can_submit(monkeypatch: pytest.MonkeyPatch):
    answer_with(monkeypatch, 0, "Slurmctld(primary) at head is UP\n")
    assert can_submit()


def test_a_machine_with_slurms_commands_but_no_configuration_is_no_cluster(
    monkeypatch: pytest.MonkeyPatch,
):
    answer_with(
        monkeypatch,
        1,
        stderr="scontrol: error: resolve_ctls_from_dns_srv: res_nsearch error\n"
        "scontrol: fatal: Could not establish a configuration source\n",
    )
    assert not can_submit()


def test_training_does_not_start_on_a_login_node_whose_controller_is_away(
    monkeypatch: pytest.MonkeyPatch,
):
    answer_with(monkeypatch, 1, "Slurmctld(primary) at head is DOWN\n")
    message = r"does not answer: .* is DOWN\. Try again later, or .*HPCTRAIN_LAUNCHER=local"
    with pytest.raises(LaunchError, match=message) as raised:
        can_submit()
    assert raised.value.transient


def test_a_command_that_is_not_installed_is_told_with_the_next_step():
    with pytest.raises(LaunchError, match=r"no-such-sinfo is not on PATH\. Load Slurm"):
        run_slurm(["no-such-sinfo"])


def test_a_command_that_does_not_answer_may_answer_later():
    with pytest.raises(LaunchError, match=r"within 0\.05 s") as raised:
        run_slurm(["sleep", "60"], timeout_s=0.05)
    assert raised.value.transient


def test_a_users_defaults_of_squeue_and_sinfo_hide_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\nenv\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SQUEUE_PARTITION", "debug")
    monkeypatch.setenv("SINFO_PARTITION", "debug")
    monkeypatch.setenv("SLURM_CLUSTERS", "other")
    printed = run_slurm(["squeue", "--noheader"]).stdout
    assert "SQUEUE_" not in printed
    assert "SINFO_PARTITION" not in printed
    assert "SLURM_CLUSTERS=other" in printed


HOSTS = ("a1", "a2", "a3")


@pytest.mark.parametrize(
    ("variables", "nodes"),
    [
        # salloc -N3
        (
            {"SLURM_JOB_CPUS_PER_NODE": "4(x3)", "SLURM_TASKS_PER_NODE": "4(x3)"},
            [AllocatedNode(cpus=4, gpus=2), AllocatedNode(cpus=4, gpus=1), AllocatedNode(cpus=4)],
        ),
        # salloc -N3 -n7 -c2
        (
            {
                "SLURM_NTASKS": "7",
                "SLURM_JOB_CPUS_PER_NODE": "6(x2),2",
                "SLURM_TASKS_PER_NODE": "3(x2),1",
            },
            [
                AllocatedNode(tasks=3, cpus=6, gpus=2),
                AllocatedNode(tasks=3, cpus=6, gpus=1),
                AllocatedNode(tasks=1, cpus=2),
            ],
        ),
        # salloc -N3 --ntasks-per-node=2, without --ntasks
        (
            {"SLURM_NTASKS_PER_NODE": "2", "SLURM_TASKS_PER_NODE": "2(x3)"},
            [
                AllocatedNode(tasks=2, gpus=2),
                AllocatedNode(tasks=2, gpus=1),
                AllocatedNode(tasks=2),
            ],
        ),
        # srun --pty bash inside of it: the tasks are those of the step.
        (
            {
                "SLURM_STEP_ID": "0",
                "SLURM_NTASKS": "3",
                "SLURM_TASKS_PER_NODE": "1(x3)",
                "SLURM_JOB_CPUS_PER_NODE": "4(x3)",
            },
            [AllocatedNode(cpus=4, gpus=2), AllocatedNode(cpus=4, gpus=1), AllocatedNode(cpus=4)],
        ),
        # Numbers that are not those of these nodes.
        (
            {"SLURM_NTASKS": "1", "SLURM_TASKS_PER_NODE": "1", "SLURM_JOB_CPUS_PER_NODE": "4"},
            [AllocatedNode(gpus=2), AllocatedNode(gpus=1), AllocatedNode()],
        ),
    ],
)
def test_what_an_allocation_has_is_read_from_its_variables(
    variables: dict[str, str], nodes: list[AllocatedNode]
):
    found = read_allocation(variables, HOSTS, {"a1": 2, "a2": 1})
    assert found == dict(zip(HOSTS, nodes, strict=True))


@pytest.mark.parametrize(
    ("variables", "mem_mib"),
    [
        ({"SLURM_MEM_PER_NODE": "8192"}, [8192, 8192]),
        ({"SLURM_MEM_PER_CPU": "2048"}, [4096, 8192]),
        # All that a node has.
        ({"SLURM_MEM_PER_NODE": "0"}, [None, None]),
        ({"SLURM_MEM_PER_CPU": "2G"}, [None, None]),
        ({}, [None, None]),
    ],
)
def test_the_memory_of_an_allocation_is_read_from_its_variables(
    variables: dict[str, str], mem_mib: list[int | None]
) -> None:
    found = read_allocation({"SLURM_JOB_CPUS_PER_NODE": "2,4", **variables}, ["a", "b"], {})
    assert [node.mem_mib for node in found.values()] == mem_mib


# scontrol --details --oneliner show job, Slurm 22.05: salloc -N2 -n4 --gpus=4.
DETAILS = (
    "JobId=24 JobName=bash JobState=RUNNING JOB_GRES=gpu:4 "
    "Nodes=node1 CPU_IDs=0-2 Mem=6144 GRES=gpu:3(IDX:0-2) "
    "Nodes=node2 CPU_IDs=0 Mem=2048 GRES=gpu:1(IDX:0) MinCPUsNode=1 MinMemoryCPU=2G"
)


def read_gpus(output: str) -> Mapping[str, int]:
    job = parse_job(output)
    assert job is not None
    return job.gpus


def test_the_gpus_of_each_node_are_read_from_the_details_of_a_job():
    assert read_gpus(DETAILS) == {"node1": 3, "node2": 1}
    typed = DETAILS.replace("gpu:3(IDX:0-2)", "gpu:a100:2(IDX:0-1),gpu:v100:1(IDX:2)")
    assert read_gpus(typed) == {"node1": 3, "node2": 1}


def test_where_slurm_counts_no_gpus_their_number_is_unknown():
    without = DETAILS.replace("gpu:3(IDX:0-2)", "").replace("gpu:1(IDX:0)", "craynetwork:1")
    assert read_gpus(without) == {}


def test_outside_of_an_allocation_there_is_no_shape(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probe.environ, "variable", lambda _: None)
    with pytest.raises(LaunchError, match="needs a Slurm allocation, and SLURM_JOB_NODELIST is"):
        allocation_nodes(with_gpus=False)


@pytest.mark.parametrize(
    "said",
    [
        "sbatch: error: Batch job submission failed: Invalid generic resource (gres) specification",
        "sbatch: error: Invalid Trackable RESource (TRES) specification",
        "sbatch: error: Requested node configuration is not available",
    ],
)
def test_a_refusal_of_gpus_names_what_asks_for_them_and_who_has_some(said: str):
    message = explain_refusal(said, ScalingConfig(use_gpu=True))
    for named in ("use_gpu=True: 'sinfo", "%P %G", "GRES", "partition=...", "use_gpu=False"):
        assert named in message
    assert "use_gpu" not in explain_refusal(said, ScalingConfig())
