from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain import ConfigError, Result, ScalingConfig, SlurmConfig
from hpctrain.plan.resources import NodeShape
from hpctrain.plan.site import load_site, site_names
from hpctrain.plan.template import describe_template, render_template, template_names
from tests.waiting import wait_until_final

CASES = {
    "plain": ScalingConfig(num_workers=4, slurm=SlurmConfig(nodes=2)),
    "site": ScalingConfig(
        num_workers=8,
        use_gpu=True,
        slurm=SlurmConfig(
            site="frontier",
            account="abc",
            time="1:00:00",
            setup=["module load miniforge3"],
            sbatch_args=["--mail-type=END"],
            srun_args=["--label"],
        ),
    ),
}

# They are tested where predictions are.
WITHOUT_SCRIPT = ("predict.sbatch", "serve.sbatch")

# Trains nothing, and imports no framework: the ranks say how many they are.
TRAIN = """
import sys

import hpctrain
from hpctrain.trainer import DataParallelTrainer


def train():
    context = hpctrain.get_context()
    hpctrain.report({"world_size": context.get_world_size()})


DataParallelTrainer(
    train,
    scaling_config=hpctrain.ScalingConfig(
        num_workers=4, slurm=hpctrain.SlurmConfig(nodes=2, mpi=sys.argv[1])
    ),
    run_config=hpctrain.RunConfig(name=sys.argv[2], storage_path=sys.argv[3]),
).fit()
"""


def render(name: str, scaling: ScalingConfig, *, script: str = "my train.py") -> str:
    return render_template(name, script=script, scaling=scaling)


@pytest.mark.parametrize("name", template_names())
@pytest.mark.parametrize("case", sorted(CASES))
def test_a_template_filled_in(golden, name: str, case: str):
    golden(f"{case}/{name}", render(name, CASES[case]))


@pytest.mark.parametrize("name", template_names())
@pytest.mark.parametrize("site", [None, *site_names()])
def test_every_rendering_is_a_shell_script(name: str, site: str | None):
    scaling = ScalingConfig(
        num_workers=4,
        use_gpu=site is not None,
        slurm=SlurmConfig(nodes=1, site=site, setup=["module purge"]),
    )
    text = render(name, scaling)
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    assert text.startswith("#!/bin/bash\n")
    assert not re.search(r"@[A-Z_]+@", text)
    # sbatch reads directives up to the first command.
    lines = text.splitlines()
    commands = [i for i, line in enumerate(lines) if line and not line.startswith("#")]
    assert all(i < commands[0] for i, line in enumerate(lines) if line.startswith("#SBATCH"))


@pytest.mark.parametrize("name", [n for n in template_names() if n not in WITHOUT_SCRIPT])
def test_a_line_break_in_an_argument_ends_no_comment(name: str):
    args = ["--config", "lr: 1\nit's\\\t\x85"]
    scaling = ScalingConfig(num_workers=4, slurm=SlurmConfig(nodes=2))
    text = render_template(name, script="train.py", args=args, scaling=scaling)
    shown = re.sub(r"(?m)^exec .*train.py", "echo -n", text.replace("\\\n", ""))
    ran = subprocess.run(["bash"], input=shown, capture_output=True, check=True, encoding="utf-8")
    assert ran.stdout == " ".join(args)
    assert re.match(r"(#[^\n]*\n|\n)+set -euo", text), "a command is among the directives"


@pytest.mark.parametrize("name", template_names())
def test_a_template_says_in_one_line_what_it_is_for(name: str):
    assert describe_template(name).endswith(".")
    assert len(describe_template(name)) < 100


def test_an_unknown_template_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match=r"choose one of predict.sbatch, .*train.sbatch"):
        render("nothing.sbatch", CASES["plain"])


def test_without_a_shape_of_nodes_their_number_is_asked_for():
    with pytest.raises(ConfigError, match=r"Give SlurmConfig\(nodes=...\)"):
        render("train.sbatch", ScalingConfig(num_workers=4))


def test_a_debugger_needs_no_job():
    with pytest.raises(ConfigError, match="num_workers=0"):
        render("train.sbatch", ScalingConfig(num_workers=0))


def test_the_shape_of_a_node_may_come_from_slurm():
    text = render_template(
        "train.sbatch",
        script="train.py",
        scaling=ScalingConfig(num_workers=8),
        node=NodeShape(cpus=4),
        site=load_site("generic"),
        job_name="mine",
        python="/env/bin/python",
    )
    assert "#SBATCH --nodes=2" in text
    assert "#SBATCH --job-name=mine" in text
    assert text.endswith("exec /env/bin/python train.py\n")


@pytest.mark.parametrize(
    ("name", "slurm", "command"),
    [
        ("spmd-srun.sbatch", {}, "exec srun --mpi=pmi2 "),
        ("spmd-srun.sbatch", {"mpi": "pmix"}, "exec srun --mpi=pmix "),
        ("spmd-srun.sbatch", {"mpi": "wheel"}, "exec srun --mpi=pmi2 "),
        ("spmd-srun.sbatch", {"site": "aws-parallelcluster"}, "exec srun --mpi=pmix "),
        ("spmd-mpiexec.sbatch", {}, "exec mpiexec -n 4 -ppn 2 "),
        ("spmd-mpiexec.sbatch", {"mpi": "/opt/bin/mpiexec"}, "exec /opt/bin/mpiexec -n 4 "),
    ],
)
def test_the_launcher_is_the_one_that_was_asked_for(name: str, slurm, command: str):
    text = render(name, ScalingConfig(num_workers=4, slurm=SlurmConfig(nodes=2, **slurm)))
    assert command in text


def on_cluster(cluster, argv: list[str], cwd: Path, *, timeout_s: float = 120) -> str:
    done = cluster.run_on("head", argv, cwd=cwd, timeout_s=timeout_s)
    log = cwd / "job.out"
    said = log.read_text() if log.exists() else ""
    assert done.returncode == 0, done.stdout + done.stderr + said
    return done.stdout


def await_end(path: Path, log: Path, *, timeout_s: float = 90) -> Result:
    def said() -> str:
        return f"the end of {path}. {log.name}: {log.read_text() if log.exists() else 'nothing'}"

    return wait_until_final(path, said, timeout_s=timeout_s)


@pytest.mark.slurm
@pytest.mark.parametrize("name", [n for n in template_names() if n not in WITHOUT_SCRIPT])
def test_a_template_trains_on_a_cluster(virtual_slurm, tmp_path: Path, name: str):
    mpiexec = Path(sys.executable).with_name("mpiexec")
    if not mpiexec.exists():
        pytest.skip("no MPI wheel beside this Python: pip install 'hpctrain[local]'")
    storage = tmp_path / "runs"
    (tmp_path / "train.py").write_text(TRAIN)
    # Everything that `python` and `hpctrain` need is in this environment.
    path = f'export PATH="{mpiexec.parent}:$PATH"'
    scaling = ScalingConfig(num_workers=4, slurm=SlurmConfig(nodes=2, setup=[path], time=5))
    script = tmp_path / name
    text = render(name, scaling, script="train.py")
    arguments = f"auto {name} {storage}"
    script.write_text(
        text.replace('"$@"', arguments) if name == "submit.sh" else f"{text[:-1]} {arguments}\n"
    )
    if name == "submit.sh":
        if shutil.which("hpctrain", path=str(mpiexec.parent)) is None:
            pytest.skip("no hpctrain beside this Python: pip install -e .")
        on_cluster(virtual_slurm, ["bash", name], tmp_path)
    else:
        on_cluster(virtual_slurm, ["sbatch", "--output=job.out", name], tmp_path)
    result = await_end(storage / name, tmp_path / "job.out")
    assert result.error is None
    assert result.metrics["world_size"] == 4
