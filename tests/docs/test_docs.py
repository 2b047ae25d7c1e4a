"""What the documentation shows is true: its code compiles, and what it promises happens."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from code_blocks import BLOCKS, PYTHON, Block, assert_promised, block

CHECKOUT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Said:
    stdout: str
    stderr: str
    returncode: int


def run_python(*argv: str, cwd: Path, **variables: str) -> Said:
    answer = subprocess.run(
        [sys.executable, *argv],
        cwd=cwd,
        env=local_environ(**variables),
        capture_output=True,
        text=True,
        timeout=200,
    )
    return Said(answer.stdout, answer.stderr, answer.returncode)


def started_python(*argv: str, cwd: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *argv],
        cwd=cwd,
        env=local_environ(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def local_environ(**variables: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "HPCTRAIN_"))}
    return {**kept, "PYTHONPATH": str(CHECKOUT), "HPCTRAIN_LAUNCHER": "local", **variables}


def transcript(name: str) -> list[str]:
    """Return the lines that a console block promises, after its command."""
    command, *lines = block(name).splitlines()
    assert command.startswith("$ ")
    return lines


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_blocks_compile(block: Block) -> None:
    compile(block.text, str(block), "exec")


@pytest.mark.parametrize("block", [b for b in PYTHON if b.name.startswith("exec-")], ids=str)
def test_blocks_that_need_no_ranks_run(block: Block) -> None:
    exec(compile(block.text, str(block), "exec"), {})


def test_shell_transcripts_hold_no_place_of_the_machine_they_were_made_on() -> None:
    for shown in BLOCKS:
        assert not re.search(r"/(?:work|root)/", shown.text), str(shown)


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Said]:
    pytest.importorskip("torch")
    directory = tmp_path_factory.mktemp("tutorial")
    (directory / "train.py").write_text(block("tutorial-train"))
    return directory, run_python("train.py", cwd=directory)


@pytest.mark.mpi
def test_ranks_fit_the_preprocessor_of_its_page(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    (tmp_path / "train.py").write_text(block("preprocessors-trainer"))
    said = run_python("train.py", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    # Heights of 1.5, 1.75 and what is filled in, ages of 20, 40 and 60.
    assert said.stdout.endswith("{'features': array([[1.22474487, 1.22474487]])}\n")


@pytest.mark.mpi
def test_the_tutorial_trains_and_prints_what_it_promises(tutorial: tuple[Path, Said]) -> None:
    _, said = tutorial
    assert said.returncode == 0, said.stderr
    assert_promised(transcript("tutorial-first-run"), said.stdout)


@pytest.mark.mpi
def test_the_tutorial_run_again_returns_the_stored_result(tutorial: tuple[Path, Said]) -> None:
    directory, _ = tutorial
    said = run_python("train.py", cwd=directory)
    assert_promised(transcript("tutorial-second-run"), said.stdout)
    shown = run_python("-c", block("tutorial-result"), cwd=directory)
    assert shown.stdout == block("tutorial-result-output"), shown.stderr


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["tutorial-metrics", "tutorial-debugger", "checkpoints-look"])
def test_what_else_is_typed_in_a_terminal_prints_what_it_promises(
    tutorial: tuple[Path, Said], name: str
) -> None:
    command, *promised = block(name).splitlines()
    ended = subprocess.run(
        ["bash", "-c", command.removeprefix("$ ")],
        cwd=tutorial[0],
        env=local_environ(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}"),
        input="continue\nquit\n",
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr
    if promised:
        seen = [_roughly(line) for line in ended.stdout.splitlines()]
        assert seen == [_roughly(line) for line in promised]


def _roughly(line: str) -> str:
    """Leave out times, sizes and late digits."""
    line = re.sub(r'"time":[\d.]+', '"time":T', line)
    line = re.sub(r'"waited":\[[\d,]+\]', '"waited":W', line)
    line = re.sub(r"\d+(\.\d+)? (s|min|KiB)\b", "N", line)
    return re.sub(r" +", " ", re.sub(r"(\.\d{4})\d+", r"\1", line))


@pytest.mark.mpi
def test_the_dry_run_of_the_tutorial_prints_what_it_promises(tutorial: tuple[Path, Said]) -> None:
    directory, _ = tutorial
    said = run_python("train.py", "--name", "other", cwd=directory, HPCTRAIN_DRY_RUN="1")
    assert said.returncode == 0, said.stderr
    assert_promised(transcript("tutorial-dry-run"), said.stdout)
    assert not (directory / "runs" / "other").exists()


@pytest.mark.mpi
def test_the_tutorial_killed_halfway_resumes_with_the_losses_of_a_run_that_was_not(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(block("tutorial-train"))
    command = ("train.py", "--epochs", "60", "--name", "long")
    run = tmp_path / "runs" / "long"
    with started_python(*command, cwd=tmp_path) as process:
        while not (run / "checkpoints" / "000003").exists():
            assert process.poll() is None
        process.kill()
    said = run_python(*command, cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert "hpctrain: resuming run long" in said.stderr
    whole = run_python("train.py", "--epochs", "60", "--name", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    # The report that was being written at the kill can lack its line: run-directory.rst.
    assert _losses(run)[-20:] == _losses(tmp_path / "runs" / "whole")[-20:]


@pytest.mark.mpi
def test_the_tutorial_has_the_same_losses_in_the_interpreter_as_on_one_rank(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(block("tutorial-train"))
    inline = run_python("train.py", "--workers", "0", "--name", "inline", cwd=tmp_path)
    one = run_python("train.py", "--workers", "1", "--name", "one", cwd=tmp_path)
    assert inline.returncode == one.returncode == 0, inline.stderr + one.stderr
    assert _losses(tmp_path / "runs" / "inline") == _losses(tmp_path / "runs" / "one")


def _losses(run: Path) -> list[float]:
    from hpctrain import Result

    return [metrics["loss"] for metrics in Result.from_path(run).metrics_history]


@pytest.mark.mpi
def test_the_example_of_the_readme_trains(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    example, *_ = [b.text for b in PYTHON if b.page == "README.md"]
    assert len(example.splitlines()) <= 35
    (tmp_path / "train.py").write_text(example)
    said = run_python("train.py", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines()[-1].startswith("Result(state='finished'")


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["from-torchrun-train", "tracking-train"])
def test_the_whole_scripts_of_the_guides_run(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(block(name))
    said = run_python("train.py", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    if name == "tracking-train":
        assert (tmp_path / "runs/tracked/table.csv").read_text().split() == [
            "1,1.0",
            "1,0.5",
            "1,0.3333333333333333",
        ]
        assert "tracked finished with {'loss': 0.3333333333333333}" in said.stdout
    else:
        assert re.search(r"^loss \d\.\d{3}$", said.stdout, re.MULTILINE)


@pytest.mark.mpi
def test_what_one_rank_saves_is_a_checkpoint_as_its_page_says(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    lines = [
        "import torch, hpctrain",
        "from hpctrain import Checkpoint, RunConfig, ScalingConfig",
        "from hpctrain.torch import TorchTrainer",
        "def train():",
        "    model = hpctrain.torch.prepare_model(torch.nn.Linear(1, 1))",
        "    loss = model(torch.ones(1, 1)).sum()",
        *(f"    {line}" for line in block("checkpoints-save").splitlines()),
        "run = RunConfig(name='run', storage_path='.')",
        "TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2), run_config=run).fit()",
    ]
    (tmp_path / "train.py").write_text("\n".join(lines))
    said = run_python("train.py", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert (tmp_path / "run/checkpoints/000001/model.pt").exists()


def test_a_script_that_torchrun_starts_says_how_to_start_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(block("from-torchrun-train"))
    said = run_python(
        *("-m", "torch.distributed.run", "--nproc-per-node=2", "--no-python"),
        *(sys.executable, "train.py"),
        cwd=tmp_path,
        HPCTRAIN_LAUNCHER="",
    )
    assert said.returncode != 0
    assert "started this script as 2 processes, and hpctrain starts the ranks itself" in said.stderr
    assert "ScalingConfig(num_workers=2)" in said.stderr
    assert not (tmp_path / "runs").exists()


def documented(table: str) -> set[str]:
    """Return the first column of a table of run-directory.rst."""
    page = (CHECKOUT / "docs" / "run-directory.rst").read_text(encoding="utf-8")
    _, _, rest = page.partition(f"   :name: {table}\n")
    rows = re.split(r"^\S", rest, maxsplit=1, flags=re.MULTILINE)[0]
    return set(re.findall(r"^   \* - ``([\w.-]+)``", rows, re.MULTILINE))


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("table", "file"),
    [
        ("fields-status", "status.json"),
        ("fields-live", "live.json"),
        ("fields-plan", "plan.json"),
        ("fields-manifest", "checkpoints/000004/.hpctrain-manifest.json"),
    ],
)
def test_every_field_on_disk_is_documented_and_the_other_way_round(
    tutorial: tuple[Path, Said], table: str, file: str
) -> None:
    directory, _ = tutorial
    content = json.loads((directory / "runs" / "sine" / file).read_text())
    assert set(content) == documented(table)


@pytest.mark.mpi
def test_every_field_of_a_report_and_every_event_is_documented(tutorial: tuple[Path, Said]) -> None:
    run = tutorial[0] / "runs" / "sine"
    report = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    assert set(report) == documented("fields-metrics")
    events = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    assert {event["event"] for event in events} <= documented("events-ledger")


def test_every_field_of_the_code_is_documented(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True, timeout=60)
    (tmp_path / "train.py").touch()
    script = (
        "import pathlib; from hpctrain.launch.code_record import CodeRecorder\n"
        "from hpctrain.rundir.paths import RunPaths\nrun = pathlib.Path('run'); run.mkdir()\n"
        "CodeRecorder(str(pathlib.Path.cwd()), paths=RunPaths(run), storage=run)\n"
    )
    said = run_python("-c", script, cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    content = json.loads((tmp_path / "run" / "code.json").read_text())
    assert content["error"] is None
    assert set(content) == documented("fields-code")


def test_every_field_of_a_failure_is_documented() -> None:
    from hpctrain.worker.failure import RankFailure

    assert set(RankFailure.__dataclass_fields__) == documented("fields-failure")


def test_every_field_of_a_state_is_documented(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors import safe_open

    from hpctrain.torch import save_state

    save_state(tmp_path / "state", weights={"w": torch.ones(3)})
    index = json.loads((tmp_path / "state" / "state.json").read_text())
    assert set(index) == documented("fields-state")
    (file,) = index["files"]
    assert {"name", "header_bytes", "data_bytes", "pieces"} == set(file)
    with safe_open(tmp_path / "state" / file["name"], framework="pt") as opened:
        assert set(opened.metadata()) == documented("fields-state-file")


def test_every_event_that_the_code_writes_is_documented() -> None:
    written = set()
    for path in (CHECKOUT / "hpctrain").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        writers = r"(?:RunRecord\([\w.]+\)|\brecord)\.append"
        written |= set(re.findall(writers + r'\(\s*"([\w-]+)"', source))
        written |= set(re.findall(r'\bnote\(\s*"([\w-]+)"', source))
    assert written >= {"submitted", "attempt-started", "run-ended"}
    assert written <= documented("events-ledger")


@pytest.mark.mpi
def test_every_file_of_a_run_is_on_the_page_of_its_directory(tutorial: tuple[Path, Said]) -> None:
    page = (CHECKOUT / "docs" / "run-directory.rst").read_text(encoding="utf-8")
    names = [re.sub(r"-\d+$", "-", path.name) for path in (tutorial[0] / "runs/sine").iterdir()]
    assert "plan.json" in names
    assert [name for name in names if name not in page] == []


def test_every_predictor_is_in_the_table_of_predictors() -> None:
    page = (CHECKOUT / "docs" / "prediction.rst").read_text(encoding="utf-8")
    found = {
        f"hpctrain.{path.parent.name}.{name}"
        for path in (CHECKOUT / "hpctrain").glob("*/__init__.py")
        for name in re.findall(r'"(\w+Predictor)"', path.read_text(encoding="utf-8"))
        # The last one is what Ray calls TransformersPredictor.
        if name not in ("BatchPredictor", "Predictor", "HuggingFacePredictor")
    }
    assert "hpctrain.jax.JaxPredictor" in found
    assert [name for name in sorted(found) if f"`{name}`" not in page] == []


def test_the_citation_is_of_this_version() -> None:
    import hpctrain

    citation = (CHECKOUT / "CITATION.cff").read_text()
    assert f"\nversion: {hpctrain.__version__}\n" in citation
    (license_name,) = re.findall(r"^license: (.*)$", citation, re.MULTILINE)
    assert f'license = "{license_name}"' in (CHECKOUT / "pyproject.toml").read_text()


@pytest.mark.parametrize("name", ["where-to-look", "architecture"])
def test_pages_of_the_design_name_files_and_names_that_are_there(name: str) -> None:
    page = (CHECKOUT / "docs" / "design" / f"{name}.rst").read_text(encoding="utf-8")
    package = CHECKOUT / "hpctrain"
    for question in re.split(r"\n\n(?=\S)", page):
        files = re.findall(r"``(?:hpctrain/)?([a-z_/]+\.py)``", question)
        sources = "".join((package / file).read_text(encoding="utf-8") for file in files)
        if files:
            named = re.findall(r"``([A-Za-z_]+(?:\.[a-z_]+)?)``", question)
            # Not those of files of a run.
            of_code = [name for name in named if not name.endswith((".json", ".jsonl", ".pkl"))]
            names = [part for name in of_code for part in name.split(".")]
            missing = {name for name in names if not re.search(rf"\b{name}\b", sources)}
            assert not missing - {"hpctrain", "py"}, question


def test_where_to_look_names_all_that_write_the_status_and_the_ledger() -> None:
    page = (CHECKOUT / "docs" / "design" / "where-to-look.rst").read_text(encoding="utf-8")
    (answer,) = [text for text in page.split("\n\n") if text.startswith("Who writes ``status")]
    writers, _, appenders = answer.partition("These only append events")
    package = CHECKOUT / "hpctrain"
    for path in package.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if re.search(r"\bRunRecord\(\S+?\)", source) and path.name != "run_record.py":
            writes = re.search(r"(?:RunRecord\(\S+?\)|\brecord)\.write\(", source)
            name = f"``{path.relative_to(package)}``"
            assert name in (writers if writes else appenders), name
