"""``hpctrain chaos``: inject random faults into runs of a script, and check the results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpctrain.cli.options import ArgsArgument

if TYPE_CHECKING:
    from hpctrain.testing.chaos.kinds import Kind
    from hpctrain.testing.slurm import VirtualCluster

_NEEDS = {
    "nothing": "",
    "root": " (with --local, as root)",
    "slurm": " (not with --local)",
    "nodes": " (not with --local; needs root)",
}


def chaos(
    script: Annotated[
        Path | None, typer.Argument(metavar="SCRIPT", help="The script that calls fit().")
    ] = None,
    args: ArgsArgument = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of runs with faults.")] = 10,
    seed: Annotated[
        int | None, typer.Option(help="Of the faults.", show_default="a new one, printed")
    ] = None,
    faults: Annotated[
        str,
        typer.Option(
            metavar="KIND,...", help="Kinds of faults; --list shows them.", show_default="all"
        ),
    ] = "",
    at_once: Annotated[int, typer.Option(min=1, help="Faults in one run.")] = 1,
    local: Annotated[
        bool, typer.Option("--local", help="Ranks on this machine, without a virtual cluster.")
    ] = False,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the virtual cluster.")] = 4,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC", help="A metric that may differ: a time. Repeatable."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one run may take.")] = 300.0,
    keep: Annotated[
        Path | None,
        typer.Option(help="New directory for all runs.", show_default="a temporary one"),
    ] = None,
    list_kinds: Annotated[bool, typer.Option("--list", help="Show the kinds of faults.")] = False,
) -> None:
    """Break runs of SCRIPT on a virtual cluster; exit code 4 if one ends differently.

    SCRIPT first runs twice without faults. Then each round injects a fault at a random point; the
    run must end with the same metrics in every report, and the same files in the last checkpoint.
    Runs of SCRIPT keep their settings, but have their own directory.
    """
    from hpctrain.errors import ConfigError
    from hpctrain.testing.chaos.kinds import KINDS

    if list_kinds:
        for kind in KINDS.values():
            print(f"{kind.name:<19} {kind.meaning}{_NEEDS[kind.needs]}")
        return
    if script is None:
        raise ConfigError("hpctrain chaos needs a script: hpctrain chaos train.py.")
    if not script.exists():
        raise ConfigError(f"there is no script {script} (working directory {Path.cwd()}).")
    with _folder(keep) as folder, _cluster(local, nodes) as cluster:
        _run_rounds(
            script=script.absolute(),
            args=tuple(args or ()),
            folder=folder,
            cluster=cluster,
            kinds=_chosen(faults, cluster),
            rounds=rounds,
            at_once=at_once,
            seed=seed,
            ignore=tuple(ignore or ()),
            timeout_s=timeout,
        )


def _run_rounds(
    *,
    script: Path,
    args: tuple[str, ...],
    folder: Path,
    cluster: VirtualCluster | None,
    kinds: list[Kind],
    rounds: int,
    at_once: int,
    seed: int | None,
    ignore: tuple[str, ...],
    timeout_s: float,
) -> None:
    import random

    from hpctrain.cli.exit_codes import FAILED, say
    from hpctrain.testing.chaos.experiment import Experiment
    from hpctrain.testing.chaos.trial import Script

    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    print(f"seed {seed}", flush=True)
    experiment = Experiment.begin(
        folder,
        script=Script(path=script, args=args),
        cluster=cluster,
        ignore=ignore,
        timeout_s=timeout_s,
    )
    experiment.check_repeatable()
    print(f"undisturbed, twice the same: {experiment.undisturbed.seconds:.1f} s", flush=True)
    failed = []
    for number in range(1, rounds + 1):
        chance = random.Random(f"{seed} {number}")
        drawn = experiment.draw(kinds, chance, count=at_once)
        verdict = experiment.disturb(drawn)
        result = verdict.result
        by_hand = f", {result.starts} starts by hand" if result.starts > 1 else ""
        print(
            f"{number:>3} {'same' if verdict.passed else 'DIFFERENT'}  "
            f"{' + '.join(map(str, drawn))}  ({result.attempts} attempts{by_hand}, "
            f"{result.seconds:.1f} s)",
            flush=True,
        )
        if not verdict.passed:
            failed.append(number)
            print(verdict.explain(), flush=True)
    if failed:
        say(f"{len(failed)} of {rounds} rounds ended differently. To repeat: --seed {seed}")
        raise SystemExit(FAILED)
    say(f"all {rounds} rounds ended like the undisturbed run")


def _chosen(names: str, cluster: VirtualCluster | None) -> list[Kind]:
    from hpctrain.errors import ConfigError
    from hpctrain.testing.chaos.kinds import KINDS

    possible = {"nothing"}
    if cluster is None:
        from hpctrain.testing.chaos.leftovers import can_mount

        possible |= {"root"} if can_mount() else set()
    else:
        possible |= {"slurm", "nodes"} if cluster.spec.mode == "namespaces" else {"slurm"}
    at_hand = [kind for kind in KINDS.values() if kind.needs in possible]
    if not names:
        return [kind for kind in at_hand if kind.usual]
    wanted = names.split(",")
    for name in wanted:
        if name not in KINDS:
            raise ConfigError(f"--faults={name}: one of {', '.join(KINDS)} is needed.")
        if KINDS[name] not in at_hand:
            raise ConfigError(
                f"--faults={name} is not possible here{_NEEDS[KINDS[name].needs]}. "
                f"Available: {', '.join(kind.name for kind in at_hand)}."
            )
    return [KINDS[name] for name in wanted]


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    import tempfile

    from hpctrain.errors import ConfigError

    if keep is not None:
        if keep.exists() and any(keep.iterdir()):
            raise ConfigError(f"--keep={keep} holds files. Name a new directory.")
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="hpctrain-chaos-") as folder:
        yield Path(folder)


@contextmanager
def _cluster(local: bool, nodes: int) -> Iterator[VirtualCluster | None]:
    if local:
        yield None
        return
    import tempfile

    from hpctrain.errors import LaunchError
    from hpctrain.testing.slurm import ClusterError, ClusterSpec, VirtualCluster, best_mode
    from hpctrain.testing.slurm.components import check_components

    try:
        spec = ClusterSpec(num_nodes=nodes, mode=best_mode())
        check_components(spec)
        # Slurm's sockets need a short path.
        state_dir = Path(tempfile.mkdtemp(prefix="hc-", dir="/tmp"))
        cluster = VirtualCluster.start(spec, state_dir=state_dir)
    except ClusterError as error:
        raise LaunchError(f"{error}\nWithout a cluster: hpctrain chaos --local.") from error
    with cluster:
        yield cluster
