"""Every code block of the documentation runs, or is read by the program that it is written for.

A block whose name begins with ``exec-`` runs as it is. For the others ``pages/PAGE.py`` has what
they assume, and runs with a block in place of each line ``# block: NAME``, on two ranks without
GPUs, and with the paths of a cluster below the working directory.

Of blocks for a shell, those of the tutorial, the README's console and what predicts with
JAX run. The others, which install, break runs, measure for minutes or need a site, are read by
bash and by the parser of ``hpctrain``. Blocks of text are output and drawings.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from code_blocks import BLOCKS, CHECKOUT, PAGES, PYTHON, Block, block

HERE = Path(__file__).parent
MARK = re.compile(r"^( *)# block: (\S+)\n", re.MULTILINE)

# What a page needs beside hpctrain.
NEEDS = {
    "README": ("h5py", "xgboost"),
    "checkpoints": ("torch", "safetensors"),
    "data": ("h5py", "torch"),
    "from-torchrun": ("torch",),
    "horovod": ("horovod",),
    "huggingface": ("transformers", "accelerate", "sklearn", "pyarrow"),
    "jax": ("jax", "orbax.checkpoint", "h5py"),
    "lightning": ("lightning",),
    "own-framework": ("sklearn",),
    "prediction": ("h5py", "xgboost"),
    "top": ("IPython",),
    "ray-train": ("torch",),
    "tracking": ("lightning",),
    "trees": ("lightgbm", "pandas", "pyarrow", "sklearn", "xgboost"),
}

# Run by other tests, as they are.
RUN_ELSEWHERE = {
    "chaos-test": "test_the_chaos_test_of_the_page_runs",
    "from-torchrun-train": "test_docs.py",
    "own-framework-contract": "test_the_contract_test_of_the_page_runs",
    "preprocessors-trainer": "test_docs.py",
    "readme-python-1": "test_docs.py and tests/newcomer",
    "tracking-train": "test_docs.py",
    "tune-jobs": "tests/tune/test_jobs.py",
    "tutorial-result": "test_docs.py",
    "tutorial-train": "test_docs.py",
}
# Run in the environment of nox -s tensorflow: tests/tensorflow_trainer/test_docs.py.
OF_TENSORFLOW = {"tensorflow-loop", "tensorflow-predict", "tensorflow-train"}


def page_script(page: str) -> str:
    """Return the script of a page, with its blocks, as it runs on a laptop."""
    source = (HERE / "pages" / f"{page}.py").read_text(encoding="utf-8")
    script = MARK.sub(lambda m: textwrap.indent(code_of(m[2]), m[1]), source)
    script = re.sub(r"num_workers=\d+", "num_workers=2", script)
    script = re.sub(r'(max_epochs=|num_boost_round=|"epochs": )\d+', r"\g<1>2", script)
    script = re.sub(r"range\(90\)|nodes=4, ", lambda m: {"r": "range(2)"}.get(m[0][0], ""), script)
    script = script.replace("use_gpu=True", "use_gpu=False").replace('{"CPU": 16}', '{"CPU": 1}')
    script = re.sub(r"(?<=[\" ])/(scratch|models)/", r"\1/", script)
    return script.replace('"EXAMPLES"', repr(str(CHECKOUT / "examples")))


def code_of(name: str) -> str:
    """Return a block as Python: of a difference the new script, of a console what is typed."""
    (found,) = [b for b in BLOCKS if b.name == name]
    if found.language == "console":
        return "".join(f"subprocess.run({c!r}, shell=True, check=True)\n" for c in typed(found))
    return side(found, "+") if found.language == "diff" else found.text


def side(shown: Block, sign: str) -> str:
    """Return the old (``-``) or the new (``+``) script of a difference."""
    lines = [line for line in shown.text.splitlines() if line[:1] in (sign, " ", "")]
    return "\n".join(line[1:] for line in lines) + "\n"


def run(argv: list[str], cwd: Path) -> None:
    hidden = ("SLURM_", "HPCTRAIN_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    environment = {**kept, "PYTHONPATH": str(CHECKOUT), "HPCTRAIN_LAUNCHER": "local"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(
        argv, cwd=cwd, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]


# The slowest by far, for its imports; tests/huggingface_trainer trains and predicts in CI.
LONG = {"huggingface"}
RUN_HERE = sorted(path.stem for path in (HERE / "pages").glob("*.py"))


@pytest.mark.mpi
@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=[pytest.mark.long] if p in LONG else []) for p in RUN_HERE]
)
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path) -> None:
    for module in NEEDS.get(page, ()):
        pytest.importorskip(module)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "page.py").write_text(page_script(page), encoding="utf-8")
    run([sys.executable, "page.py"], tmp_path)


def test_every_python_block_runs_in_a_test() -> None:
    scripts = [path.read_text() for path in (HERE / "pages").glob("*.py")]
    run_in_pages = {name for script in scripts for _, name in MARK.findall(script)}
    code = [*PYTHON, *of_language("diff")]
    named = {b.name for b in code if not b.name.startswith("exec-")}
    assert [str(b) for b in code if not b.name] == []
    run_in_pages -= {b.name for b in of_language("console")}
    assert named == run_in_pages | RUN_ELSEWHERE.keys() | OF_TENSORFLOW


@pytest.mark.mpi
def test_the_contract_test_of_the_page_runs(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    (tmp_path / "averaging.py").write_text((CHECKOUT / "examples/averaging.py").read_text())
    (tmp_path / "test_mine.py").write_text(block("own-framework-contract"))
    run([sys.executable, "-m", "pytest", "-q", "-k", "train", "-p", "no:cacheprovider"], tmp_path)


@pytest.mark.mpi
@pytest.mark.long
def test_the_chaos_test_of_the_page_runs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(block("tutorial-train"))
    (tmp_path / "test_mine.py").write_text(block("chaos-test"))
    run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], tmp_path)


# Every other kind of block has a reader here; those of plain text are output, trees and drawings.


def of_language(*languages: str) -> list[Block]:
    return [found for found in BLOCKS if found.language in languages]


def test_there_is_no_other_kind_of_block() -> None:
    kinds = {found.language for found in BLOCKS}
    assert kinds == {"python", "console", "bash", "shell", "diff", "toml", "text"}


@pytest.mark.parametrize("shown", of_language("bash", "shell", "console"), ids=str)
def test_the_shell_can_read_what_it_is_given(shown: Block) -> None:
    script = shown.text
    if shown.language == "console":
        script = "\n".join(typed(shown))
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def typed(shown: Block) -> list[str]:
    """Return what a person types in a console block, continued lines joined."""
    text = shown.text.replace("\\\n", " ")
    return [line[2:] for line in text.splitlines() if line.startswith("$ ")]


@pytest.mark.parametrize("shown", of_language("bash", "console"), ids=str)
def test_the_scripts_that_are_called_exist(shown: Block) -> None:
    for script in re.findall(r"\b((?:examples|benchmarks|tests)/\S+\.(?:py|sh))", shown.text):
        assert (CHECKOUT / script).is_file()


def commands() -> list[tuple[str, str]]:
    """Return where ``hpctrain`` is called in blocks, and how."""
    found = []
    for shown in of_language("bash", "shell", "console"):
        lines = typed(shown) if shown.language == "console" else shown.text.splitlines()
        for line in lines:
            for part in re.split(r"&&|;", line.partition("#")[0]):
                if re.match(r"\s*hpctrain ", part):
                    found.append((str(shown), part.strip()))
    # In the running text, those that are whole: a verb, and perhaps what follows it.
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for command in re.findall(r"(?<!`)``?(hpctrain(?: [^`]*)?)``?(?!`)", text):
            found.append((page.name, " ".join(command.split())))
    return found


@pytest.mark.parametrize(("where", "command"), sorted(set(commands())))
def test_the_command_line_knows_what_is_called(where: str, command: str) -> None:
    """Let the parser of ``hpctrain`` read the arguments; nothing is called."""
    import typer

    from hpctrain.cli.main import app

    verb: Any = typer.main.get_command(app)
    # What may follow is left out, as in `hpctrain predict --checkpoint ... --input ...`.
    words = [word.replace("...", "X") for word in shlex.split(command)[1:]]
    while hasattr(verb, "commands") and words and re.match("[a-z]", words[0]):
        if verb.name == "checkpoints" and words[0] not in verb.commands:
            words.insert(0, "list")
        assert words[0] in verb.commands
        verb = verb.commands[words.pop(0)]
    context = verb.context_class(verb, resilient_parsing=True, **verb.context_settings)
    verb.make_parser(context).parse_args([word for word in words if word != "VERB"])


@pytest.mark.parametrize("shown", of_language("diff"), ids=str)
def test_both_sides_of_a_difference_compile(shown: Block) -> None:
    for sign in "-+":
        compile(side(shown, sign), f"{shown} {sign}", "exec")


def test_the_site_profile_of_the_page_is_one(tmp_path: Path) -> None:
    from hpctrain.plan.site import load_site

    (shown,) = of_language("toml")
    (tmp_path / "mine.toml").write_text(shown.text)
    assert load_site(str(tmp_path / "mine.toml")).gpus_per_node == 4
