"""Who can have written a file: with files of another user, where the tests may make some."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hpctrain.writers import COPIED_NAME, Foreign, hold_tree, open_judged

ANOTHER_USER = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root, for files of another user")


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory below others that anybody can enter, as on a shared filesystem."""
    made = Path(tempfile.mkdtemp(prefix="hpctrain-writers-"))
    made.chmod(0o755)
    below = made / "above" / "checkpoint"
    below.mkdir(parents=True, mode=0o755)
    yield below
    shutil.rmtree(made)


@pytest.fixture
def file(directory: Path) -> Path:
    path = directory / "model.pkl"
    path.write_bytes(b"content")
    path.chmod(0o644)
    return path


def verdict(path: Path) -> tuple[Path, str] | None:
    opened, foreign = open_judged(path)
    opened.close()
    return None if foreign is None else (foreign.path, foreign.command)


def judge_tree(directory: Path) -> Foreign | None:
    with hold_tree(directory) as tree:
        return tree.judge()


def test_a_file_of_ones_own_below_a_directory_with_a_sticky_bit_is_ones_own(file: Path) -> None:
    opened, foreign = open_judged(file)
    with opened:
        assert (opened.read(), foreign) == (b"content", None)


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_can_write_is_not(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert verdict(file) == (file, f"chmod go-w {file}")


@pytest.mark.parametrize("mode", [0o775, 0o2775, 0o757, 0o1777])
def test_nor_one_in_a_directory_that_others_can_write(file: Path, mode: int) -> None:
    file.parent.chmod(mode)
    assert verdict(file) == (file.parent, f"chmod go-w {file.parent}")


@pytest.mark.parametrize("mode", [0o775, 0o2775, 0o777])
def test_nor_one_where_others_can_put_another_directory_in_place(file: Path, mode: int) -> None:
    above = file.parent.parent
    above.chmod(mode)
    # Without its write permission others could not go on with their work there.
    assert verdict(file) == (above, f"chmod +t {above}")
    above.chmod(mode | 0o1000)
    assert verdict(file) is None


@needs_root
@pytest.mark.parametrize("part", ["", ".", ".."])
def test_no_chmod_is_advised_that_this_user_may_not_do(file: Path, part: str) -> None:
    shared = Path(os.path.normpath(file.parent / part)) if part else file
    for path in (file, file.parent, file.parent.parent, file.parent.parent.parent):
        os.chown(path, 0 if path == shared else ANOTHER_USER, -1)
    shared.chmod(0o2775)
    os.seteuid(ANOTHER_USER)
    try:
        assert verdict(file) == (shared, "")
    finally:
        os.seteuid(0)


@needs_root
@pytest.mark.parametrize("part", ["", "..", "../.."])
def test_what_belongs_to_somebody_else_is_not_and_no_chmod_helps(file: Path, part: str) -> None:
    owned = Path(os.path.normpath(file.parent / part)) if part else file
    os.chown(owned, ANOTHER_USER, -1)
    assert verdict(file) == (owned, "")
    opened, foreign = open_judged(file)
    opened.close()
    assert foreign is not None
    assert "(user 65534), and this process to" in foreign.state


def test_links_of_ones_own_are_followed(file: Path) -> None:
    # One relative and one absolute, to a file and to a directory; and one that goes up.
    (file.parent / "one").symlink_to(file.name)
    (file.parent.parent / "other").symlink_to(file.parent)
    assert verdict(file.parent.parent / "other" / "one") is None
    assert verdict(file.parent.parent / "other" / ".." / "checkpoint" / "one") is None
    (file.parent / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        open_judged(file.parent / "loop")


@needs_root
def test_a_link_to_the_file_of_somebody_else_is_judged_by_that_file(
    file: Path, tmp_path: Path
) -> None:
    theirs = file.parent.parent / "theirs"
    theirs.write_bytes(b"theirs")
    os.chown(theirs, ANOTHER_USER, -1)
    file.unlink()
    file.symlink_to(theirs)
    assert verdict(file) == (theirs, "")


@needs_root
def test_the_link_of_somebody_else_is_not_trusted_wherever_it_leads(file: Path) -> None:
    link = file.parent.parent / "link"
    link.symlink_to(file.parent)
    os.chown(link, ANOTHER_USER, -1, follow_symlinks=False)
    assert verdict(link / file.name) == (link, "")


@needs_root
def test_a_second_name_of_the_file_of_somebody_else_is_theirs(file: Path) -> None:
    theirs = file.parent.parent / "theirs"
    theirs.write_bytes(b"theirs")
    os.chown(theirs, ANOTHER_USER, -1)
    file.unlink()
    os.link(theirs, file)
    assert verdict(file) == (file, "")


@needs_root
def test_what_is_judged_is_what_is_read_though_it_is_replaced_meanwhile(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each step of the walk the file is replaced; never is their content taken for one's own."""
    theirs = file.parent / "theirs"
    theirs.write_bytes(b"theirs")
    os.chown(theirs, ANOTHER_USER, -1)
    steps = 0
    original = os.open

    def replacing(at: int) -> None:
        count = 0

        def open_(*arguments: object, **named: object) -> int:
            nonlocal count, steps
            count += 1
            steps = max(steps, count)
            if count == at:
                os.replace(file, file.parent / "kept")
                os.link(theirs, file)
            return original(*arguments, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "open", open_)

    for at in range(1, 20):
        replacing(at)
        opened, foreign = open_judged(file)
        with opened:
            content = opened.read()
        monkeypatch.undo()
        assert (content == b"content") == (foreign is None)
        file.unlink()
        if (file.parent / "kept").exists():
            os.replace(file.parent / "kept", file)
        else:
            file.write_bytes(b"content")
            break
    assert steps > 5


def test_a_directory_that_is_put_in_place_of_another_meanwhile_is_not_entered(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The walk holds the directory that it has judged."""
    original = os.open

    def open_(path: str, *arguments: object, **named: object) -> int:
        if path == file.name:
            file.parent.rename(file.parent.parent / "moved")
            file.parent.mkdir()
            file.write_bytes(b"another")
            monkeypatch.undo()
        return original(path, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", open_)
    opened, foreign = open_judged(file)
    with opened:
        assert (opened.read(), foreign) == (b"content", None)


def test_what_is_no_regular_file_is_not_opened(directory: Path) -> None:
    os.mkfifo(directory / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "socket"))
        for name, why in (
            ("fifo", "FIFO"),
            ("socket", "socket|No such"),
            (".", "directory"),
            ("no", "No such"),
        ):
            with pytest.raises(OSError, match=why):
                open_judged(directory / name)
    (directory / "file").touch()
    with pytest.raises(NotADirectoryError):
        open_judged(directory / "file" / "below")


def test_descriptors_are_closed(file: Path) -> None:
    (file.parent / "link").symlink_to(file)
    before = len(os.listdir("/proc/self/fd"))
    for name in ("link", "model.pkl", "no"):
        with suppress(FileNotFoundError):
            verdict(file.parent / name)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_copy_that_is_marked_is_not_ones_own(file: Path) -> None:
    (file.parent / COPIED_NAME).touch()
    assert verdict(file) == (file.parent / COPIED_NAME, "")
    found = judge_tree(file.parent)
    assert found is not None
    assert found.path.name == COPIED_NAME


@pytest.mark.parametrize("marked", [".", ".."])
def test_a_mark_counts_for_all_directories_below(file: Path, marked: str) -> None:
    below = file.parent / "generator"
    below.mkdir(mode=0o755)
    file.rename(below / file.name)
    assert verdict(below / file.name) is None
    assert judge_tree(below) is None
    mark = Path(os.path.normpath(file.parent / marked)) / COPIED_NAME
    mark.touch()
    assert verdict(below / file.name) == (mark, "")
    found = judge_tree(below)
    assert found is not None
    assert found.path == mark


def test_a_link_into_a_copy_that_is_marked_does_not_escape_the_mark(file: Path) -> None:
    copied = file.parent.parent / "copied"
    (copied / "below").mkdir(parents=True, mode=0o755)
    (copied / COPIED_NAME).touch()
    for folder in (copied, copied / "below"):
        shutil.copy(file, folder)
        file.unlink()
        file.symlink_to(os.path.relpath(folder / file.name, file.parent))
        found = verdict(file)
        assert found is not None
        assert (os.path.normpath(found[0]), found[1]) == (str(copied / COPIED_NAME), "")
        assert judge_tree(file.parent) is not None
    (file.parent.parent / "link").symlink_to(copied / "below")
    assert judge_tree(file.parent.parent / "link") is not None


@needs_root
def test_nobody_else_can_mark_what_is_below_a_directory_for_all(file: Path) -> None:
    above = file.parent.parent
    above.chmod(0o1777)
    (above / COPIED_NAME).touch()
    assert verdict(file) == (above / COPIED_NAME, "")
    os.chown(above / COPIED_NAME, ANOTHER_USER, -1)
    assert verdict(file) is None
    assert judge_tree(file.parent) is None


def test_a_directory_to_copy_is_judged_by_all_that_is_in_it(file: Path) -> None:
    below = file.parent / "below"
    below.mkdir(mode=0o755)
    (below / "weights").touch(mode=0o644)
    # What is above does not count.
    file.parent.parent.chmod(0o777)
    assert judge_tree(file.parent) is None
    (below / "weights").chmod(0o664)
    found = judge_tree(file.parent)
    assert found is not None
    assert found.path == below / "weights"
    # Nobody else gets there, whatever the umask was: the usual directory for temporary files.
    for closed in (file.parent, file.parent.parent):
        closed.chmod(0o700)
        assert judge_tree(file.parent) is None
        closed.chmod(0o755)
    file.parent.chmod(0o700)
    os.link(below / "weights", file.parent.parent / "second name")
    assert judge_tree(file.parent) is not None


@needs_root
def test_the_file_of_somebody_else_in_a_closed_directory_stays_theirs(file: Path) -> None:
    file.parent.chmod(0o700)
    os.chown(file, ANOTHER_USER, -1)
    found = judge_tree(file.parent)
    assert found is not None
    assert found.path == file


def test_links_in_a_directory_to_copy_count_by_where_they_lead(file: Path) -> None:
    outside = file.parent.parent / "outside"
    outside.touch(mode=0o644)
    (file.parent / "link").symlink_to(outside)
    assert judge_tree(file.parent) is None
    outside.chmod(0o666)
    assert judge_tree(file.parent) is not None
    (file.parent / "link").unlink()
    (file.parent / "link").symlink_to(file.parent.parent)
    found = judge_tree(file.parent)
    assert found is not None
    assert found.state == "is a link to a directory"


@needs_root
def test_the_link_of_somebody_else_to_a_directory_to_copy_counts(file: Path) -> None:
    link = file.parent.parent / "link"
    link.symlink_to(file.parent)
    assert judge_tree(link) is None
    os.chown(link, ANOTHER_USER, -1, follow_symlinks=False)
    found = judge_tree(link)
    assert found is not None
    assert found.path == link


def test_a_directory_that_is_held_is_the_one_that_was_opened(file: Path) -> None:
    directory = file.parent
    before = len(os.listdir("/proc/self/fd"))
    with hold_tree(directory) as tree:
        directory.rename(directory.parent / "moved")
        directory.mkdir(mode=0o777)
        directory.chmod(0o777)
        (directory / "theirs").touch()
        assert os.listdir(tree.path) == [file.name]
        assert tree.judge() is None
        (directory.parent / "moved").chmod(0o777)
        assert tree.judge(files=False) is not None
    assert len(os.listdir("/proc/self/fd")) == before
    for path in (directory / "no", directory / "theirs"):
        with pytest.raises(OSError, match=str(path)), hold_tree(path):
            pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_error_names_the_directory_as_it_was_given(file: Path) -> None:
    with (
        pytest.raises(FileNotFoundError, match=f"'{file.parent}/no'"),
        hold_tree(file.parent) as tree,
    ):
        (tree.path / "no").stat()
    with pytest.raises(ValueError, match=f"^{file} of"), hold_tree(file.parent) as tree:
        raise ValueError(f"{tree.path / file.name} of 3")
