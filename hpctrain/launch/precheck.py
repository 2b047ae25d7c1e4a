"""The part of a doctor that is cheap enough for each submission."""

from __future__ import annotations

import math
import os
import pwd
from dataclasses import replace
from typing import TYPE_CHECKING

from hpctrain import timeouts
from hpctrain.doctor.finding import Level
from hpctrain.doctor.request import Ask, check_request
from hpctrain.errors import LaunchError
from hpctrain.log import log
from hpctrain.slurm.facts import ClusterFacts, query_facts, query_limits
from hpctrain.slurm.probe import query_partition
from hpctrain.slurm_config import time_limit_minutes

if TYPE_CHECKING:
    from hpctrain.launch.request import Request
    from hpctrain.plan.launch_plan import LaunchPlan


def warn_of_limits(request: Request, plan: LaunchPlan) -> None:
    """Log what partition, account or QOS never starts. Not collective.

    Two questions, which Slurm's controller answers from its memory. A warning and no error: a site
    has more rules than Slurm tells its users.
    """
    try:
        ask = ask_of(request, plan)
    except (LaunchError, KeyError):
        # No answer, or a user without an entry in the password database: sbatch says what is wrong.
        return
    facts = query_limits(
        user=ask.user,
        partition=ask.partition,
        account=ask.account,
        qos=ask.qos,
        timeout_s=timeouts.PRECHECK_S,
    )
    if ask.qos is not None or facts.partition_qos is not None:
        # They win over associations, and their flags over the partition; only the accounting
        # database has the flags.
        facts = replace(facts, limits=())
    for finding in check_request(ask, facts):
        is_lifted = ask.qos is not None and finding.check == "partition"
        if finding.level is Level.ERROR and finding.check != "reservation" and not is_lifted:
            log(
                f"warning: {finding.what}: it may never start. {finding.step}. 'hpctrain doctor' "
                f"checks the rest."
            )


def query_all(ask: Ask) -> ClusterFacts:
    """Return all that Slurm says of what a job asks for. Not collective."""
    return query_facts(
        user=ask.user,
        partition=ask.partition,
        account=ask.account,
        qos=ask.qos,
        reservation=ask.reservation,
    )


def ask_of(request: Request, plan: LaunchPlan) -> Ask:
    """Return what the job of a run asks for. Not collective.

    Queries Slurm for its default partition if the request names none.
    """
    directives = {**plan.directives, **plan.first_job_directives}
    placement = plan.placement
    # A job in several partitions starts in any of them.
    names = (directives.get("partition") or query_partition(None).name).split(",")
    asked = directives.get("time")
    return Ask(
        # Not LOGNAME, which is any text.
        user=pwd.getpwuid(os.getuid()).pw_name,
        partition=names[0],
        account=directives.get("account"),
        qos=directives.get("qos"),
        reservation=directives.get("reservation"),
        constraint=directives.get("constraint"),
        time=_clock(asked) if asked else "",
        nodes=plan.job_nodes.fewest,
        cpus_per_node=placement.cpus_per_task * placement.max_tasks_per_node,
        mem_mib_per_node=placement.mem_mib_per_node,
        gpus_per_node=placement.gpus_per_node,
        gpu_type=request.scaling_config.accelerator_type,
    )


def _clock(time_limit: str) -> str:
    """Return a time limit as Slurm prints it."""
    minutes, seconds = divmod(math.ceil(time_limit_minutes(time_limit) * 60), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hours:02}:{minutes:02}:{seconds:02}"
