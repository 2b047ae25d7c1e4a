"""``hpctrain install``: packages without wheels in an index."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

install_app = typer.Typer(
    help="Build and install packages without wheels in an index.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


@install_app.callback()
def _of_install() -> None:
    """Keep ``horovod`` as a subcommand: Typer would drop the name of a single command."""


@install_app.command()
def horovod(
    without_mpi: Annotated[
        bool, typer.Option("--without-mpi", help="Build it with Gloo only.")
    ] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Build it even if the cache has it.")
    ] = False,
    cache: Annotated[
        Path | None,
        typer.Option(
            help="Directory that keeps built wheels.",
            show_default="hpctrain/horovod in XDG_CACHE_HOME or ~/.cache",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", "-j", min=1, help="Compilers at a time.", show_default="CPUs, at most 8"
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="How long the build may take.")
    ] = 3600,
) -> None:
    """Install Horovod for the torch and the MPI of this environment; build it if needed.

    It needs a C++ compiler, make, and some minutes the first time.
    """
    import os
    import time

    from hpctrain.horovod import build

    cache = (cache or build.default_cache()).absolute()
    target = build.find_target(with_mpi=not without_mpi)
    wheel = None if rebuild else build.find_wheel(cache, target)
    if wheel is None:
        began = time.monotonic()
        wheel = build.build_wheel(
            cache,
            target,
            jobs=jobs or min(len(os.sched_getaffinity(0)), 8),
            timeout_s=timeout,
            say=lambda line: print(line, flush=True),
        )
        print(f"built in {time.monotonic() - began:.0f} s: {wheel}")
    else:
        print(f"built before: {wheel}")
    build.install_wheel(wheel)
    print(f"installed: {build.check_installed(target)}")
