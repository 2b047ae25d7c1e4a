"""``hpctrain cluster``: a temporary Slurm cluster on this machine, for experiments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpctrain.cli.options import DryRunOption, JsonOption

if TYPE_CHECKING:
    from hpctrain.testing.slurm import VirtualCluster

StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state", help="Directory of the cluster.", show_default="one for each user below /tmp"
    ),
]

cluster_app = typer.Typer(
    help="Start and use a virtual Slurm cluster on this machine.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


@cluster_app.command()
def up(
    nodes: Annotated[int, typer.Option(help="Number of nodes.")] = 4,
    cpus: Annotated[int, typer.Option(help="CPUs that each node reports.")] = 4,
    gpus: Annotated[int, typer.Option(help="GPUs that each node reports.")] = 0,
    accounting: Annotated[
        bool, typer.Option("--accounting", help="With slurmdbd and a database.")
    ] = False,
    flat: Annotated[
        bool, typer.Option("--flat", help="Several slurmds, no machines: needs no root.")
    ] = False,
    state: StateOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Start a cluster."""
    from hpctrain.cli.exit_codes import say
    from hpctrain.testing.slurm import DEFAULT_STATE_DIR, ClusterSpec, VirtualCluster

    with _cluster_errors():
        spec = ClusterSpec(
            num_nodes=nodes,
            cpus_per_node=cpus,
            gpus_per_node=gpus,
            accounting=accounting,
            mode="flat" if flat else "namespaces",
        )
        shape = (
            f"{nodes} nodes with {cpus} CPUs and {gpus} GPUs each, mode {spec.mode}, in "
            f"{state or DEFAULT_STATE_DIR}"
        )
        if dry_run:
            print(f"would start {shape}")
            return
        VirtualCluster.start(spec, state_dir=state or DEFAULT_STATE_DIR)
    option = f" --state {state}" if state else ""
    say(f"started {shape}")
    say(f'use it with: eval "$(hpctrain cluster env{option})"   or: hpctrain cluster exec CMD')


@cluster_app.command()
def down(
    state: StateOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the state directory.")] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Shut down a cluster with everything that runs on it, and remove it."""
    with _cluster_errors():
        cluster = _attach(state)
        if dry_run:
            print(f"would end the cluster of {cluster.spec.num_nodes} nodes in {cluster.state_dir}")
            return
        cluster.stop(keep=keep)


@cluster_app.command()
def status(state: StateOption = None, json: JsonOption = False) -> None:
    """Show the state of the nodes; exit code 3 if not all are ready."""
    from dataclasses import asdict

    from hpctrain.cli.exit_codes import NEVER_STARTS
    from hpctrain.cli.json_output import print_json

    with _cluster_errors():
        cluster = _attach(state)
        found = cluster.status()
    if json:
        print_json({"state_dir": cluster.state_dir, "ready": found.ready, **asdict(found)})
    else:
        print(f"{cluster.state_dir}  controller {'up' if found.controller_alive else 'down'}")
        for node in found.nodes:
            print(f"{node.name}  {node.address}  {node.state}  {node.reason}".rstrip())
    if not found.ready:
        raise SystemExit(NEVER_STARTS)


@cluster_app.command()
def env(state: StateOption = None) -> None:
    """Print the variables of a client: eval "$(hpctrain cluster env)"."""
    import shlex

    with _cluster_errors():
        for name, value in _attach(state).environ.items():
            print(f"export {name}={shlex.quote(value)}")


@cluster_app.command(
    "exec", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True}
)
def exec_(
    command: Annotated[list[str], typer.Argument(help="The command, with its arguments.")],
    node: Annotated[
        str, typer.Option(help="head, where users log in, or node1, node2 ...")
    ] = "head",
    state: StateOption = None,
) -> None:
    """Run a command on a node of the cluster, in this directory, and return its exit code."""
    import os

    with _cluster_errors():
        argv = _attach(state).command_on(node, command, cwd=Path.cwd())
    os.execvp(argv[0], argv)


def _attach(state: Path | None) -> VirtualCluster:
    from hpctrain.testing.slurm import DEFAULT_STATE_DIR, VirtualCluster

    return VirtualCluster.attach(state or DEFAULT_STATE_DIR)


@contextmanager
def _cluster_errors() -> Iterator[None]:
    from hpctrain.errors import LaunchError
    from hpctrain.testing.slurm import ClusterError

    try:
        yield
    except ClusterError as error:
        raise LaunchError(str(error)) from error
