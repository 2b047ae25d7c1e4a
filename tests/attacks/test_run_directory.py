"""Who else can write where a run lies: into its storage directory, or into the run directory."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import Checkpoint, FailureConfig, Result, RunConfig, ScalingConfig
from hpctrain.checkpoint_files import MANIFEST_NAME
from hpctrain.data import from_numpy
from hpctrain.errors import ConfigError, DamagedFileError, LaunchError, WorkerError
from hpctrain.execute.stored_executor import stored_executor
from hpctrain.plan.spec import RunSpec
from hpctrain.predict.output import Output
from hpctrain.rundir.files import write_atomic
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.trust import digest_spec
from hpctrain.slurm.submit import submit_successor
from hpctrain.trainer import DataParallelTrainer

ANOTHER_USER = 65534
needs_root = pytest.mark.skipif(
    os.getuid() != 0, reason="needs root, to be attacked by another user"
)

# Puts links to a file where a process with a known id is expected to write first.
PLANT = """
import os, sys

directory, secret, *names = sys.argv[1:]
for name in names:
    os.symlink(secret, os.path.join(directory, name))
print("planted", flush=True)
input()
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that everybody can write, as those of projects for their members."""
    directory = Path(tempfile.mkdtemp(prefix="hpctrain-shared-"))
    directory.chmod(0o777)
    yield directory
    shutil.rmtree(directory)


def csv(path: Path) -> None:
    from_numpy({"a": [1, 2]}).write_csv(path.with_suffix(".csv"))


def write(path: Path) -> None:
    write_atomic(path.with_suffix(".csv"), b"a\n1\n2\n")


@pytest.mark.parametrize("writes", [write, csv])
def test_nobody_leads_a_writer_to_another_file(
    writes: Callable[[Path], None], shared: Path, tmp_path: Path, stranger: Any
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")
    attacker = stranger(PLANT, shared, secret, f".out.csv.{os.getpid()}")
    assert attacker.read() == "planted"
    writes(shared / "out")
    assert secret.read_text() == "mine"
    assert (shared / "out.csv").read_text().split() in (["a", "1", "2"], ['"a"', "1", "2"])
    assert not (shared / "out.csv").is_symlink()


# Makes a directory with files of its own, or puts one into a directory that is there, by a rename.
SQUAT = """
import json, os, sys

directory = sys.argv[1]
os.umask(0)
os.makedirs(directory, exist_ok=True)
for name, content in json.loads(input()).items():
    with open(directory + "/new", "wb") as file:
        file.write(bytes.fromhex(content))
    os.rename(directory + "/new", directory + "/" + name)
print("done", flush=True)
input()
"""


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def train() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "model").write_text("weights")
        hpctrain.report({"loss": 1.0}, checkpoint=Checkpoint(folder))


def trainer(root: Path, function: Any = train, num_workers: int = 0, **config: Any) -> Any:
    return DataParallelTrainer(
        function,
        scaling_config=ScalingConfig(num_workers=num_workers),
        run_config=RunConfig(name=root.name, storage_path=root.parent, verbose=0, **config),
    )


def restore(root: Path) -> None:
    DataParallelTrainer.restore(root)


def fit(root: Path) -> None:
    trainer(root).fit()


def submit(root: Path) -> None:
    trainer(root, num_workers=1).submit()


def begin_anew(root: Path) -> None:
    trainer(root, existing="restart").fit()


def run_its_job(root: Path) -> None:
    paths = RunPaths(root)
    # Whoever replaces the spec of a job could know what digest is expected.
    stored_executor(paths, digest_spec(paths.spec.read_bytes()))


def return_value(root: Path) -> None:
    _ = Result.from_path(root).return_value


def give_files(attacker: Any, **files: bytes) -> None:
    names = {name.replace("_pkl", ".pkl"): content.hex() for name, content in files.items()}
    attacker.write(json.dumps(names))
    assert attacker.read() == "done"


def listed(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@needs_root
@pytest.mark.parametrize("enter", [fit, submit, begin_anew, restore, run_its_job])
def test_the_directory_of_somebody_else_is_no_run(
    enter: Callable[[Path], None], shared: Path, tmp_path: Path, stranger: Any
) -> None:
    fit(tmp_path / "run")
    files = {p.name: p.read_bytes() for p in (tmp_path / "run").glob("*.js*")}
    files["spec.pkl"] = pickle.dumps(Payload(tmp_path / "marker"))
    attacker = stranger(SQUAT, shared / "run")
    give_files(attacker, **files)
    before = listed(shared / "run")
    with pytest.raises(ConfigError) as refusal:
        enter(shared / "run")
    assert f"{shared}/run belongs to " in str(refusal.value)
    assert f"(user {ANOTHER_USER})" in str(refusal.value)
    assert "HPCTRAIN_TRUST_WRITERS=1" in str(refusal.value)
    assert not (tmp_path / "marker").exists()
    assert listed(shared / "run") == before


@needs_root
def test_a_name_that_is_taken_while_fit_looks_is_no_run(
    shared: Path, stranger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpctrain.launch import fit as fit_module

    # The moment between the first look at the directory and its making.
    monkeypatch.setattr(
        fit_module, "_await_submission", lambda _: give_files(stranger(SQUAT, shared / "run"))
    )
    with pytest.raises(ConfigError, match="belongs to"):
        fit(shared / "run")


@needs_root
@pytest.mark.parametrize("enter", [fit, begin_anew, restore])
def test_a_link_of_somebody_else_leads_to_no_run(
    enter: Callable[[Path], None], shared: Path, tmp_path: Path, stranger: Any
) -> None:
    other = tmp_path / "other"
    fit(other)
    before = {path: path.lstat().st_mtime_ns for path in (other, *other.rglob("*"))}
    assert stranger(PLANT, shared, other, "run").read() == "planted"
    with pytest.raises(ConfigError, match=f"the link to a run directory {shared}/run belongs to"):
        enter(shared / "run")
    assert {path: path.lstat().st_mtime_ns for path in (other, *other.rglob("*"))} == before
    # One's own, to a larger filesystem, say.
    (tmp_path / "run").symlink_to(other)
    restore(tmp_path / "run")


@needs_root
@pytest.mark.parametrize("enter", [fit, submit, restore, run_its_job])
def test_a_run_that_the_group_can_write_is_refused_until_that_is_mended(
    enter: Callable[[Path], None], shared: Path, tmp_path: Path, stranger: Any
) -> None:
    root = shared / "a project" / "run"
    fit(root)
    (root / "checkpoints").chmod(0o775)
    os.chown(root, -1, ANOTHER_USER)
    # As an older hpctrain made them, with umask 002.
    root.chmod(0o775)
    give_files(stranger(SQUAT, root), spec_pkl=pickle.dumps(Payload(tmp_path / "marker")))
    with pytest.raises(ConfigError) as refusal:
        enter(root)
    mend = f"chmod -R go-w '{root}'"
    assert "can be written by others (mode 0775)" in str(refusal.value)
    assert mend in str(refusal.value)
    assert not (tmp_path / "marker").exists()
    subprocess.run(["bash", "-c", mend], check=True)
    assert (root / "checkpoints").stat().st_mode & 0o777 == 0o755
    # What the member has put there is still the member's.
    if enter in (restore, run_its_job):
        with pytest.raises(ConfigError, match=r"the file .*spec\.pkl belongs to"):
            enter(root)
    assert not (tmp_path / "marker").exists()
    assert trainer(root).fit().state == "finished"


@needs_root
def test_a_return_value_of_somebody_else_is_not_opened(
    tmp_path: Path, shared: Path, stranger: Any
) -> None:
    root = shared / "run"
    fit(root)
    root.chmod(0o777)
    give_files(stranger(SQUAT, root), return_value_pkl=pickle.dumps(Payload(tmp_path / "marker")))
    with pytest.raises(ConfigError, match="belongs to"):
        return_value(root)
    assert not (tmp_path / "marker").exists()


@needs_root
def test_a_link_to_a_spec_is_none(tmp_path: Path, shared: Path) -> None:
    fit(shared / "run")
    spec = shared / "run" / "spec.pkl"
    spec.rename(tmp_path / "elsewhere")
    spec.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedFileError, match="symbolic link"):
        restore(shared / "run")


@needs_root
def test_the_parts_of_predictions_of_somebody_else_are_not_continued(
    shared: Path, stranger: Any
) -> None:
    give_files(stranger(SQUAT, shared / "out.csv.parts"))
    output = Output.at(shared / "out.csv")
    with pytest.raises(ConfigError, match=r"belongs to .*\n.*another output"), output.hold():
        pass


@pytest.mark.mpi
def test_no_umask_opens_a_run_to_the_group(shared: Path) -> None:
    # As projects have it: new directories belong to the group of the project.
    shared.chmod(0o2775)
    code = (
        f"import os, sys; os.umask(0); sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"from test_run_directory import *\n"
        f"root = Path({str(shared)!r}) / 'run'\n"
        f"for _ in range(2): trainer(root, num_workers=1).fit()\n"
        f"trainer(root, existing='restart').fit()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    paths = [path for run in shared.iterdir() for path in (run, *run.rglob("*"))]
    assert {MANIFEST_NAME, "model", "spec.pkl", "rank-00000.out"} <= {path.name for path in paths}
    assert [path for path in paths if path.stat().st_mode & 0o022] == []


def test_a_team_can_say_that_it_trusts_whoever_can_write(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shared / "run").mkdir()
    (shared / "run").chmod(0o777)
    with pytest.raises(ConfigError):
        fit(shared / "run")
    monkeypatch.setenv("HPCTRAIN_TRUST_WRITERS", "1")
    fit(shared / "run")
    restore(shared / "run")


@pytest.mark.mpi
def test_ranks_run_nothing_but_what_was_submitted(tmp_path: Path) -> None:
    spec, marker = tmp_path / "run" / "spec.pkl", tmp_path / "marker"

    def replace_and_fail() -> None:
        spec.write_bytes(pickle.dumps(Payload(marker)))
        raise ValueError("begin again")

    run = trainer(
        tmp_path / "run", replace_and_fail, 1, failure_config=FailureConfig(max_failures=1)
    )
    with pytest.raises(WorkerError, match=r"spec\.pkl is not what was submitted"):
        run.fit()
    assert not marker.exists()


@pytest.mark.mpi
def test_ranks_that_existed_already_refuse_such_a_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o775)
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"from test_run_directory import *\n"
        f"trainer(Path({str(tmp_path)!r}) / 'run', num_workers=2).fit()"
    )
    mpiexec = Path(sys.executable).with_name("mpiexec")
    done = subprocess.run(
        [mpiexec, "-n", "2", sys.executable, "-c", code], capture_output=True, text=True
    )
    assert done.returncode == ConfigError.exit_code
    assert done.stderr.count("can be written by others (mode 0775)") == 1
    assert os.listdir(tmp_path / "run") == []


def test_no_job_is_submitted_with_a_script_that_others_can_replace(tmp_path: Path) -> None:
    fit(tmp_path / "run")
    (tmp_path / "run").chmod(0o775)
    with pytest.raises(LaunchError, match="can be written by others"):
        submit_successor(RunPaths(tmp_path / "run"), patience_s=0, why="", checkpoint=None)


def test_a_job_runs_nothing_but_what_was_submitted(tmp_path: Path) -> None:
    fit(tmp_path / "run")
    paths = RunPaths(tmp_path / "run")
    content = paths.spec.read_bytes()
    other = replace(RunSpec.from_bytes(content), fingerprint="another").to_bytes()
    paths.spec.write_bytes(other)
    with pytest.raises(DamagedFileError, match="not what was submitted"):
        stored_executor(paths, digest_spec(content))
