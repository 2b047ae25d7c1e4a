"""Site profiles from fixed facts, compared whole, and read again by the loader of profiles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain.plan.site import Site, parse_site
from hpctrain.slurm.cluster_output import NodeGroup
from hpctrain.slurm.site_facts import PartitionFacts, SiteFacts, parse_partition_facts
from hpctrain.slurm.site_profile import NodesSeen, render_profile

GOLDEN = Path(__file__).parent / "golden"
DATE = "2026-11-26"

CONFIG = {
    "AccountingStorageEnforce": "associations,limits",
    "ClusterName": "alps",
    "JobRequeue": "1",
    "MpiDefault": "pmix",
    "PreemptType": "preempt/qos",
    "SLURM_VERSION": "24.11.5",
    "SelectType": "select/cons_tres",
    "TmpFS": "/scratch/local",
}
CPU, GPU, NEW = PARTITIONS = parse_partition_facts(
    "cpu*|8|idle|128|256000|(null)|rome\n"
    "cpu*|2|allocated|128|256000|(null)|rome\n"
    "gpu|3|mixed|64|512000|gpu:a100:4(S:0-1)|ib\n"
    "gpu|1|idle|48|384000|gpu:v100:2|ib\n"
    "new|0|n/a|0|0|(null)|\n",
    "PartitionName=cpu PreemptMode=OFF GraceTime=0 MaxTime=1-00:00:00 State=UP OverSubscribe=NO\n"
    "PartitionName=gpu PreemptMode=REQUEUE GraceTime=60 MaxTime=UNLIMITED AllowAccounts=ml,bio "
    "QoS=gpu State=UP OverSubscribe=EXCLUSIVE JobDefaults=DefCpuPerGPU=12,DefMemPerGPU=1000\n"
    "PartitionName=new State=DOWN\n",
)
SMALL = SiteFacts(
    config={**CONFIG, "AccountingStorageEnforce": "none", "JobRequeue": "0"},
    partition=CPU,
    partitions=PARTITIONS,
)
LARGE = SiteFacts(
    config=CONFIG,
    partition=GPU,
    partitions=PARTITIONS,
    pmi_types=frozenset({"none", "pmi2", "pmix"}),
    modules=("gcc/12.2", "cuda/12.1"),
    containers=("apptainer", "pyxis"),
)
SEEN = NodesSeen(
    hosts=["gpu1", "gpu2"],
    interfaces=["eth0", "hsn0", "hsn1"],
    fast_interfaces=["hsn0", "hsn1"],
    launcher="srun --mpi=pmix",
    is_connected=True,
)


def load(facts: SiteFacts, seen: NodesSeen | None = None) -> Site:
    return parse_site("x", render_profile(facts, seen, date=DATE), origin="x")


def with_groups(*groups: NodeGroup, fields: dict[str, str] | None = None) -> SiteFacts:
    partition = PartitionFacts(name="p", groups=groups, fields=fields or {})
    return replace(SMALL, partition=partition, partitions=(partition,))


def group(count: int, cpus: int, gres: str = "(null)", mem_mib: int = 1000) -> NodeGroup:
    return NodeGroup(count=count, state="idle", cpus=cpus, mem_mib=mem_mib, gres=gres)


@pytest.mark.parametrize(
    ("name", "facts", "seen"),
    [
        ("site-cpu", SMALL, None),
        ("site-gpu", LARGE, None),
        ("site-gpu-job", LARGE, SEEN),
    ],
)
def test_a_profile_of_fixed_facts(name: str, facts: SiteFacts, seen: NodesSeen | None) -> None:
    text = render_profile(facts, seen, date=DATE)
    assert text == (GOLDEN / f"{name}.toml").read_text()


def test_what_is_written_is_what_the_loader_reads() -> None:
    assert load(LARGE, SEEN) == Site(
        name="x",
        description="Slurm cluster alps, partition gpu",
        cpus_per_node=48,
        gpus_per_node=2,
        cpus_per_gpu=12,
        gpu_request="gpus-per-node",
        mpi="auto",
        requeue=True,
        setup=("module load gcc/12.2", "module load cuda/12.1"),
        directives={"partition": "gpu"},
        environment={"NCCL_SOCKET_IFNAME": "hsn0,hsn1", "GLOO_SOCKET_IFNAME": "hsn0"},
    )
    assert load(SMALL) == Site(
        name="x",
        description="Slurm cluster alps, partition cpu",
        cpus_per_node=128,
        requeue=False,
        directives={"partition": "cpu"},
    )


@pytest.mark.parametrize(
    "name", ['a"b', "a\\b", "a'b", "#x", "ü]=[", "a\x1bb", "a\nrequeue = false", "\x7f", "$(x)"]
)
def test_odd_names_are_values_and_never_toml_or_shell(name: str) -> None:
    partition = replace(CPU, name=name)
    site = load(replace(SMALL, partition=partition, partitions=(partition,), modules=(name,)))
    assert site.directives == {"partition": name}
    assert site.requeue is False
    quoted = {"a'b": """'a'"'"'b'"""}.get(name, f"'{name}'")
    # A module cannot have a name with control characters.
    assert site.setup == ((f"module load {quoted}",) if name.isprintable() else ())


def test_the_names_of_others_cannot_leave_their_comment() -> None:
    config = {**CONFIG, "TmpFS": "/tmp\nrequeue = false", "PreemptType": "\x00"}
    other = replace(CPU, name="x\nmpi = 'none'")
    site = load(replace(LARGE, config=config, partitions=(GPU, other)))
    assert (site.requeue, site.mpi) == (True, "auto")


def test_nodes_without_gpus_do_not_count_for_the_gpus_of_a_node() -> None:
    facts = with_groups(group(2, 32), group(1, 64, "gpu:8"))
    site = load(facts)
    assert (site.cpus_per_node, site.gpus_per_node, site.cpus_per_gpu) == (32, 8, 4)
    assert "guessed: nodes without GPUs do not count, 2 of 3" in render_profile(
        facts, None, date=DATE
    )


def test_more_gpus_than_cpus_give_no_share() -> None:
    assert load(with_groups(group(1, 4, "gpu:8"))).cpus_per_gpu is None


def test_the_limit_of_the_partition_bounds_the_cpus_of_a_node() -> None:
    assert load(with_groups(group(1, 64), fields={"MaxCPUsPerNode": "16"})).cpus_per_node == 16
    facts = with_groups(group(1, 64), fields={"MaxCPUsPerNode": "UNLIMITED"})
    assert load(facts).cpus_per_node == 64


def test_gpus_are_a_gres_where_slurm_has_no_options_for_them() -> None:
    facts = replace(LARGE, config={**CONFIG, "SelectType": "select/linear"})
    assert load(facts).gpu_request == "gres"


def test_memory_is_left_out_where_nodes_have_none() -> None:
    assert load(with_groups(group(2, 4, mem_mib=1))).skip_directives == ("mem",)
    assert load(with_groups(group(1, 4, mem_mib=1), group(1, 4))).skip_directives == ()


def test_the_launcher_that_connected_ranks_is_chosen() -> None:
    seen = replace(SEEN, is_connected=False, other_mpi="pmi2")
    assert load(LARGE, seen).mpi == "pmi2"
    assert load(LARGE, replace(seen, other_mpi=None)).mpi == "auto"
    text = render_profile(LARGE, replace(seen, other_mpi=None), date=DATE)
    assert "# guessed: in a job no launcher connected two ranks" in text
