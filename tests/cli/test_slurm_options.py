from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.testing import CliRunner

from hpctrain.cli.slurm_options import SlurmFields, scaling_of, with_slurm_options


def test_a_verb_gets_the_fields_that_were_given_and_shows_the_options_in_their_place():
    taken: dict[str, Any] = {}

    @with_slurm_options(without=("constraint", "time"))
    def verb(
        name: Annotated[str, typer.Argument()],
        *,
        first: Annotated[str, typer.Option("--first")] = "",
        slurm: SlurmFields,
        last: Annotated[bool, typer.Option("--last")] = False,
    ) -> None:
        """Do it."""
        taken.update(name=name, first=first, slurm=slurm, last=last)

    app = typer.Typer(rich_markup_mode=None)
    app.command()(verb)
    given = ["run", "--last", "-p", "gpu", "--ntasks-per-node", "4"]
    assert CliRunner().invoke(app, given).exit_code == 0
    slurm = {"partition": "gpu", "tasks_per_node": 4}
    assert taken == {"name": "run", "first": "", "slurm": slurm, "last": True}
    shown = CliRunner().invoke(app, ["--help"]).stdout
    assert "Do it." in shown
    options = ["--first", "--partition", "--account", "--qos", "--nodes", "--ntasks", "--last"]
    places = [shown.index(option) for option in options]
    assert places == sorted(places)
    assert "--constraint" not in shown


def test_a_request_without_cpus_leaves_them_to_the_site():
    scaling = scaling_of(4, cpus=None, gpus=2, slurm={"nodes": 1})
    assert (scaling.num_workers, scaling.use_gpu, scaling.slurm.nodes) == (4, True, 1)
    assert scaling.resources_per_worker == {"GPU": 2.0}
