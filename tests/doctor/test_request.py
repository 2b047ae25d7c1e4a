"""A request against what a cluster says: each way in which it never starts."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from hpctrain.doctor.finding import Finding, Level
from hpctrain.doctor.request import Ask, check_request
from hpctrain.slurm.cluster_output import Association, LimitRecord, NodeGroup
from hpctrain.slurm.facts import ClusterFacts

# Noon of the day of the reservation below.
NOW = time.mktime((2030, 1, 1, 12, 0, 0, 0, 0, -1))
ASK = Ask(
    user="me",
    partition="gpu",
    account="physics",
    time="01:00:00",
    nodes=4,
    cpus_per_node=16,
    mem_mib_per_node=1024,
    gpus_per_node=4,
)
GROUP = NodeGroup(
    count=8,
    state="idle",
    cpus=64,
    mem_mib=256_000,
    gres="gpu:a100:4(S:0-1)",
    features=("ib", "a100"),
)
FACTS = ClusterFacts(
    partition={
        "PartitionName": "gpu",
        "State": "UP",
        "AllowAccounts": "ALL",
        "AllowQos": "ALL",
        "MaxTime": "1-00:00:00",
        "MaxNodes": "UNLIMITED",
        "MinNodes": "0",
        "TotalNodes": "8",
    },
    groups=[GROUP],
    associations=[
        Association(
            account="physics",
            qos=("normal", "long"),
            default_qos="normal",
            default_account="physics",
        )
    ],
    limits=[
        LimitRecord(kind="QOS", name="normal", fields={"MaxTRESPU": "cpu=256(0)"}),
        LimitRecord(kind="association", name="physics", fields={"GrpTRES": "gres/gpu=64(0)"}),
    ],
)


def check(ask: dict[str, Any] | None = None, facts: dict[str, Any] | None = None) -> list[Finding]:
    return check_request(replace(ASK, **(ask or {})), replace(FACTS, **(facts or {})), now=NOW)


def test_a_request_that_fits_has_nothing_but_good_findings():
    findings = check()
    assert {finding.level for finding in findings} == {Level.OK}
    assert [finding.check for finding in findings] == ["partition", "nodes", "account", "limits"]


def partition(**fields: str) -> dict[str, Any]:
    return {"partition": {**FACTS.partition, **fields}}


def limit(**fields: str) -> dict[str, Any]:
    return {"limits": [LimitRecord(kind="QOS", name="normal", fields=fields)]}


NEVER: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "partition down": ({}, partition(State="DOWN"), "is DOWN", "sinfo"),
    "account not allowed": (
        {},
        partition(AllowAccounts="chemistry,biology"),
        "does not take account 'physics'",
        "chemistry,biology",
    ),
    "account denied": ({}, partition(DenyAccounts="physics"), "does not take account", "account"),
    "QOS not allowed": (
        {"qos": "long"},
        partition(AllowQos="normal"),
        "does not take qos 'long'",
        "normal",
    ),
    "too long": (
        {"time": "2-00:00:00"},
        {},
        "a time limit of 1-00:00:00 at most. The job asks for 2-00:00:00",
        "SlurmConfig(time='1-00:00:00')",
    ),
    "too many nodes for a job": ({}, partition(MaxNodes="2"), "2 nodes for a job", "at most 2"),
    "too few nodes": ({"nodes": 1}, partition(MinNodes="2"), "at least 2 nodes", "at least 2"),
    "more nodes than there are": ({"nodes": 9}, {}, "8 nodes in all", "num_workers"),
    "CPUs of a node": ({"cpus_per_node": 128}, {}, "have 64 at most", "tasks_per_node"),
    "memory of a node": ({"mem_mib_per_node": 512_000}, {}, "have 256000 at most", "mem"),
    "GPUs of a node": ({"gpus_per_node": 8}, {}, "have 4 at most", "accelerator_type"),
    "another GPU": ({"gpu_type": "h100"}, {}, "4 h100 GPUs on each node", "sinfo -o %G"),
    "features": (
        {"constraint": "ib&h100"},
        {},
        "4 nodes with 'ib&h100', but 0 of partition",
        "sinfo -o",
    ),
    "account of somebody else": (
        {"account": "biology"},
        {},
        "account 'biology' is none of user 'me'",
        "one of physics",
    ),
    "QOS of somebody else": (
        {"qos": "urgent"},
        {},
        "QOS 'urgent' is none of account 'physics'",
        "one of long, normal",
    ),
    "time of a QOS": ({}, limit(MaxWallPJ="30"), "00:30:00 for a job at most", "time='00:30:00'"),
    "CPUs of a job": ({}, limit(MaxTRESPJ="cpu=32"), "32 CPUs for a job", "at most 32 CPUs"),
    "GPUs of a node by QOS": ({}, limit(MaxTRESPN="gres/gpu=2"), "2 GPUs for a node", "2 GPUs"),
    "CPUs of a user": ({}, limit(MaxTRESPU="cpu=32(0)"), "32 CPUs for each user", "32 CPUs"),
    "memory of a job": ({}, limit(MaxTRESPJ="mem=2G"), "2G of memory for a job", "2G of memory"),
    "at least": ({}, limit(MinTRESPJ="node=8"), "at least 8 nodes for a job", "at least 8 nodes"),
    "CPU minutes": (
        {},
        limit(GrpTRESRunMins="cpu=1000(0)"),
        "1000 minutes of CPU of all that runs. The job asks for 3840",
        "num_workers",
    ),
    "no reservation": ({"reservation": "day"}, {}, "there is no reservation 'day'", "scontrol"),
}


@pytest.mark.parametrize(("ask", "facts", "what", "step"), NEVER.values(), ids=list(NEVER))
def test_what_never_starts_is_an_error_that_says_what_to_change(
    ask: dict[str, Any], facts: dict[str, Any], what: str, step: str
):
    errors = [finding for finding in check(ask, facts) if finding.level is Level.ERROR]
    assert errors
    assert what in errors[0].what
    assert step in errors[0].step
    assert errors[0].why


WAITS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "nodes down": (
        {},
        {"groups": [replace(GROUP, count=3), replace(GROUP, count=5, state="drained*")]},
        "3 of the 8 nodes that fit are up, and 4 are needed",
    ),
    "CPUs in use": ({}, limit(MaxTRESPU="cpu=128(100)"), "100 of them in use"),
    "jobs": ({}, limit(MaxJobsPU="2(2)"), "2 jobs for each user at a time, 2 of them in use"),
}


@pytest.mark.parametrize(("ask", "facts", "what"), WAITS.values(), ids=list(WAITS))
def test_what_waits_is_a_warning(ask: dict[str, Any], facts: dict[str, Any], what: str):
    findings = check(ask, facts)
    assert Level.ERROR not in {finding.level for finding in findings}
    assert [f.level for f in findings if what in f.what] == [Level.WARNING], findings


ACCOUNTS = [
    LimitRecord(kind="association", name="physics", fields={"ParentAccount": "science(2)"}),
    LimitRecord(kind="association", name="science", fields={"ParentAccount": "root(1)"}),
    LimitRecord(kind="association", name="physics", user="me", fields={"ParentAccount": ""}),
]
RESERVATION = {
    "ReservationName": "day",
    "StartTime": "2030-01-01T00:00:00",
    "EndTime": "2030-01-02T00:00:00",
    "Duration": "1-00:00:00",
    "NodeCnt": "4",
    "Users": "me,you",
    "Accounts": "(null)",
    "State": "ACTIVE",
}


@pytest.mark.parametrize(
    ("changes", "ask", "level", "what"),
    [
        ({}, {}, Level.OK, "is active"),
        ({"State": "INACTIVE"}, {}, Level.WARNING, "begins 2030-01-01"),
        ({"Users": "you"}, {}, Level.ERROR, "is not for user 'me'"),
        ({"Users": "(null)", "Accounts": "physics"}, {}, Level.OK, "is active"),
        ({"NodeCnt": "3"}, {}, Level.ERROR, "has 3 nodes, and 4 are needed"),
        ({"Duration": "00:30:00"}, {}, Level.ERROR, "lasts 00:30:00"),
        ({"Users": "(null)", "Accounts": "physics"}, {"account": None}, Level.OK, "is active"),
        ({"Users": "(null)", "Accounts": "physics"}, {"account": "Physics"}, Level.OK, "active"),
        ({"Users": "(null)", "Accounts": "science"}, {}, Level.OK, "is active"),
        ({"Users": "(null)", "Accounts": "-physics"}, {}, Level.ERROR, "for account 'physics'"),
        ({"Users": "-bob"}, {}, Level.OK, "is active"),
        ({"Users": "-bob,-me"}, {}, Level.ERROR, "is not for user 'me'"),
        ({"Users": "me", "Accounts": "biology"}, {}, Level.ERROR, "not for account 'physics'"),
        ({"Users": "you", "Accounts": "physics"}, {}, Level.ERROR, "is not for user 'me'"),
        ({"Users": "(null)", "Groups": "lab"}, {}, Level.NOTE, "is for lab; whether 'me' is in"),
        ({}, {"time": "13:00:00"}, Level.ERROR, "in 720 minutes, and the job asks for 13:"),
        ({"State": "INACTIVE"}, {"time": "13:00:00"}, Level.WARNING, "begins 2030-01-01"),
        ({"Flags": "SPEC_NODES,DAILY"}, {"time": "13:00:00"}, Level.OK, "is active"),
        ({"Flags": "FLEX"}, {"time": "2-00:00:00"}, Level.OK, "is active"),
    ],
)
def test_a_reservation_is_compared_with_the_request(
    changes: dict[str, str], ask: dict[str, Any], level: Level, what: str
):
    record = {**RESERVATION, **changes}
    facts = {"reservation": record, "records": ACCOUNTS}
    finding = check({**ask, "reservation": "day"}, facts)[-1]
    assert (finding.level, what in finding.what) == (level, True), finding


@pytest.mark.parametrize(
    ("ask", "enforced", "level"),
    [
        ({"account": "biology"}, None, Level.ERROR),
        ({"account": "biology"}, {"associations"}, Level.ERROR),
        ({"account": "biology"}, {"none"}, Level.NOTE),
        ({"qos": "short"}, {"associations", "qos"}, Level.ERROR),
        ({"qos": "short"}, {"associations"}, Level.NOTE),
    ],
)
def test_an_account_that_slurm_does_not_look_at_is_no_error(
    ask: dict[str, Any], enforced: set[str] | None, level: Level
):
    facts = {"enforced": None if enforced is None else frozenset(enforced)}
    (finding,) = (f for f in check(ask, facts) if f.check in ("account", "QOS"))
    assert finding.level is level


def test_what_slurm_does_not_say_is_not_checked_and_no_error():
    findings = check_request(ASK, ClusterFacts(), now=NOW)
    assert {finding.level for finding in findings} == {Level.NOTE}


@pytest.mark.parametrize(
    ("constraint", "fits"),
    [
        ("ib&a100", True),
        ("ib,h100", False),
        ("h100|ib", True),
        ("h100&ib|a100", True),
        # Slurm reads it as (a100|h100)&opa.
        ("a100|h100&opa", False),
        ("opa&h100|ib", True),
    ],
)
def test_features_are_read_from_left_to_right(constraint: str, fits: bool):
    (finding,) = (f for f in check({"constraint": constraint}) if f.check == "nodes")
    assert finding.level is (Level.OK if fits else Level.ERROR)


@pytest.mark.parametrize("constraint", ["[a100|h100]", "ib*2", "(a|b)&c", "!ib"])
def test_a_constraint_that_is_complicated_is_left_to_slurm(constraint: str):
    assert Level.ERROR not in {finding.level for finding in check({"constraint": constraint})}
