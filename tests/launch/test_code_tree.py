"""A clone at the commit, with the patch applied, is the tree as it was."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain import timeouts
from hpctrain.launch import code_choice, code_untracked
from hpctrain.launch.code_diff import diff_untracked, names_of_differing
from hpctrain.launch.code_tree import Patch, TreeState, make_patch, read_state
from hpctrain.launch.git import Git
from hpctrain.timeouts import Timeout

# Of no other repository, and of no configuration of whoever runs the tests.
ENVIRON = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}
ME = ("-c", "user.name=me", "-c", "user.email=me@here", "-c", "protocol.file.allow=always")


def git(place: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *ME, *words], cwd=place, env=ENVIRON, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    place = tmp_path / "tree"
    (place / "conf").mkdir(parents=True)
    (place / "train.py").write_text("print(1)\n")
    (place / "conf" / "net.yaml").write_text("depth: 3\n")
    (place / "table.bin").write_bytes(bytes(range(256)) * 4)
    (place / "old.py").write_text("a = 1\n" * 20)
    (place / "run.sh").write_text("echo\n")
    (place / ".gitignore").write_text("*.log\n/data/\n")
    git(place, "init", "--quiet", "--initial-branch=work")
    git(place, "add", ".")
    git(place, "commit", "--quiet", "--message=first")
    return place


def look(place: Path, *without: str) -> tuple[TreeState, Patch]:
    state = read_state(Git(place, timeouts.GIT_S), str(place))
    runs, lists = Git(place, timeouts.GIT_PATCH_S), Git(place, timeouts.GIT_LIST_S)
    return state, make_patch(runs, state, lists=lists, without=without)


def snapshot(place: Path) -> dict[str, bytes]:
    """Return the content of all files of a repository."""
    files = (path for path in (place / ".git").rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in files}


def files_of(place: Path) -> dict[str, tuple[bytes, int]]:
    """Return content and mode of all files that a patch is to hold."""
    return dict(_files_of(place))


def _files_of(place: Path) -> Iterator[tuple[str, tuple[bytes, int]]]:
    for folder, folders, names in os.walk(os.fsencode(place)):
        for kept_out in (b".git", b"data"):
            if kept_out in folders:
                folders.remove(kept_out)
        for name in names:
            path = os.path.join(folder, name)
            relative = os.fsdecode(os.path.relpath(path, os.fsencode(place)))
            if relative.endswith(".log"):
                continue
            if os.path.islink(path):
                yield relative, (os.readlink(path), -1)
            else:
                with open(path, "rb") as file:
                    yield relative, (file.read(), os.stat(path).st_mode & 0o111)


def restored(place: Path, state: TreeState, patch: Patch) -> Path:
    """Return a clone of the commit with the patch."""
    clone = place.with_name("clone")
    if state.commit is None:
        clone.mkdir()
        git(clone, "init", "--quiet")
    else:
        git(place.parent, "clone", "--quiet", str(place), str(clone))
        git(clone, "checkout", "--quiet", state.commit)
    if patch.content:
        file = place.with_name("code.patch")
        file.write_bytes(patch.content)
        git(clone, "apply", str(file))
    return clone


def test_a_tree_without_changes_has_a_commit_and_no_patch(tree: Path) -> None:
    state, patch = look(tree)
    assert state.commit == git(tree, "rev-parse", "HEAD").strip() == state.shown_commit
    assert state.branch == "work"
    assert not state.is_dirty
    assert patch == Patch(content=b"", files={}, left_out=())


def test_all_kinds_of_changes_are_applied(tree: Path) -> None:
    before = snapshot(tree)
    (tree / "train.py").write_text("print(2)")
    (tree / "table.bin").write_bytes(bytes(range(255, -1, -1)) * 4)
    (tree / "conf" / "net.yaml").unlink()
    (tree / "old.py").rename(tree / "new.py")
    (tree / "run.sh").chmod(0o755)
    (tree / "image.png").write_bytes(b"\x89PNG\0\r\n\x1a\n\xff")
    (tree / "empty.py").touch()
    (tree / "to train").symlink_to("train.py")
    names = ["with space.py", 'with "quotes".py', "tab\there.py", "line\nbreak.py", "été.py"]
    names += ["-option.py", "*.py", ":(top)a.py", os.fsdecode(b"\xff.py"), "back\\slash.py"]
    for name in names:
        (tree / name).write_text(f"{len(name)}\n")
    (tree / "train.log").write_text("ignored")
    (tree / "data").mkdir()
    (tree / "data" / "large").write_text("ignored")
    state, patch = look(tree)
    assert state.is_dirty
    assert patch.left_out == ()
    # Nothing was added for the user, and no object written.
    assert snapshot(tree) == before
    assert files_of(restored(tree, state, patch)) == files_of(tree)
    assert patch.files["conf/net.yaml"] is None
    assert {*names, "new.py", "old.py", "image.png"} <= set(patch.files)
    assert "train.log" not in patch.files


def test_an_edit_within_the_second_of_the_commit_is_seen(tree: Path) -> None:
    git(tree, "config", "core.trustctime", "false")
    for path in (tree / "train.py", tree / "run.sh"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    git(tree, "add", ".")
    # By size and time the file is as in the index. What it holds is compared if the index is no
    # newer than the file, so the copy must not be, either.
    (tree / "train.py").write_text("print(2)\n")
    for path in (tree / "train.py", tree / ".git" / "index"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    for name in ("", "new.py"):
        if name:
            (tree / name).write_text("new\n")
        state, patch = look(tree)
        assert set(patch.files) == {"train.py", name} - {""}
        assert b"+print(2)" in patch.content
    assert files_of(restored(tree, state, patch)) == files_of(tree)


def test_what_is_staged_counts_as_it_is_on_disk(tree: Path) -> None:
    (tree / "train.py").write_text("staged\n")
    (tree / "added.py").write_text("staged\n")
    git(tree, "add", ".")
    (tree / "train.py").write_text("on disk\n")
    git(tree, "rm", "--quiet", "--cached", "run.sh")
    git(tree, "mv", "old.py", "moved.py")
    state, patch = look(tree)
    assert files_of(restored(tree, state, patch)) == files_of(tree)


def test_a_file_in_place_of_a_directory_and_the_other_way_round(tree: Path) -> None:
    (tree / "conf" / "net.yaml").unlink()
    (tree / "conf").rmdir()
    (tree / "conf").write_text("now a file\n")
    (tree / "run.sh").unlink()
    (tree / "run.sh").mkdir()
    (tree / "run.sh" / "part").write_text("now a directory\n")
    state, patch = look(tree)
    assert files_of(restored(tree, state, patch)) == files_of(tree)


def test_the_configuration_of_the_user_changes_no_patch(tree: Path) -> None:
    for name, value in (
        ("diff.noprefix", "true"),
        ("diff.mnemonicPrefix", "true"),
        ("diff.external", "false"),
        ("diff.context", "0"),
        ("diff.relative", "true"),
        ("diff.renames", "copies"),
        ("color.ui", "always"),
        ("status.showUntrackedFiles", "normal"),
        ("status.relativePaths", "false"),
        ("core.quotePath", "false"),
        ("core.pager", "false"),
        ("core.fsmonitor", "false-program"),
    ):
        git(tree, "config", name, value)
    (tree / "train.py").write_text("print(2)\n")
    (tree / "new.py").write_text("new\n")
    state, patch = look(tree)
    assert files_of(restored(tree, state, patch)) == files_of(tree)


def test_a_repository_without_a_commit_is_a_patch_as_a_whole(tmp_path: Path) -> None:
    place = tmp_path / "tree"
    place.mkdir()
    git(place, "init", "--quiet")
    (place / "train.py").write_text("print(1)\n")
    (place / "staged.py").write_text("print(2)\n")
    (place / "table.bin").write_bytes(bytes(range(256)))
    for staged in ((), ("staged.py",)):
        if staged:
            git(place, "add", *staged)
        state, patch = look(place)
        assert (state.commit, state.shown_commit) == (None, None)
        assert set(patch.files) == {"train.py", "staged.py", "table.bin"}
    assert files_of(restored(place, state, patch)) == files_of(place)


def test_a_detached_head_and_a_worktree_are_read(tree: Path) -> None:
    git(tree, "worktree", "add", "--quiet", "--detach", str(tree.with_name("other")))
    other = tree.with_name("other")
    (other / "train.py").write_text("print(3)\n")
    (other / "new.py").write_text("new\n")
    state, patch = look(other)
    assert state.branch is None
    assert set(patch.files) == {"train.py", "new.py"}
    # The file .git of a worktree is no file of the tree.
    theirs, ours = files_of(other), files_of(restored(tree, state, patch))
    theirs.pop(".git")
    assert ours == theirs


def test_submodules_are_named_by_their_commit_and_their_changes_left_out(
    tree: Path, tmp_path: Path
) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "--quiet")
    (library / "lib.py").write_text("1\n")
    git(library, "add", ".")
    git(library, "commit", "--quiet", "--message=one")
    git(tree, "submodule", "--quiet", "add", str(library), "lib")
    git(tree, "commit", "--quiet", "--message=with lib")
    (tree / "lib" / "lib.py").write_text("2\n")
    state, patch = look(tree)
    assert state.is_dirty
    assert patch.left_out == (("lib", "changes inside a submodule"),)
    assert patch.content == b""
    git(tree / "lib", "commit", "--quiet", "--all", "--message=two")
    state, patch = look(tree)
    assert patch.left_out == ()
    assert b"+Subproject commit" in patch.content
    clone = restored(tree, state, patch)
    assert (clone / "train.py").exists()


def test_large_files_and_what_is_no_code_are_left_out_and_named(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(tree / "large.bin", "wb") as file:
        file.truncate(5 * 2**30)
    (tree / "table.bin").write_bytes(b"x" * (code_choice.MOST_FILE_BYTES + 1))
    (tree / "small.py").write_text("small\n")
    (tree / "runs" / "line").mkdir(parents=True)
    (tree / "runs" / "line" / "plan.json").write_text("{}")
    (tree / "elsewhere" / "line").mkdir(parents=True)
    (tree / "elsewhere" / "line" / "spec.pkl").write_bytes(b"")
    (tree / "elsewhere" / "line" / "metrics.jsonl").write_text("")
    (tree / "env" / "bin").mkdir(parents=True)
    (tree / "env" / "pyvenv.cfg").write_text("")
    (tree / "env" / "bin" / "activate").write_text("")
    (tree / "__pycache__").mkdir()
    (tree / "__pycache__" / "train.pyc").write_text("")
    nested = tree / "nested"
    nested.mkdir()
    git(nested, "init", "--quiet")
    (nested / "a.py").write_text("")
    git(nested, "add", ".")
    git(nested, "commit", "--quiet", "--message=nested")
    _, patch = look(tree, "runs")
    assert set(patch.files) == {"small.py"}
    assert dict(patch.left_out) == {
        "large.bin": "5120.0 MiB",
        "table.bin": "4.0 MiB",
        "elsewhere/line/": "a run",
        "env/": "an environment",
        "nested/": "a repository of its own",
    }


def test_together_files_have_a_limit_and_tracked_ones_come_first(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_choice, "MOST_PATCH_BYTES", 2000)
    (tree / "train.py").write_text("x" * 900)
    for number in range(3):
        (tree / f"new{number}.py").write_text("y" * (600 + number))
    _, patch = look(tree)
    assert set(patch.files) == {"train.py", "new0.py"}
    assert [path for path, _ in patch.left_out] == ["new1.py", "new2.py"]


def test_too_many_untracked_files_are_left_out_and_the_changes_kept(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_untracked, "_MOST_LISTED_BYTES", 10)
    (tree / "train.py").write_text("print(2)\n")
    (tree / "a_long_name.py").write_text("")
    _, patch = look(tree)
    assert set(patch.files) == {"train.py"}
    ((path, why),) = patch.left_out
    assert path == "all untracked files"
    assert "git ls-files prints more than" in why


def test_a_conflict_of_a_merge_is_left_out(tree: Path) -> None:
    git(tree, "checkout", "--quiet", "-b", "other")
    (tree / "train.py").write_text("print('theirs')\n")
    git(tree, "commit", "--quiet", "--all", "--message=theirs")
    git(tree, "checkout", "--quiet", "work")
    (tree / "train.py").write_text("print('ours')\n")
    git(tree, "commit", "--quiet", "--all", "--message=ours")
    subprocess.run(["git", *ME, "merge", "other"], cwd=tree, env=ENVIRON, capture_output=True)
    (tree / "run.sh").write_text("changed\n")
    state, patch = look(tree)
    assert state.is_dirty
    assert set(patch.files) == {"run.sh"}
    assert patch.left_out == (("train.py", "a conflict of a merge"),)


def test_a_file_that_cannot_be_read_is_left_out(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "closed.txt").write_text("x")
    # Root may read all files.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "closed.txt")
    _, patch = look(tree)
    assert patch.left_out == (("closed.txt", "it cannot be read"),)


def test_a_path_that_git_refuses_costs_no_other(tree: Path) -> None:
    (tree / "train.py").write_text("print(2)\n")
    for name in ("new.py", "git~1"):
        (tree / name).write_text("new\n")
    git(tree, "config", "core.protectNTFS", "true")
    _, patch = look(tree)
    assert set(patch.files) == {"new.py", "train.py"}
    assert patch.left_out == (("git~1", "git refuses its name"),)


def test_untracked_files_that_cannot_be_compared_cost_no_tracked_ones(tree: Path) -> None:
    git(tree, "config", "filter.broken.clean", "exit 3")
    git(tree, "config", "filter.broken.required", "true")
    (tree / ".gitattributes").write_text("*.broken filter=broken\n")
    git(tree, "add", ".gitattributes")
    git(tree, "commit", "--quiet", "--message=filter")
    (tree / "train.py").write_text("print(2)\n")
    (tree / "a.broken").write_text("new\n")
    _, patch = look(tree)
    assert set(patch.files) == {"train.py"}
    assert b"+print(2)" in patch.content
    ((path, why),) = patch.left_out
    assert (path, why.startswith("git diff: ")) == ("a.broken", True)


def test_a_file_that_is_gone_when_it_is_compared_costs_no_other(tree: Path) -> None:
    (tree / "new.py").write_text("new\n")
    content, _ = diff_untracked(Git(tree, timeouts.GIT_S), ["gone.py", "new.py"])
    assert b"new.py" in content
    assert b"gone.py" not in content


def test_a_sparse_checkout_has_untracked_files_outside_of_what_is_checked_out(tree: Path) -> None:
    git(tree, "sparse-checkout", "set", "conf")
    (tree / "train.py").write_text("print(2)\n")
    (tree / "other").mkdir()
    (tree / "other" / "new.py").write_text("new\n")
    _, patch = look(tree)
    assert {"other/new.py", "train.py"} <= set(patch.files)
    assert patch.left_out == ()


def test_a_repository_that_cannot_be_written_has_a_patch(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "train.py").write_text("print(2)\n")
    (tree / "new.py").write_text("new\n")
    expected = look(tree)
    # Root may write everywhere: what is no directory takes no object.
    objects = tree / ".git" / "objects"
    (objects / "e6").write_text("")
    assert look(tree) == expected


def test_a_split_index_stays_as_it_is(tree: Path) -> None:
    git(tree, "update-index", "--split-index")
    before = snapshot(tree)
    (tree / "train.py").write_text("print(2)\n")
    (tree / "new.py").write_text("new\n")
    state, patch = look(tree)
    assert snapshot(tree) == before
    assert files_of(restored(tree, state, patch)) == files_of(tree)


def test_what_changed_since_a_commit_is_listed_and_the_index_stays(tree: Path) -> None:
    state, _ = look(tree)
    commit = str(state.commit)

    def differing() -> list[str]:
        return names_of_differing(Git(tree, timeouts.GIT_S), str(tree), commit)

    assert differing() == []
    (tree / "conf" / "net.yaml").write_text("depth: 4\n")
    git(tree, "commit", "--quiet", "--all", "--message=deeper")
    (tree / "run.sh").unlink()
    # As if it was checked out anew: git compares the content, and would note what it found.
    os.utime(tree / "train.py", (1_000_000_000, 1_000_000_000))
    before = snapshot(tree)
    assert differing() == ["conf/net.yaml", "run.sh"]
    assert snapshot(tree) == before


def test_what_speaks_of_a_secret_is_left_out_and_has_no_digest(tree: Path) -> None:
    secrets = [
        *(".ssh/id_ed25519", ".ssh/config", ".aws/credentials", ".gnupg/a", ".kube/config"),
        *(".docker/config.json", ".netrc", ".env", ".env.local", "conf/prod.env", ".pgpass"),
        *(".git-credentials", "server.pem", "conf/server.KEY", "id_rsa", "id_rsa_work"),
        *("hf_token", "conf/db_password.yaml", "client_secret_12.json", "secrets/a.py"),
    ]
    code = ["tokenizer.py", "tokens.py", "keys.py", "environment.yaml", "env.py", "monkey.txt"]
    for name in [*secrets, *code]:
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text("private")
    _, patch = look(tree)
    assert set(patch.files) == set(code)
    assert {path for path, _ in patch.left_out} == {
        *(name for name in secrets if name.split("/")[0] in (name, "conf")),
        *(".ssh/", ".aws/", ".gnupg/", ".kube/", ".docker/", "secrets/"),
    }
    assert {why for _, why in patch.left_out} == {"its name suggests a secret"}


def test_a_tree_with_the_home_directory_in_it_has_no_untracked_files(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "notes.txt").write_text("private\n")
    (tree / "train.py").write_text("print(2)\n")
    for home in (tree, tree / "conf"):
        monkeypatch.setenv("HOME", str(home))
        _, patch = look(tree)
        assert set(patch.files) == {"train.py"}
        why = "the home directory is in the tree"
        assert patch.left_out == (("all untracked files", why),)


def test_untracked_files_that_git_is_not_to_show_are_left_out(tree: Path) -> None:
    git(tree, "config", "status.showUntrackedFiles", "no")
    (tree / "notes.txt").write_text("private\n")
    (tree / "train.py").write_text("print(2)\n")
    _, patch = look(tree)
    assert set(patch.files) == {"train.py"}
    ((path, why),) = patch.left_out
    assert path == "all untracked files"
    assert "status.showUntrackedFiles" in why


def test_the_output_of_a_program_pushes_no_code_out(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_choice, "_MOST_FILES", 6)
    for number in range(20):
        folder = tree / "out" / str(number % 10)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(number)).touch()
    (tree / "package").mkdir()
    code = ["model.py", "package/__init__.py", "package/net.py", "package/data.py"]
    for name in code:
        (tree / name).write_text("a longer file\n")
    (tree / "train.py").write_text("print(2)\n")
    _, patch = look(tree)
    assert len(patch.files) == 6
    assert {"train.py", *code} <= set(patch.files)
    assert len(patch.left_out) == 19


def test_files_are_looked_at_until_a_limit_of_their_own(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "train.py").write_text("print(2)\n")
    for name in ("a/1", "b/1", "b/2"):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).touch()
    now = 0.0
    real = os.lstat

    def slow(path: Any, **options: Any) -> os.stat_result:
        nonlocal now
        now += 2.0 if str(path).startswith(f"{tree}/") else 0.0
        return real(path, **options)

    # Two looks at each file that is chosen, so there is time for one more than two.
    monkeypatch.setattr(code_choice, "monotonic", lambda: now)
    monkeypatch.setattr(code_choice.os, "lstat", slow)
    monkeypatch.setattr(timeouts, "CODE_FILES_S", Timeout(7.0, "code_files", "", ""))
    _, patch = look(tree)
    assert set(patch.files) == {"train.py", "a/1"}
    assert b"+print(2)" in patch.content
    why = "not looked at within 7 s (timeout code_files)"
    assert patch.left_out == (("b/1", why), ("b/2", why))


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tree: Path) -> None:
    (tree / "train.py").unlink()
    os.mkfifo(tree / "train.py")
    (tree / "run.sh").write_text("changed\n")
    _, patch = look(tree)
    assert set(patch.files) == {"run.sh"}
    assert patch.left_out == (("train.py", "it is neither a file nor a link"),)


def test_files_of_git_lfs_are_left_out_and_its_filter_does_not_run(
    tree: Path, tmp_path: Path
) -> None:
    (tree / "net.weights").write_bytes(b"before")
    git(tree, "add", ".")
    git(tree, "commit", "--quiet", "--message=weights")
    (tree / ".gitattributes").write_text("*.weights filter=lfs diff=lfs merge=lfs -text\n")
    # The filter writes the content into the repository, and a pointer to its output.
    git(tree, "config", "filter.lfs.clean", f"touch {tmp_path}/ran; echo pointer")
    (tree / "net.weights").write_bytes(b"as it is trained on")
    (tree / "new with space.weights").write_bytes(b"new")
    (tree / "train.py").write_text("print(2)\n")
    state = read_state(Git(tree, timeouts.GIT_S), str(tree))
    (tmp_path / "ran").unlink(missing_ok=True)
    patch = make_patch(Git(tree, timeouts.GIT_PATCH_S), state, lists=Git(tree, timeouts.GIT_LIST_S))
    assert set(patch.files) == {"train.py", ".gitattributes"}
    assert dict(patch.left_out) == {
        "net.weights": "its content is with Git LFS",
        "new with space.weights": "its content is with Git LFS",
    }
    assert b"pointer" not in patch.content
    assert not (tmp_path / "ran").exists()
