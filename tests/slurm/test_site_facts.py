from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpctrain.errors import ConfigError, LaunchError
from hpctrain.slurm.site_facts import parse_config, parse_partition_facts, query_site


def test_the_configuration_of_slurm_itself_wins_over_that_of_a_plugin() -> None:
    output = (
        "Configuration data as of 2026-11-26T15:46:26\n"
        "ClusterName             = alps\n"
        "PreemptType             = preempt/qos\n"
        "SelectType              = select/cons_tres  \n"
        "SLURM_CONF              = /etc/slurm/slurm.conf\n\n"
        "MPI Plugins Configuration:\n"
        "ClusterName             = other\n\n"
        "Slurmctld(primary) at head is UP\n"
    )
    assert parse_config(output) == {
        "ClusterName": "alps",
        "PreemptType": "preempt/qos",
        "SelectType": "select/cons_tres",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
    }


def test_partitions_have_their_nodes_and_their_fields() -> None:
    nodes = (
        "cpu|10|idle|128|256000|(null)|rome\n"
        "gpu*|3|mixed|64+|512000+|gpu:a100:4(S:0-1)|a100,ib\n"
        "gpu*|1|drained*|32|512000|gpu:v100:2,gpu:a100:2|v100\n"
        "new|0|n/a|0|0|(null)|\n"
    )
    records = (
        "PartitionName=gpu AllowGroups=ALL Default=YES MaxTime=1-00:00:00\n"
        "PartitionName=cpu AllowGroups=ALL Default=NO MaxTime=UNLIMITED\n"
    )
    cpu, gpu, new = parse_partition_facts(nodes, records)
    assert (cpu.name, cpu.is_default, cpu.num_nodes, cpu.gpu_types) == ("cpu", False, 10, ())
    assert (gpu.name, gpu.is_default, gpu.num_nodes) == ("gpu", True, 4)
    assert gpu.gpu_types == ("a100", "v100")
    assert [(group.cpus, group.gpus(None)) for group in gpu.groups] == [(64, 4), (32, 4)]
    assert gpu.fields["MaxTime"] == "1-00:00:00"
    assert (new.name, list(new.groups), new.fields) == ("new", [], {})


def fake_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch, *, sinfo: str) -> None:
    """Put commands in front of Slurm's that print what a cluster might."""
    for name, text in (
        ("scontrol", "ClusterName = alps"),
        ("sinfo", sinfo),
        ("srun", "MPI plugin types are...\n\tpmi2"),
    ):
        program = folder / name
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


@pytest.mark.parametrize(
    ("sinfo", "partition", "message"),
    [
        ("cpu|1|idle|4|1|(null)|", None, r"no default partition.*one of cpu"),
        ("cpu*|1|idle|4|1|(null)|", "gpu", r"partition='gpu'.*this cluster has cpu"),
        (
            "new*|0|n/a|0|0|(null)|\ncpu|1|idle|4|1|(null)|",
            None,
            r"partition new has no nodes.*one of cpu\.$",
        ),
    ],
)
def test_a_partition_that_cannot_be_described_is_refused(
    sinfo: str, partition: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_slurm(tmp_path, monkeypatch, sinfo=sinfo)
    with pytest.raises(ConfigError, match=message):
        query_site(partition)


def test_runtimes_for_containers_are_programs_and_pyxis_an_option_of_srun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_slurm(tmp_path, monkeypatch, sinfo="cpu*|1|idle|4|1|(null)|")
    for name in ("shifter", "podman-hpc"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert query_site(None).containers == ("shifter", "podman-hpc")
    (tmp_path / "srun").write_text("#!/bin/sh\necho '      --container-image=[USER@]IMAGE'\n")
    assert query_site(None).containers == ("pyxis", "shifter", "podman-hpc")


def test_without_slurm_the_next_step_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match=r"scontrol is not on PATH.*on a login node"):
        query_site(None)


@pytest.mark.slurm
def test_a_cluster_says_what_it_is(in_slurm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # sinfo would show no other.
    monkeypatch.setenv("SINFO_PARTITION", "high")
    monkeypatch.setenv("LOADEDMODULES", "gcc/12.2:cuda/12.1")
    facts = query_site(None)
    assert facts.partition.name == "main"
    assert facts.partition.is_default
    assert {partition.name for partition in facts.partitions} >= {"main", "high", "short", "down"}
    assert facts.partition.num_nodes == 4
    assert {group.gpus(None) for group in facts.partition.groups} == {4}
    assert {group.cpus for group in facts.partition.groups} == {4}
    assert facts.config["ClusterName"] == "hpctrain"
    assert facts.config["SLURM_VERSION"][:2].isdigit()
    assert "pmi2" in facts.pmi_types
    assert facts.modules == ("gcc/12.2", "cuda/12.1")
    assert query_site("short").partition.fields["MaxTime"] == "00:02:00"
