"""The check before each submission: it warns, and stops nothing."""

from __future__ import annotations

import os
import pwd
from dataclasses import replace
from typing import Any, NoReturn, cast

import pytest

from hpctrain.config import ScalingConfig
from hpctrain.errors import ConfigError, LaunchError
from hpctrain.launch import precheck
from hpctrain.launch.precheck import asks_of, check_asks, warn_of_limits
from hpctrain.launch.request import Request
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.plan.resources import make_placement
from hpctrain.plan.sbatch import make_directives
from hpctrain.plan.site import Site
from hpctrain.slurm.cluster_output import LimitRecord, NodeGroup
from hpctrain.slurm.facts import ClusterFacts
from tests.plans import make_plan

BRIEF = LimitRecord(kind="association", name="lab", user="me", fields={"MaxWallPJ": "30"})
UP = {"PartitionName": "gpu", "State": "UP", "MaxTime": "UNLIMITED"}


class _Request:
    scaling_config = ScalingConfig(num_workers=2)


REQUEST = cast(Request, _Request())


def plan(**directives: str) -> LaunchPlan:
    return replace(make_plan("slurm"), directives={"partition": "gpu", **directives})


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What Slurm says of limits; tests change it."""
    said: dict[str, Any] = {"partition": UP, "limits": [BRIEF], "records": [BRIEF]}
    monkeypatch.setattr(precheck, "query_limits", lambda **asked: ClusterFacts(**said))
    return said


def warned(capfd: pytest.CaptureFixture[str], **directives: str) -> str:
    warn_of_limits(REQUEST, plan(**directives))
    return capfd.readouterr().err


def test_a_limit_of_the_association_is_a_warning_with_the_step(
    facts: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    said = warned(capfd, time="60")
    assert "user 'me' in account 'lab': 00:30:00 for a job at most" in said
    assert "SlurmConfig(time='00:30:00')" in said
    assert warned(capfd, time="20") == ""
    # Of a run without a time limit nothing is known.
    assert warned(capfd) == ""


def test_where_a_qos_may_lift_it_nothing_is_said(
    facts: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    qos = LimitRecord(kind="QOS", name="long", fields={"MaxWallPJ": "120"})
    facts["records"] = [BRIEF, qos]
    assert warned(capfd, time="60") == ""
    assert warned(capfd, time="60", qos="unknown") == ""
    # One that is named is known.
    assert "00:30:00" in warned(capfd, time="60", qos="long")
    facts["records"] = [BRIEF, LimitRecord(kind="QOS", name="normal", fields={"MaxWallPJ": ""})]
    assert "00:30:00" in warned(capfd, time="60")


def test_a_job_in_several_partitions_is_left_to_slurm(
    facts: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    assert warned(capfd, partition="down,gpu", time="60") == ""


@pytest.mark.parametrize("time", ["UNLIMITED", "INFINITE"])
def test_no_time_limit_at_all_is_no_error(
    facts: dict[str, Any], capfd: pytest.CaptureFixture[str], time: str
) -> None:
    assert "The job asks for UNLIMITED" in warned(capfd, time=time)


def test_a_user_without_a_name_and_a_slurm_that_does_not_answer_stop_nothing(
    facts: dict[str, Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise LaunchError("no answer", transient=True)

    monkeypatch.setattr(precheck, "default_partition", fail)
    warn_of_limits(REQUEST, make_plan("slurm"))

    def nobody(uid: int) -> NoReturn:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert warned(capfd, time="60") == ""
    with pytest.raises(ConfigError, match=f"user {os.getuid()} has no name"):
        asks_of(REQUEST, plan())


def test_a_request_is_refused_only_where_all_its_partitions_refuse_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = {"down": "DOWN", "gpu": "UP"}

    def query(ask: Any) -> ClusterFacts:
        record = {**UP, "PartitionName": ask.partition, "State": states[ask.partition]}
        group = NodeGroup(count=4, state="idle", cpus=64, mem_mib=1000, gres="")
        return ClusterFacts(partition=record, groups=[group])

    monkeypatch.setattr(precheck, "query_all", query)
    asks = asks_of(REQUEST, plan(partition="down,gpu"))
    assert [ask.partition for ask in asks] == ["down", "gpu"]
    assert "error" not in {finding.level.value for finding in check_asks(asks)}
    states["gpu"] = "INACTIVE"
    assert "partition 'down' is DOWN" in check_asks(asks)[0].what


@pytest.mark.parametrize(
    ("directives", "mem_mib"),
    [
        ({}, None),
        ({"mem": "4T"}, 4 * 2**20),
        ({"mem": "1500"}, 1500),
        ({"mem": "0"}, None),
        ({"mem-per-cpu": "2g"}, 4096),
        ({"mem-per-gpu": "60G"}, None),
    ],
)
def test_the_memory_that_is_checked_is_that_of_the_job(
    directives: dict[str, str], mem_mib: int | None
) -> None:
    (ask,) = asks_of(REQUEST, plan(**directives))
    assert (ask.cpus_per_node, ask.mem_mib_per_node) == (2, mem_mib)


@pytest.mark.parametrize(("skip", "mem_mib"), [((), 4096), (("mem",), None)])
def test_memory_that_a_site_does_not_let_a_job_ask_for_is_not_checked(
    skip: tuple[str, ...], mem_mib: int | None
) -> None:
    scaling = ScalingConfig(num_workers=2, resources_per_worker={"memory": 2**31})
    placement = make_placement(scaling, (2,))
    directives = make_directives(scaling, placement, Site(skip_directives=skip), job_name="run")
    of_job = replace(plan(), placement=placement, directives={**directives, "partition": "gpu"})
    (ask,) = asks_of(REQUEST, of_job)
    assert ask.mem_mib_per_node == mem_mib
