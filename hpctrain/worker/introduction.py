"""How a rank comes to its executor."""

from __future__ import annotations

from hpctrain.control.link import Link
from hpctrain.rundir.paths import RunPaths
from hpctrain.worker.bootstrap import hello_details
from hpctrain.worker.profiling import answer_profile_requests
from hpctrain.worker.stacks import answer_with_stacks
from hpctrain.worker.step_times import answer_step_times
from hpctrain.world import World


def introduce(link: Link, paths: RunPaths, world: World) -> None:
    """Introduce a rank, which then answers what the executor asks at any time. Not collective."""
    answer_with_stacks(link, paths, world)
    answer_profile_requests(link, paths, world)
    answer_step_times(link)
    link.introduce(world.world_rank, hello_details(world))
