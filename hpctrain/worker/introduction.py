"""How a rank comes to its executor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.control.link import Link
from hpctrain.control.wire import Frame
from hpctrain.rundir.paths import RunPaths
from hpctrain.worker.bootstrap import hello_details
from hpctrain.worker.stacks import answer_with_stacks
from hpctrain.worker.step_times import answer_step_times
from hpctrain.world import World

if TYPE_CHECKING:
    from hpctrain.worker.rank_profile import RankProfile


def introduce(link: Link, paths: RunPaths, world: World) -> None:
    """Introduce a rank, which then answers what the executor asks at any time. Not collective."""
    answer_with_stacks(link, paths, world)
    _answer_profile_requests(link, paths, world)
    answer_step_times(link)
    link.introduce(world.world_rank, hello_details(world))


def _answer_profile_requests(link: Link, paths: RunPaths, world: World) -> None:
    """Let a link start profiles, also while the main thread is busy."""
    profile: RankProfile | None = None

    def start(frame: Frame) -> None:
        # Few ranks are ever asked.
        from hpctrain.worker.rank_profile import RankProfile

        nonlocal profile
        profile = profile or RankProfile(paths, world)
        profile.start(frame)

    link.handle("profile", start)
