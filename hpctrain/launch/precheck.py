"""The part of a doctor that is cheap enough for each submission."""

from __future__ import annotations

import math
import os
import pwd
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hpctrain import timeouts
from hpctrain.doctor.finding import Finding, Level, has_error
from hpctrain.doctor.request import Ask, check_request
from hpctrain.errors import ConfigError, HpctrainError
from hpctrain.log import log
from hpctrain.plan.sbatch import memory_of_node
from hpctrain.slurm.facts import ClusterFacts, query_facts, query_limits
from hpctrain.slurm.limits import has_limits
from hpctrain.slurm.probe import default_partition
from hpctrain.slurm_config import time_limit_minutes

if TYPE_CHECKING:
    from hpctrain.launch.request import Request
    from hpctrain.plan.launch_plan import LaunchPlan


def warn_of_limits(request: Request, plan: LaunchPlan) -> None:
    """Log what partition, account or QOS never starts. Not collective.

    Three questions, which Slurm's controller answers from its memory. A warning and no error: a
    site has more rules than Slurm tells its users.
    """
    try:
        ask = asks_of(request, plan)[0]
    except HpctrainError:
        # No answer, or a user without an entry in the password database: sbatch says what is wrong.
        return
    if "," in (plan.directives.get("partition") or ""):
        # It starts in any of them.
        return
    facts = query_limits(
        user=ask.user,
        partition=ask.partition,
        account=ask.account,
        qos=ask.qos,
        timeout_s=timeouts.PRECHECK_S,
    )
    of_qos = [record for record in facts.records if record.kind == "QOS"]
    if ask.qos not in [record.name for record in of_qos] and has_limits(of_qos):
        # Those of a QOS win over the association's, and which QOS is the default one, only the
        # accounting database knows.
        facts = replace(facts, limits=())
    for finding in check_request(ask, facts, now=time.time()):
        is_lifted = ask.qos is not None and finding.check == "partition"
        if finding.level is Level.ERROR and finding.check != "reservation" and not is_lifted:
            log(
                f"warning: {finding.what}: it may never start. {finding.step}. 'hpctrain doctor' "
                f"checks the rest."
            )


def check_asks(asks: Sequence[Ask]) -> list[Finding]:
    """Return what is wrong with a request in the partition where it fits best. Not collective."""
    found = [check_request(ask, query_all(ask), now=time.time()) for ask in asks]
    return next((findings for findings in found if not has_error(findings)), found[0])


def query_all(ask: Ask) -> ClusterFacts:
    """Return all that Slurm says of what a job asks for. Not collective."""
    return query_facts(
        user=ask.user,
        partition=ask.partition,
        account=ask.account,
        qos=ask.qos,
        reservation=ask.reservation,
    )


def asks_of(request: Request, plan: LaunchPlan) -> list[Ask]:
    """Return what the job of a run asks for, once for each partition that it may start in.

    Not collective. Queries Slurm for its default partition if the request names none, and this
    process has not asked before.

    Raises
    ------
    ConfigError
        If this user has no entry in the password database.
    LaunchError
        If Slurm does not answer.
    """
    try:
        # Not LOGNAME, which is any text.
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError as error:
        raise ConfigError(
            f"the user {os.getuid()} has no name on this machine, so Slurm cannot know them."
        ) from error
    directives = {**plan.directives, **plan.first_job_directives}
    placement = plan.placement
    names = (directives.get("partition") or default_partition()).split(",")
    asked = directives.get("time")
    cpus = placement.cpus_per_task * placement.max_tasks_per_node
    ask = Ask(
        user=user,
        partition=names[0],
        account=directives.get("account"),
        qos=directives.get("qos"),
        reservation=directives.get("reservation"),
        constraint=directives.get("constraint"),
        time=_clock(asked) if asked else "",
        nodes=plan.job_nodes.fewest,
        cpus_per_node=cpus,
        mem_mib_per_node=memory_of_node(directives, placement, job_cpus=cpus),
        gpus_per_node=placement.gpus_per_node,
        gpu_type=request.scaling_config.accelerator_type,
    )
    return [replace(ask, partition=name) for name in names]


def _clock(time_limit: str) -> str:
    """Return a time limit as Slurm prints it."""
    if not time_limit[:1].isdigit():
        return "UNLIMITED"
    minutes, seconds = divmod(math.ceil(time_limit_minutes(time_limit) * 60), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hours:02}:{minutes:02}:{seconds:02}"
