"""``code.json`` and ``code.patch``: written in the background, read with care."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain import timeouts
from hpctrain.errors import DamagedFileError
from hpctrain.launch import code_choice, code_record
from hpctrain.launch.code_look import TreeLook, await_records
from hpctrain.launch.code_record import (
    CodeRecorder,
    commit_of,
    copy_code,
    find_edited,
    find_top,
    keep_code,
    look_at_script,
    read_code,
    record_code,
    top_of,
)
from hpctrain.rundir.paths import RunPaths
from hpctrain.timeouts import Timeout

GIT = shutil.which("git")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    place = tmp_path / "tree"
    place.mkdir()
    (place / "train.py").write_text("1\n")
    (place / "net.yaml").write_text("1\n")
    for words in (
        ["init", "--quiet"],
        ["add", "."],
        ["-c", "user.name=me", "-c", "user.email=me@here", "commit", "--quiet", "--message=1"],
    ):
        subprocess.run(["git", *words], cwd=place, check=True, timeout=30)
    return place


@pytest.fixture
def run(tree: Path) -> RunPaths:
    root = tree / "runs" / "line"
    root.mkdir(parents=True)
    return RunPaths(root)


def recorded(tree: Path, run: RunPaths) -> CodeRecorder:
    """Return a recorder whose thread has ended."""
    recorder = CodeRecorder(str(tree), paths=run, storage=run.root.parent)
    await_records()
    return recorder


def test_the_state_is_known_at_once_and_the_record_is_written(tree: Path, run: RunPaths) -> None:
    (tree / "train.py").write_text("2\n")
    recorder = recorded(tree, run)
    code = read_code(run)
    assert code is not None
    assert recorder.commit == f"{code['commit']}-dirty" == commit_of(str(tree))
    # The directory of runs is no code.
    assert list(code["files"]) == ["train.py"]
    assert b"+2" in run.code_patch.read_bytes()
    (tree / "train.py").write_text("1\n")
    recorded(tree, run)
    assert not run.code_patch.exists()
    assert (read_code(run) or {})["dirty"] is False


def test_what_has_begun_to_look_at_the_tree_is_not_asked_again(
    tree: Path, run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "git"
    program.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\nexec {GIT} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.chdir(tree)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tree / "train.py"), raising=False)

    def times_asked() -> int:
        return (tmp_path / "asked").read_text().count(" status ")

    look = look_at_script()
    assert look is not None
    recorder = record_code(run, keeps=True, look=look)
    await_records()
    assert recorder.commit == commit_of(str(tree))
    assert (read_code(run) or {})["commit"] == recorder.commit
    # One of these is commit_of()'s.
    assert times_asked() == 2
    # Of another tree it is no answer.
    other = TreeLook(str(tree / "runs"))
    assert record_code(run, keeps=True, look=other).commit == recorder.commit
    await_records()
    assert times_asked() == 4


def test_outside_of_a_tree_nothing_is_looked_at(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    recorder = CodeRecorder(None, paths=run, storage=tmp_path)
    assert recorder.commit is None
    assert commit_of(None) is None
    assert find_top(tmp_path) is None
    assert read_code(run) is None
    assert list(tmp_path.iterdir()) == []


def test_a_git_that_hangs_is_named_and_the_run_goes_on(
    tree: Path, run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "git"
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name in ("GIT_S", "GIT_LIST_S", "GIT_PATCH_S"):
        whole: Timeout = getattr(timeouts, name)
        monkeypatch.setattr(timeouts, name, Timeout(1.0, whole.name, "", ""))

    def hang(command: str) -> CodeRecorder:
        program.write_text(
            f'#!/bin/sh\ncase "$*" in *" {command} "*) exec sleep 1000;; esac\nexec {GIT} "$@"\n'
        )
        program.chmod(0o755)
        return recorded(tree, run)

    (tree / "train.py").write_text("2\n")
    assert hang("status").commit is None
    code = read_code(run)
    assert code is not None
    assert code["error"] == "git status did not answer within 1 s (timeout git)"
    assert (code["commit"], code["dirty"], code["patch"]) == (None, None, None)
    assert (hang("ls-files").commit or "").endswith("-dirty")
    code = read_code(run)
    assert code is not None
    why = "git ls-files did not answer within 1 s (timeout git_list)"
    assert code["left_out"] == [{"path": "all untracked files", "why": why}]
    assert list(code["files"]) == ["train.py"]
    hang("diff")
    code = read_code(run)
    assert code is not None
    assert code["error"] == "git diff did not answer within 1 s (timeout git_patch)"
    assert not run.code_patch.exists()
    assert find_edited(code, without=frozenset()) is None


def test_without_git_the_reason_is_recorded(
    tree: Path, run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert recorded(tree, run).commit is None
    assert "git cannot be started" in (read_code(run) or {})["error"]


def test_a_directory_that_is_gone_meanwhile_is_no_error(tree: Path, run: RunPaths) -> None:
    recorder = CodeRecorder(str(tree), paths=run, storage=run.root.parent)
    shutil.rmtree(run.root)
    await_records()
    assert recorder.commit is not None
    assert not run.root.exists()


def test_files_that_changed_since_are_found(tree: Path, run: RunPaths) -> None:
    (tree / "train.py").write_text("2\n")
    (tree / "notes.txt").write_text("1\n")
    recorded(tree, run)
    code = read_code(run)
    assert code is not None
    assert find_edited(code, without=frozenset()) == []
    (tree / "train.py").write_text("3\n")
    (tree / "net.yaml").write_text("3\n")
    (tree / "notes.txt").unlink()
    assert find_edited(code, without=frozenset()) == ["net.yaml", "notes.txt", "train.py"]
    without = frozenset([str(tree / "train.py")])
    assert find_edited(code, without=without) == ["net.yaml", "notes.txt"]
    # What it was at the commit is a change, too.
    (tree / "train.py").write_text("1\n")
    assert "train.py" in (find_edited(code, without=frozenset()) or [])


def test_many_files_that_are_left_out_are_counted(
    tree: Path, run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_record, "_MOST_LEFT_OUT", 2)
    monkeypatch.setattr(code_choice, "MOST_FILE_BYTES", 3)
    (tree / "train.py").write_text("larger\n")
    for name in ("a", "b", "c"):
        (tree / name).write_text("larger\n")
    recorded(tree, run)
    code = read_code(run)
    assert code is not None
    assert [entry["path"] for entry in code["left_out"]] == ["train.py", "a", "and 2 more"]
    assert code["left_out"][-1]["tracked"] == 0
    (tree / "net.yaml").write_text("3\n")
    assert find_edited(code, without=frozenset()) == ["net.yaml"]
    recorded(tree, run)
    monkeypatch.setattr(code_record, "_MOST_LEFT_OUT", 1)
    (tree / "net.yaml").write_text("larger\n")
    recorded(tree, run)
    code = read_code(run)
    assert code is not None
    assert (len(code["left_out"]), code["left_out"][-1]["tracked"]) == (2, 1)
    # Which of the two was meant is not known.
    assert find_edited(code, without=frozenset()) == []


def test_the_record_of_a_trial_is_that_of_its_sweep(tree: Path, run: RunPaths) -> None:
    sweep = RunPaths(run.root.parent)
    (tree / "train.py").write_text("2\n")
    recorded(tree, sweep)
    # A file of this name in a directory of runs is no record of theirs.
    assert read_code(run) is None
    (sweep.root / "tune.jsonl").touch()
    assert read_code(run) == read_code(sweep)
    again = RunPaths(tree.parent / "again")
    again.root.mkdir()
    copy_code(run, again)
    assert read_code(again) == read_code(sweep)
    assert again.code_patch.read_bytes() == sweep.code_patch.read_bytes()
    assert again.code_patch.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("has_links", [True, False])
def test_trials_that_have_begun_keep_the_record_when_their_sweep_goes_on(
    tree: Path, run: RunPaths, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    def refuse(*paths: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    sweep, other = RunPaths(run.root.parent), RunPaths(run.root.with_name("later"))
    (sweep.root / "tune.jsonl").touch()
    (tree / ".git" / "info" / "exclude").write_text("/runs/\n")
    run.plan.write_text("{}")
    keep_code(sweep, [run])
    assert not run.code.exists()
    (tree / "train.py").write_text("2\n")
    recorded(tree, sweep)
    first = (sweep.code.read_bytes(), sweep.code_patch.read_bytes())
    keep_code(sweep, [run, other])
    (tree / "train.py").write_text("3\n")
    recorded(tree, sweep)
    # It began under the second one.
    other.root.mkdir()
    other.plan.write_text("{}")
    keep_code(sweep, [run, other])
    (tree / "train.py").write_text("1\n")
    recorded(tree, sweep)
    assert (run.code.read_bytes(), run.code_patch.read_bytes()) == first
    assert run.code_patch.stat().st_mode & 0o777 == 0o600
    assert b"+3" in other.code_patch.read_bytes()
    assert not sweep.code_patch.exists()
    assert [(read_code(paths) or {})["dirty"] for paths in (run, other, sweep)] == [1, 1, 0]


@pytest.mark.parametrize(
    "content",
    [
        *("{", "[]", '{"commit": "--output=x"}', '{"commit": 5}', '{"files": ["a"]}'),
        *('{"format": 9}', '{"files": {"/etc/passwd": "q"}}', '{"files": {"../a": "q"}}'),
        *('{"files": {"a\\u0000": "q"}}', '{"left_out": 5}', '{"left_out": [{"path": ["a"]}]}'),
    ],
)
def test_a_damaged_record_is_named(run: RunPaths, content: str) -> None:
    run.code.write_text(content)
    with pytest.raises(DamagedFileError, match=r"code\.json"):
        read_code(run)


def test_a_notebook_has_no_tree_of_a_script(
    tree: Path, run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree)
    run.code.write_text(json.dumps({"of": "an earlier fit()"}))
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    assert record_code(run, keeps=True).commit == commit_of(str(tree))
    await_records()
    assert not run.code.exists()


@pytest.fixture
def script_elsewhere(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script in no tree, called from a tree."""
    script = tree.parent / "elsewhere" / "train.py"
    script.parent.mkdir()
    script.touch()
    monkeypatch.chdir(tree)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    return script


def test_of_a_repository_that_the_script_is_not_in_only_the_commit_is_kept(
    tree: Path, script_elsewhere: Path, tmp_path: Path
) -> None:
    (tree / "train.py").write_text("unrelated\n")
    run = RunPaths(tmp_path / "run")
    run.root.mkdir()
    assert record_code(run, keeps=True).commit == commit_of(str(tree))
    await_records()
    assert list(run.root.iterdir()) == []


def test_a_replay_compares_with_no_repository_that_the_script_is_not_in(
    tree: Path, script_elsewhere: Path, run: RunPaths
) -> None:
    plan = {"cwd": str(tree), "argv": [str(script_elsewhere)]}
    assert top_of(run, plan) is None
    assert top_of(run, {}) is None
    # Without a record, as with snapshot=False.
    assert top_of(run, {**plan, "argv": ["train.py"]}) == str(tree)
    recorded(tree, run)
    assert top_of(run, plan) == str(tree)
