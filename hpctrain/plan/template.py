"""Job scripts to submit by hand, from the templates in ``slurm_templates/``.

A template is a shell script with placeholders ``@NAME@``. Options of sbatch, srun and mpiexec come
from the same functions as those of real submissions.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import fields
from importlib.resources import files
from pathlib import Path

from hpctrain.errors import ConfigError
from hpctrain.plan.argv import worker_step_argv
from hpctrain.plan.launch_plan import StepLauncher
from hpctrain.plan.resources import NodeShape, Placement, place_workers
from hpctrain.plan.sbatch import directive_lines, make_directives
from hpctrain.plan.sbatch_options import check_srun_args
from hpctrain.plan.site import Site, known_shape, load_site, site_srun_args
from hpctrain.scaling_config import ScalingConfig
from hpctrain.slurm_config import SlurmConfig

_SUFFIXES = (".sbatch", ".sh")


def template_names() -> tuple[str, ...]:
    """Return the names of the templates that ship with hpctrain. Not collective."""
    folder = files("hpctrain.slurm_templates")
    return tuple(sorted(f.name for f in folder.iterdir() if f.name.endswith(_SUFFIXES)))


def describe_template(name: str) -> str:
    """Return the purpose of a template, in one line. Not collective.

    Examples
    --------
    >>> describe_template("train.sbatch")[:42]
    'One job: the script starts its ranks itsel'
    """
    return _read_template(name).splitlines()[1].removeprefix("# ")


def render_template(
    name: str,
    *,
    script: str,
    args: Sequence[str] = (),
    scaling: ScalingConfig,
    site: Site | None = None,
    node: NodeShape | None = None,
    job_name: str | None = None,
    python: str = "python",
) -> str:
    """Return a template filled in: a job script that can be submitted.

    Not collective. Pure, except for the files of the templates and site profiles.

    Parameters
    ----------
    name
        One of `template_names`.
    script
        The training script: a path in the directory of the submission, or an absolute one.
    args
        Its arguments.
    scaling
        The number of workers, and the resources of each.
    site
        The site profile; by default that of ``scaling.slurm.site``.
    node
        Shape of a node according to Slurm; the site profile overrides it.
    job_name
        Name of the job; by default that of the script, or of the template.
    python
        The interpreter in the job.

    Raises
    ------
    ConfigError
        If there is no such template, or the workers cannot be placed on nodes.
    """
    text = _read_template(name)
    site = load_site(scaling.slurm.site) if site is None else site
    slurm = scaling.slurm
    placement = place_workers(scaling, known_shape(site, node or NodeShape()))
    site_args = site_srun_args(site, placement, gpu_request=slurm.gpu_request)
    srun_args = (*site_args, *slurm.srun_args)
    check_srun_args(srun_args)
    has_script = "@SCRIPT@" in text or "@STEP@" in text
    stem = Path(script if has_script else name).stem
    directives = make_directives(scaling, placement, site, job_name=job_name or _job_name(stem))
    step = worker_step_argv(
        _launcher(name, scaling.slurm, site),
        placement,
        [python, script, *args],
        srun_args=srun_args,
        local=False,
    )
    # Here no other process ends the remaining ranks when one dies.
    step = [word for word in step if word != "-disable-auto-cleanup"]
    values = {
        "FILE": name,
        "SCRIPT": " ".join(map(_one_line, [script, *args])),
        "PYTHON": shlex.quote(python),
        "NUM_WORKERS": str(placement.num_workers),
        "CPUS": str(scaling.num_cpus_per_worker),
        "GPUS": str(scaling.num_gpus_per_worker),
        "TASKS_PER_NODE": str(placement.max_tasks_per_node),
        "DIRECTIVES": "\n".join(directive_lines(directives)),
        # On a login node there is no job for a site's lines.
        "SETUP": "\n".join((*(() if name == "submit.sh" else site.setup), *slurm.setup)),
        "ENVIRONMENT": _exports(site),
        "STEP": _wrapped(step, last=2 + len(args)),
        "SCALING": "\n".join(f"#     {line}" for line in _scaling_lines(scaling, placement)),
    }
    filled = re.sub(r"@([A-Z_]+)@", lambda match: values[match[1]], text)
    # An empty placeholder leaves neither a gap nor its comment.
    filled = re.sub(r"# What the site needs: [^\n]*\n\n+", "", filled)
    return re.sub(r"\n{3,}", "\n\n", filled)


def _read_template(name: str) -> str:
    if name not in template_names():
        raise ConfigError(f"template {name!r}: choose one of {', '.join(template_names())}.")
    return (files("hpctrain.slurm_templates") / name).read_text("utf-8")


def _launcher(name: str, slurm: SlurmConfig, site: Site) -> StepLauncher:
    mpi = site.mpi if slurm.mpi == "auto" else slurm.mpi
    if name == "spmd-mpiexec.sbatch":
        return StepLauncher(program=mpi if "/" in mpi else "mpiexec", kind="hydra")
    # Nothing is probed here. The MPI wheel of hpctrain[local] uses pmi2.
    fixed = mpi == "auto" or mpi == "wheel" or "/" in mpi
    return StepLauncher(program="srun", kind="srun", pmi="pmi2" if fixed else mpi)


def _job_name(stem: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]", "_", stem) or "train"


def _exports(site: Site) -> str:
    return "\n".join(
        f"export {name}={shlex.quote(value)}" for name, value in site.environment.items()
    )


def _one_line(word: str) -> str:
    """Return a word quoted for bash, without control characters: comments hold it too."""
    if word.isprintable():
        return shlex.quote(word)
    word = word.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + "".join(c if c.isprintable() else _bytes_of(c) for c in word) + "'"


def _bytes_of(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


def _wrapped(words: list[str], *, last: int) -> str:
    """Return a command over several lines, its last words on one."""
    lines: list[str] = []
    for word in map(shlex.quote, words[:-last]):
        if lines and len(lines[-1]) + len(word) < 80:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return " \\\n    ".join([*lines, shlex.join(words[-last:])])


def _scaling_lines(scaling: ScalingConfig, placement: Placement) -> list[str]:
    """Return a ScalingConfig as it is written in a script, with the nodes spelled out."""
    default = ScalingConfig()
    lines = ["ScalingConfig("]
    for field in fields(scaling):
        value = getattr(scaling, field.name)
        if field.name != "slurm" and value != getattr(default, field.name):
            lines.append(f"    {field.name}={value!r},")
    lines.append("    slurm=SlurmConfig(")
    shown = {"nodes": placement.num_nodes, "tasks_per_node": placement.max_tasks_per_node}
    for field in fields(scaling.slurm):
        value = getattr(scaling.slurm, field.name)
        if value != getattr(default.slurm, field.name) or field.name in shown:
            lines.append(f"        {field.name}={shown.get(field.name, value)!r},")
    return [*lines, "    ),", ")"]
