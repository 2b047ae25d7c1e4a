"""Which of several limits decides, as Slurm's documentation orders them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hpctrain.slurm.cluster_output import LimitRecord
from hpctrain.slurm.limits import find_exceeded, find_limit, records_of
from hpctrain.slurm.output import Job

JOB = Job(job_id="", state="PENDING", time_limit="01:00:00", tres={"cpu": "8"}, num_nodes=1)


def qos(name: str, flags: str = "", **limits: str) -> LimitRecord:
    return LimitRecord(kind="QOS", name=name, fields={"Flags": flags, **limits})


def account(name: str, parent: str = "", user: str = "", partition: str = "", **limits: str):
    fields = {"ParentAccount": f"{parent}(1)" if parent else "", **limits}
    return LimitRecord(kind="association", name=name, user=user, partition=partition, fields=fields)


def exceeded(records: Sequence[LimitRecord], **names: str | None) -> list[str]:
    asked = {"account": "lab", "partition": "gpu", "qos": "long", "partition_qos": None, **names}
    return [
        limit.text.split(":")[0]
        for limit in find_exceeded(JOB, records_of(records, user="me", **asked))  # type: ignore[arg-type]
    ]


LONG, BRIEF = {"MaxWallPJ": "120"}, {"MaxWallPJ": "30"}


@pytest.mark.parametrize(
    ("records", "names", "found"),
    [
        ([qos("long", **BRIEF), account("lab", **LONG)], {}, ["QOS 'long'"]),
        ([qos("long", **LONG), account("lab", user="me", **BRIEF)], {}, []),
        ([qos("long"), account("lab", user="me", **LONG), account("lab", **BRIEF)], {}, []),
        ([account("lab", user="you", **BRIEF), account("lab")], {}, []),
        ([account("lab", "top"), account("top", **BRIEF)], {}, ["account 'top'"]),
        # An account that is its own parent is no endless loop.
        ([account("lab", "lab", **BRIEF)], {}, ["account 'lab'"]),
        ([qos("long", **BRIEF), qos("of_part", **LONG)], {"partition_qos": "of_part"}, []),
        (
            [qos("long", **LONG), qos("of_part", **BRIEF)],
            {"partition_qos": "of_part"},
            ["QOS 'of_part'"],
        ),
        (
            [qos("long", "DenyOnLimit,OverPartQOS", **LONG), qos("of_part", **BRIEF)],
            {"partition_qos": "of_part"},
            [],
        ),
        (
            [
                account("lab", user="me", partition="gpu", **LONG),
                account("lab", user="me", partition="cpu", **BRIEF),
                account("lab", user="me", **BRIEF),
            ],
            {},
            [],
        ),
        # Those of an account and of its parents count each, unless a QOS sets them.
        (
            [account("lab", "top", GrpTRES="cpu=16(0)"), account("top", GrpTRES="cpu=4(0)")],
            {},
            ["account 'top'"],
        ),
        (
            [
                qos("long", GrpTRES="cpu=16(0)"),
                account("lab", "top", GrpTRES="cpu=4(0)"),
                account("top", GrpTRES="cpu=4(0)"),
            ],
            {},
            [],
        ),
    ],
)
def test_the_limit_that_decides_is_the_first_in_order(
    records: list[LimitRecord], names: dict[str, str], found: list[str]
):
    assert exceeded(records, **names) == found


@pytest.mark.parametrize("kind", ["Cpu", "CPU"])
def test_a_limit_for_each_account_is_one_of_a_qos_though_its_reason_does_not_say_so(kind: str):
    job = Job(job_id="7", state="PENDING", reason=f"Max{kind}PerAccount", tres={"cpu": "8"})
    records = [account("lab", MaxTRESPA="cpu=2"), qos("long", MaxTRESPA="cpu=4(4)")]
    limit = find_limit(job, records)
    assert limit is not None
    assert limit.text.startswith("QOS 'long': 4 CPUs for each account at a time")
    assert limit.is_beyond_job


@pytest.mark.parametrize(
    ("asked", "is_beyond"), [("1T", False), ("2P", False), ("3P", True), ("1E", True)]
)
def test_memory_has_all_units_that_slurm_prints(asked: str, is_beyond: bool):
    job = Job(job_id="", state="PENDING", tres={"mem": asked})
    assert bool(find_exceeded(job, [qos("long", MaxTRESPJ="mem=2P")])) is is_beyond
