"""The first hour of a new user, with the wheel: the README line by line, then what comes next.

``pytest tests/newcomer --rewrite-golden`` writes the golden files anew: look at the difference.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]
GOLDEN = Path(__file__).with_name("golden")

MODEL = """import torch


def make_model():
    return torch.nn.Linear(1, 1)
"""

WAITING = """import pathlib
import time


def wait(epoch):
    while epoch and not pathlib.Path("go").exists():
        time.sleep(0.1)
    time.sleep(2 * (epoch > 0))
"""


def readme(language: str, *, section: str) -> list[str]:
    """Return the code blocks in a language below a heading of the README."""
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    (part,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return re.findall(rf"^```{language}\n(.*?)^```", part, re.DOTALL | re.MULTILINE)


def commands(blocks: Sequence[str]) -> list[str]:
    lines = [line for block in blocks for line in block.splitlines()]
    assert lines
    assert all(line.startswith("$ ") for line in lines)
    return [line[2:] for line in lines]


def assert_golden(name: str, transcripts: dict[int, list[str]], config: pytest.Config) -> None:
    """Compare what was on the screens with the golden files, or write them."""
    printed = {f"{name}-{w}.txt": "\n\n".join(t) + "\n" for w, t in transcripts.items()}
    if config.getoption("--rewrite-golden"):
        GOLDEN.mkdir(exist_ok=True)
        for file, text in printed.items():
            (GOLDEN / file).write_text(text)
    for file, text in printed.items():
        expected = (GOLDEN / file).read_text()
        difference = difflib.unified_diff(
            expected.splitlines(), text.splitlines(), file, "printed", lineterm=""
        )
        assert text == expected, "\n".join(difference)


def follow_readme_to_the_first_run(newcomer: Any) -> None:
    """Install the wheel, save the script, and type what the README says."""
    (install,) = readme("bash", section="Your first run")
    newcomer(install.strip())
    newcomer("python -c 'import hpctrain; print(hpctrain.__file__)'")
    assert "\n/opt/environment/lib/python" in newcomer.transcripts[80][-1]
    (script,) = readme("python", section="Your first run")
    newcomer.save("train.py", script)
    for command in commands(readme("console", section="Your first run")):
        newcomer(command)


@pytest.mark.mpi
def test_the_first_hour_on_a_laptop(newcomer: Any, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("torch")
    follow_readme_to_the_first_run(newcomer)

    # A module beside the script.
    newcomer.save("model.py", MODEL)
    newcomer.edit("train.py", "    import torch\n", "    import torch, model as mine\n")
    newcomer.edit("train.py", "torch.nn.Linear(1, 1)", "mine.make_model()")
    newcomer("python train.py")
    newcomer.edit("train.py", '"line"', '"line2"')
    newcomer("python train.py")
    newcomer.edit("model.py", "Linear(1, 1)", "Linear(1, 1, bias=False)")
    newcomer("python train.py")

    # A function that is broken on one rank, and then mended.
    broken = "(loss.item if epoch < 3 or hpctrain.get_context().get_world_rank() else loss.items)()"
    newcomer.edit("train.py", '"line2"', '"line3"')
    newcomer.edit("train.py", "loss.item()", broken)
    newcomer("python train.py")
    newcomer("hpctrain status line3")
    newcomer.edit("train.py", broken, "loss.item()")
    newcomer("python train.py")
    newcomer("hpctrain list")
    assert_golden("laptop", newcomer.transcripts, request.config)


@pytest.mark.slurm
def test_the_first_hour_on_a_cluster(
    newcomer: Any, virtual_slurm: Any, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("torch")
    follow_readme_to_the_first_run(newcomer)
    login = newcomer.on(virtual_slurm.login_command([], cwd=newcomer.home))
    for command in commands(readme("console", section="The same script on a cluster")):
        login(command)

    # A run that waits after its first report, and is ended by hand a few reports later.
    login.save("waiting.py", WAITING)
    login.edit("train.py", "    import torch\n", "    import torch, waiting\n")
    login.edit("train.py", "loss.backward()", "loss.backward(), waiting.wait(epoch)")
    login.edit("train.py", '"line2"', '"endless"')
    login.edit("train.py", '"epochs": 5', '"epochs": 1_000_000')
    login("hpctrain submit train.py")
    # The first report comes before its checkpoint is complete.
    login("until hpctrain status endless | grep -q checkpoint; do sleep 0.1; done")
    # When the job ends is asked in the background, of a controller that may be busy.
    login("timeout 120 sh -c 'until hpctrain status endless | grep -q left; do sleep 0.1; done'")
    if "[exit code" in login.transcripts[80][-1]:
        said = evidence(login, virtual_slurm, "endless")
        virtual_slurm.run_on("head", ["scancel", "--name=endless"])
        pytest.fail(f"no time left is shown:\n{said}")
    login("hpctrain list")
    login("hpctrain status endless")
    login("hpctrain cancel endless")
    login.save("go", "")
    login("hpctrain wait endless")
    login("hpctrain status endless")
    for lines in login.transcripts.values():
        lines[:] = [how_far_is_left_out(text) if "endless" in text else text for text in lines]
        # Nodes that still end a job are not taken for the next one.
        lines[:] = [re.sub(r"\bnode\d\b", "nodeN", text) for text in lines]
        # Who attaches may come when the run has ended.
        running = r"(?<=^\$ hpctrain attach line2\n)hpctrain: line2 running [^\n]*\n"
        lines[:] = [re.sub(running, "", text) for text in lines]
    assert_golden("cluster", login.transcripts, request.config)


def evidence(login: Any, cluster: Any, run: str) -> str:
    """Return what a run, its executor and Slurm say of it."""
    folder = login.home / "hpctrain_runs" / run
    files = [folder / "status.json", folder / "ledger.jsonl", *folder.glob("slurm/*_log.out")]
    said = [f"{file.name}:\n{file.read_text()}" for file in files if file.exists()]
    jobs = cluster.run_on("head", ["scontrol", "show", "job"])
    return "\n".join([*said, jobs.stdout + jobs.stderr])


def how_far_is_left_out(text: str) -> str:
    """Leave out which report it was, its metrics, and the number of the job before it."""
    text = re.sub(r"(?m)^(  checkpoints) \d+, the newest \d+,", r"\1 N, the newest 00000N,", text)
    # A narrow terminal may break the word.
    text = re.sub(r"(\br\n?e\n?p\n?o\n?r\n?ts?\s+)\d\b", r"\1N", text)
    text = re.sub(r"(?m)^endless  running  .*$", "endless  running", text)
    text = re.sub(r"(?m)^(line2  finished)  \d+", r"\1  N", text)
    # This column is left out where the metrics of that run need its room.
    text = text.replace("  ATTEMPT  RANKS", "  RANKS")
    text = re.sub(r"(?m)^(line2?  finished(?:  N)?)  1  2  ", r"\1  2  ", text)
    text = re.sub(r"\bloss=[\d.e-]+", "loss=X", text)
    return re.sub(r"\b(endless/checkpoints/|from )00000\d\b", r"\g<1>00000N", text)
