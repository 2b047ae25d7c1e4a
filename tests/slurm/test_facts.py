"""What counts of what Slurm says of limits, where some of it is not said."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from hpctrain.errors import LaunchError
from hpctrain.slurm import facts
from hpctrain.slurm.facts import query_facts

ASSOCIATIONS = """\
ClusterName=c Account=lab UserName= Partition= Priority=0 ID=5
    ParentAccount=root(1) Lft=2 DefAssoc=No
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=30
ClusterName=c Account=lab UserName=me(7) Partition= Priority=0 ID=6
    ParentAccount= Lft=3 DefAssoc=Yes

QOS Records

QOS=long(2)
    MaxWallPJ=120
    User Limits
      7(me)
        MaxJobsPU=4(2)
"""


def answers(enforced: str, *, with_database: bool = True) -> Callable[[Sequence[str], float], str]:
    def ask(argv: Sequence[str], timeout_s: float = 0) -> str:
        words = " ".join(argv)
        if "show config" in words:
            return f"AccountingStorageEnforce = {enforced}\nClusterName             = c\n"
        if "show partition" in words:
            return "PartitionName=gpu QoS=N/A MaxTime=UNLIMITED State=UP\n"
        if "assoc_mgr" in words:
            return ASSOCIATIONS
        if argv[0] == "sacctmgr" and not with_database:
            raise LaunchError("no database")
        if "associations" in words:
            of_another = "" if "cluster=c" in argv else "far||short|short\n"
            return f"{of_another}lab||long,normal|long\n"
        if "show user" in words:
            return "lab\n"
        if "qos" in words:
            return "long|02:00:00|||||||||||PartitionTimeLimit\n"
        return ""

    return ask


def query(monkeypatch: pytest.MonkeyPatch, ask: Callable[..., str]) -> facts.ClusterFacts:
    monkeypatch.setattr(facts, "ask_slurm", ask)
    return query_facts(user="me", partition="gpu", account=None, qos=None, reservation=None)


def test_the_qos_of_the_database_has_what_the_controller_says_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = query(monkeypatch, answers("associations,limits,qos"))
    assert [(record.kind, record.name, record.user) for record in found.limits] == [
        ("QOS", "long", ""),
        ("association", "lab", "me"),
        ("association", "lab", ""),
    ]
    assert found.limits[0].limit("MaxJobsPU") == ("4", "2")
    assert found.qos_flags == {"PartitionTimeLimit"}
    assert found.enforced == {"associations", "limits", "qos"}


def test_accounts_of_another_cluster_of_the_database_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = query(monkeypatch, answers("associations,limits,qos"))
    assert [association.account for association in found.associations or ()] == ["lab"]


@pytest.mark.parametrize("enforced", ["none", "associations", "(null)"])
def test_limits_that_slurm_does_not_enforce_do_not_count(
    monkeypatch: pytest.MonkeyPatch, enforced: str
) -> None:
    assert query(monkeypatch, answers(enforced)).limits == ()


def test_without_the_database_the_controller_knows_the_limits_and_no_default_qos(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = query(monkeypatch, answers("limits", with_database=False))
    assert found.associations is None
    assert [record.kind for record in found.limits] == ["association", "association"]


def test_a_slurm_that_says_nothing_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(argv: Sequence[str], timeout_s: float = 0) -> str:
        raise LaunchError("no answer")

    found = query(monkeypatch, ask)
    assert (found.partition, list(found.groups), list(found.limits)) == ({}, [], [])


def test_nodes_that_differ_are_not_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(argv: Sequence[str], timeout_s: float = 0) -> str:
        if argv[0] != "sinfo":
            return answers("")(argv, timeout_s)
        rows = ("20|idle|48|191000|(null)|x\n", "4|idle|96|1000000|(null)|x\n")
        return "".join(rows) if "--exact" in argv else "24|idle|48+|191000+|(null)|x\n"

    groups = query(monkeypatch, ask).groups
    assert [(group.count, group.cpus, group.mem_mib) for group in groups] == [
        (20, 48, 191000),
        (4, 96, 1000000),
    ]
