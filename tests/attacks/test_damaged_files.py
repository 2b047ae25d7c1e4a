"""Files of a run directory that are damaged, or that somebody has put there."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import Checkpoint, Result
from hpctrain.checkpoint_files import MANIFEST_NAME
from hpctrain.errors import CheckpointError, ConfigError, DamagedFileError
from hpctrain.execute.process import process_start_time
from hpctrain.launch import cancel
from hpctrain.rundir.directory import HeldDirectory
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.manifest import DamagedManifestError, _checksum, read_manifest
from hpctrain.rundir.metrics import read_reports
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, read_status, write_status
from hpctrain.rundir.store import CheckpointStore
from hpctrain.trainer import DataParallelTrainer
from tests.runs import make_trainer

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b2J\u202e"


def train() -> None:
    for step in range(2):
        with hpctrain.checkpoint_dir() as folder:
            (Path(folder) / "model.txt").write_text(f"weights {step}")
            hpctrain.report({"loss": 1 / (step + 1)}, checkpoint=Checkpoint(folder))


def trainer(root: Path, **config: Any) -> DataParallelTrainer:
    return make_trainer(train, root.parent, num_workers=0, name=root.name, **config)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the directory of a run that is finished."""
    trainer(tmp_path / "run").fit()
    return tmp_path / "run"


def hpctrain_cli(*words: object, limit_bytes: int | None = None) -> subprocess.CompletedProcess:
    def limit() -> None:
        if limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))

    return subprocess.run(
        [sys.executable, "-m", "hpctrain.cli", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=limit,
    )


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    os.truncate(path, 2**40)


def nested(path: Path) -> None:
    path.write_text("[" * 100_000)


def not_utf8(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:40] + b"\xff" + content[41:])


DAMAGES = (cut, empty, fifo, endless, huge, nested)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_status_is_rebuilt_from_the_ledger(run: Path, damage: Callable[[Path], None]):
    damage(run / "status.json")
    status = read_status(RunPaths(run))
    assert status is not None
    assert (status.state, status.attempt, status.reports) == (RunState.FINISHED, 1, 2)
    assert (status.checkpoint, status.nodes) == ("000002", (socket.gethostname(),))
    assert "status.json is damaged" in status.damage
    # The stored result, and no second run.
    assert trainer(run).fit().metrics == {"loss": 0.5}
    assert len(read_events(RunPaths(run))) == 6


def test_a_status_of_odd_values_is_rebuilt(run: Path):
    content = json.loads((run / "status.json").read_bytes())
    odd = ({"state": []}, {"nodes": 3}, {"attempt": "1"}, {"updated_at": 1e300}, {"job_id": "--u"})
    for change in odd:
        (run / "status.json").write_text(json.dumps({**content, **change}))
        status = read_status(RunPaths(run))
        assert status is not None
        assert status.damage.endswith(f"{next(iter(change))} is {next(iter(change.values()))!r}")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_plan_is_named_and_a_restart_goes_on(run: Path, damage: Callable[[Path], None]):
    damage(run / "plan.json")
    with pytest.raises(DamagedFileError, match=r"plan\.json is damaged: (?s:.*)existing='restart'"):
        trainer(run).fit()
    assert trainer(run, existing="restart").fit().state == "finished"


def test_one_damaged_run_does_not_hide_the_others_of_a_storage(run: Path, tmp_path: Path):
    for number, damage in enumerate(DAMAGES):
        for file in ("status.json", "plan.json", "ledger.jsonl", "metrics.jsonl"):
            copy = tmp_path / f"{file[:4]}-{number}"
            shutil.copytree(run, copy)
            damage(copy / file)
    listed = hpctrain_cli("list", tmp_path, limit_bytes=4 * 2**30)
    assert listed.returncode == 0, listed.stderr
    rows = listed.stdout.splitlines()[1:]
    assert len(rows) == 1 + 4 * len(DAMAGES)
    assert sum("finished (damaged)" in row for row in rows) == len(DAMAGES)


def test_a_byte_that_is_not_utf8_hides_one_line_at_most(run: Path, capsys: pytest.CaptureFixture):
    for path in (RunPaths(run).ledger, RunPaths(run).metrics):
        not_utf8(path)
    assert len(read_events(RunPaths(run))) >= 5
    assert read_reports(RunPaths(run))[-1]["report"] == 2


def test_lines_that_are_no_events_are_left_out_with_a_word(
    run: Path, capsys: pytest.CaptureFixture
):
    before = read_events(RunPaths(run))
    with open(RunPaths(run).ledger, "a") as ledger:
        for line in ("3", "{}", '{"event": "attempt-started", "time": 1}', '{"event": [], "time":'):
            ledger.write(f"{line}\n")
        ledger.write('{"event": "fit", "time": NaN}\n{"event": "fit", "time": 1e300}\n')
    assert read_events(RunPaths(run)) == before
    assert "ledger.jsonl: 6 lines are damaged, and left out." in capsys.readouterr().err


@pytest.mark.parametrize("damage", [fifo, endless, huge])
def test_no_file_hangs_a_verb_or_takes_its_memory(run: Path, damage: Callable[[Path], None]):
    log = RunPaths(run).rank_log(1, 0)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("line\n")
    manifest = run / "checkpoints" / "000002" / MANIFEST_NAME
    model = run / "checkpoints" / "000001" / "model.txt"
    for path in (log, manifest, model, run / "status.json", run / "metrics.jsonl"):
        damage(path)
    verbs = (("logs", "-n", 1), ("status",), ("checkpoints", "--verify"), ("history",))
    for verb, *options in verbs:
        done = hpctrain_cli(verb, run, *options, limit_bytes=4 * 2**30)
        assert "Traceback" not in done.stderr
        assert done.returncode in (0, 4), done.stderr


def test_the_end_of_a_log_is_read_without_the_rest(run: Path):
    log = RunPaths(run).rank_log(1, 0)
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as file:
        file.truncate(2**36)
        file.seek(0, 2)
        file.write(b"\nlast but one\nlast\n")
    done = hpctrain_cli("logs", run, "-n", 2, limit_bytes=4 * 2**30)
    assert (done.stdout, done.stderr) == ("last but one\nlast\n", "")


def test_no_text_of_others_reaches_the_terminal_as_a_command(run: Path):
    paths = RunPaths(run)
    status = read_status(paths)
    assert status is not None
    write_status(
        paths,
        status.with_changes(
            name=f"run{ESCAPES}",
            state=RunState.FAILED,
            error=f"no{ESCAPES}",
            nodes=(f"n{ESCAPES}",),
            metrics={f"loss{ESCAPES}": f"low{ESCAPES}"},
        ),
    )
    log = paths.rank_log(1, 0)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(f"\x1b[31mred\x1b[0m {ESCAPES}\n")
    paths.metrics.unlink()
    verbs = ("status", "history", "checkpoints", "logs", "attach", "wait")
    for verb, where in [*((verb, run) for verb in verbs), ("list", run.parent)]:
        done = hpctrain_cli(verb, where)
        shown = done.stdout + done.stderr
        assert shown
        for character in ("\x07", "\x9b", "\u202e", "\x1b]", "\x1b[2J"):
            assert character not in shown, verb
        # Colours stay, where ranks print them.
        assert ("\x1b[31mred\x1b[0m" in shown) == (verb in ("logs", "attach")), verb


@contextmanager
def changed_manifest(run: Path) -> Iterator[dict[str, Any]]:
    """Give the content of the newest manifest; what becomes of it is written, with its checksum."""
    path = run / "checkpoints" / "000002" / MANIFEST_NAME
    content = json.loads(path.read_bytes())
    del content["checksum"]
    yield content
    path.write_text(json.dumps({**content, "checksum": _checksum(content)}))


@pytest.mark.parametrize("version", [1, 2])
def test_a_manifest_without_a_checksum_is_not_believed(run: Path, version: int):
    path = run / "checkpoints" / "000002" / MANIFEST_NAME
    content = json.loads(path.read_bytes())
    del content["checksum"]
    path.write_text(json.dumps({**content, "format": version, "world_size": 7}))
    with pytest.raises(DamagedManifestError, match="it has no checksum"):
        read_manifest(path.parent)


@pytest.mark.parametrize("field", ["versions", "validation"])
def test_a_manifest_that_lacks_a_field_is_damaged(run: Path, field: str):
    with changed_manifest(run) as content:
        del content[field]
    with pytest.raises(DamagedManifestError, match="its manifest is torn"):
        read_manifest(run / "checkpoints" / "000002")


@pytest.mark.parametrize("name", ["../../../secret", "/etc/passwd", "a/../b", "./a", "", "a\0b"])
def test_a_manifest_names_files_inside_of_the_checkpoint_only(run: Path, name: str):
    with changed_manifest(run) as content:
        content["files"][0][0] = name
    with pytest.raises(DamagedManifestError, match="not a file inside of the checkpoint"):
        read_manifest(run / "checkpoints" / "000002")
    assert [m.name for m in CheckpointStore(run / "checkpoints").manifests()] == ["000001"]


@pytest.mark.parametrize(
    "change",
    [
        {"report": "2"},
        {"files": [[1, 2, 3]]},
        {"metrics": []},
        {"created_at": 1e300},
        {"format": "2"},
    ],
)
def test_a_manifest_of_odd_values_is_damaged(run: Path, change: dict[str, Any]):
    with changed_manifest(run) as content:
        content.update(change)
    with pytest.raises(DamagedManifestError, match="its manifest is torn"):
        read_manifest(run / "checkpoints" / "000002")


def test_a_result_says_which_newer_checkpoint_is_left_out(run: Path, capsys: pytest.CaptureFixture):
    cut(run / "checkpoints" / "000002" / MANIFEST_NAME)
    checkpoint = Result.from_path(run).checkpoint
    assert checkpoint is not None
    assert checkpoint.path.name == "000001"
    assert "checkpoint 000002: its manifest is torn" in capsys.readouterr().err


@pytest.mark.parametrize("damage", [cut, fifo, endless, nested])
def test_damaged_metadata_of_a_checkpoint_are_named(tmp_path: Path, damage: Callable[[Path], None]):
    checkpoint = Checkpoint(tmp_path)
    checkpoint.set_metadata({"key": "a value that is long enough"})
    damage(tmp_path / ".metadata.json")
    with pytest.raises(CheckpointError, match=r"\.metadata\.json"):
        checkpoint.get_metadata()


@pytest.fixture
def victim() -> Iterator[subprocess.Popen]:
    """Give a process of this user that is of no run."""
    with subprocess.Popen(["sleep", "100"]) as process:
        yield process
        process.kill()


def running(run: Path, process: subprocess.Popen) -> RunPaths:
    """Let the status of a run say that a process is its executor."""
    paths = RunPaths(run)
    status = read_status(paths)
    assert status is not None
    write_status(
        paths,
        status.with_changes(
            state=RunState.RUNNING,
            owner_pid=process.pid,
            owner_start=process_start_time(process.pid) or 0,
            ended_at=None,
        ),
    )
    return paths


def test_cancel_ends_no_process_that_is_not_of_the_run(run: Path, victim: subprocess.Popen):
    paths = running(run, victim)
    with pytest.raises(ConfigError, match=f"process {victim.pid} .* it was not signalled"):
        cancel.cancel_run(paths, now=True)
    assert victim.poll() is None


def test_cancel_ends_the_process_that_holds_the_directory(run: Path):
    holds = (
        "import os, sys, time; os.open(sys.argv[1], os.O_RDONLY); print(flush=True); time.sleep(99)"
    )
    with subprocess.Popen([sys.executable, "-c", holds, run], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        paths = running(run, process)
        said = cancel.cancel_run(paths, now=True)
    assert said == "run is over: it was ended by hpctrain cancel --now."
    assert process.returncode == -15


@pytest.mark.parametrize("pid", [0, -1, -(2**31)])
def test_cancel_signals_no_group_of_processes(run: Path, pid: int):
    paths = RunPaths(run)
    status = RunStatus(
        name="run", state=RunState.RUNNING, launcher="local", owner_host=socket.gethostname()
    )
    write_status(paths, status.with_changes(owner_pid=pid))
    with pytest.raises(ConfigError, match="does not say which process runs run"):
        cancel.cancel_run(paths, now=True)


def of_job(run: Path, job_id: str) -> RunPaths:
    paths = RunPaths(run)
    paths.submission.mkdir()
    paths.batch_script.write_text("#!/bin/sh\n")
    content = json.loads(paths.status.read_bytes())
    content |= {"state": "running", "launcher": "slurm", "job_id": job_id}
    paths.status.write_text(json.dumps(content))
    return paths


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the file in which commands of Slurm, which has job 7 of another script, are noted."""
    folder = tmp_path / "bin"
    folder.mkdir()
    asked = tmp_path / "asked"
    answers = {
        "squeue": "7|RUNNING|/home/other/batch.sh",
        "scontrol": "JobId=7 JobName=other UserId=root(0) JobState=RUNNING Reason=None",
        "scancel": "",
    }
    for name, answer in answers.items():
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {asked}\necho "{answer}"\n')
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return asked


@pytest.mark.parametrize("job_id", ["--user=root", "7 --user=root", "-1", "7\n8", ""])
def test_what_is_no_job_id_reaches_no_command_of_slurm(run: Path, slurm: Path, job_id: str):
    paths = of_job(run, job_id)
    shown = cancel.cancel_run(paths, now=True)
    assert shown == "run is finished; there is nothing to cancel."
    assert not slurm.exists()


def test_cancel_ends_no_job_that_is_not_of_the_run(run: Path, slurm: Path):
    paths = of_job(run, "7")
    with pytest.raises(ConfigError, match="job 7, which is one that runs /home/other"):
        cancel.cancel_run(paths, now=True)
    assert "scancel" not in slurm.read_text()


def test_a_damaged_plan_does_not_stop_a_run_that_is_at_work(run: Path):
    held = HeldDirectory(RunPaths(run))
    (run / "plan.json").write_text("{")
    time.sleep(0.01)
    held.check()
    assert held.is_here
