"""What ``hpctrain doctor`` says of a job that looks at nodes for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain import ScalingConfig, SlurmConfig
from hpctrain.doctor.finding import Finding, Level
from hpctrain.launch import examine
from hpctrain.launch.examine import clock_ahead_s, explain_refused, probe_directives
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.plan.resources import node_range, place_workers
from hpctrain.plan.sbatch import make_directives
from hpctrain.plan.site import Site
from tests.plans import make_plan


def test_a_job_that_gives_no_answer_names_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: list[str] = []
    monkeypatch.setattr(examine, "_MINUTES", 0)
    monkeypatch.setattr(examine, "_cancel", cancelled.append)
    found = examine._await_answer("7", tmp_path / "answer", tmp_path / "log", patience_s=0.0)
    assert isinstance(found, Finding)
    assert found.what.startswith("job 7 gave no answer within 0 s. --patience sets how long")
    assert cancelled == ["7"]


def plan_of(num_nodes: int) -> LaunchPlan:
    site = Site(gpus_per_node=4, directives={"time-min": "60"})
    scaling = ScalingConfig(
        num_workers=4 * num_nodes,
        use_gpu=True,
        slurm=SlurmConfig(nodes=num_nodes, time="2:00:00", gpu_request="gpus"),
        accelerator_type="a100",
    )
    placement = place_workers(scaling, site.node_shape)
    return replace(
        make_plan("slurm"),
        placement=placement,
        job_nodes=node_range(scaling, placement),
        directives=make_directives(scaling, placement, site, job_name="run"),
    )


@pytest.mark.parametrize("num_nodes", [1, 3])
def test_the_job_that_looks_at_nodes_has_their_gpus_and_less_time(num_nodes: int) -> None:
    plan = plan_of(num_nodes)
    assert plan.directives["gpus"] == f"a100:{4 * num_nodes}"
    directives = probe_directives(plan, min(num_nodes, 2), output="log")
    assert directives["gpus-per-node"] == "a100:4"
    assert directives["nodes"] == str(min(num_nodes, 2))
    assert directives["time"] == "5"
    assert not {"gpus", "time-min"} & directives.keys()


@pytest.mark.parametrize(
    ("num_nodes", "said", "level"),
    [
        (3, "Node count specification invalid.", Level.NOTE),
        (3, "invalid number of nodes (-N 3-2).", Level.NOTE),
        (3, "Invalid feature specification.", Level.ERROR),
        (2, "Node count specification invalid.", Level.ERROR),
    ],
)
def test_a_refusal_of_fewer_nodes_is_none_of_the_run(
    num_nodes: int, said: str, level: Level
) -> None:
    finding = explain_refused(f"Slurm refused the job: {said}", plan_of(num_nodes), 2)
    assert finding.level is level
    assert said in finding.what


@pytest.mark.parametrize(
    ("began_at", "ended_at", "ahead_s"),
    [(101.0, 109.0, 0.0), (191.0, 199.0, 89.0), (11.0, 19.0, -89.0)],
)
def test_the_clock_of_nodes_may_be_ahead_of_the_one_here_or_behind(
    began_at: float, ended_at: float, ahead_s: float
) -> None:
    here = {"submitted_at": 100.0, "seen_at": 110.0}
    assert clock_ahead_s({**here, "began_at": began_at, "time": ended_at}) == ahead_s
