"""Modules that are edited between fit() and their import."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.plan.modules import ModuleFinder
from hpctrain.plan.sources import SourceFile, pack_sources, unpack_sources
from tests.processes import run_python

IMPORT = """
import sys
from hpctrain.worker.pinned import pin_sources

sys.path.insert(0, {place!r})
pin_sources({packed!r})
import package.part
import other
print(package.NAME, package.part.VALUE, package.part.__file__, other.VALUE)
try:
    package.part.fail()
except ValueError:
    import traceback

    print(traceback.format_exc())
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("NAME = 'old'\n")
    (tmp_path / "package" / "part.py").write_text(
        "# été\nVALUE = 1\n\n\ndef fail():\n    raise ValueError('the old line')\n",
        encoding="utf-8",
    )
    (tmp_path / "other.py").write_text("VALUE = 'other'\n")
    return tmp_path


def read(path: Path) -> SourceFile:
    return SourceFile.of(str(path), path.read_bytes(), mtime_ns=path.stat().st_mtime_ns)


def sources_of(place: Path) -> dict[str, SourceFile]:
    return {
        "package": read(place / "package" / "__init__.py"),
        "package.part": read(place / "package" / "part.py"),
    }


def run(place: Path, packed: bytes) -> str:
    script = IMPORT.format(place=str(place), packed=packed)
    done = run_python("-c", script, timeout_s=60)
    return done.stdout + done.stderr


def test_sources_are_packed_as_they_are_and_none_of_none(place: Path) -> None:
    sources = sources_of(place)
    odd = SourceFile.of("/a/b.py", bytes(range(256)), mtime_ns=1)
    assert unpack_sources(pack_sources({**sources, "odd": odd})) == {**sources, "odd": odd}
    assert (pack_sources({}), unpack_sources(b"")) == (b"", {})


def test_what_is_too_large_is_not_kept(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setattr("hpctrain.plan.sources.MOST_SOURCE_BYTES", 10)
    assert pack_sources(sources_of(place)) == b""


def test_an_edited_module_is_imported_as_it_was_and_an_unchanged_one_as_ever(place: Path) -> None:
    packed = pack_sources(sources_of(place))
    said = run(place, packed)
    assert "old 1 " in said
    assert "has changed" not in said
    part = place / "package" / "part.py"
    part.write_text("VALUE = 2\n\n\ndef fail():\n    pass\n")
    said = run(place, packed)
    assert f"old 1 {part} other" in said
    assert f"{part} has changed since fit()" in said
    # The traceback shows the line that has run.
    assert "raise ValueError('the old line')" in said
    assert run(place, b"").startswith("old 2 ")


def test_bytecode_of_the_edited_file_is_not_used_and_not_replaced(place: Path) -> None:
    packed = pack_sources(sources_of(place))
    part = place / "package" / "part.py"
    part.write_text("VALUE = 2\n\n\ndef fail():\n    pass\n")
    # Writes its bytecode.
    assert run(place, b"").startswith("old 2 ")
    assert "old 1 " in run(place, packed)
    assert run(place, b"").startswith("old 2 ")


def test_deleted_modules_are_imported_all_the_same(place: Path) -> None:
    packed = pack_sources(sources_of(place))
    (place / "package" / "part.py").unlink()
    (place / "package" / "__init__.py").unlink()
    (place / "package" / "__pycache__").mkdir(exist_ok=True)
    assert "old 1 " in run(place, packed)


def test_a_file_that_is_touched_or_moved_back_is_taken_for_what_it_holds(place: Path) -> None:
    packed = pack_sources(sources_of(place))
    part = place / "package" / "part.py"
    os.utime(part, (1, 1))
    said = run(place, packed)
    assert "old 1 " in said
    assert "has changed" not in said


def test_the_finder_keeps_the_sources_of_what_it_reaches(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cloudpickle

    monkeypatch.syspath_prepend(str(place))
    import package.part  # type: ignore[import-not-found]

    finder = ModuleFinder()
    finder.follow(cloudpickle.dumps(package.part.fail))
    assert finder.sources == sources_of(place)
    for name in ("package", "package.part"):
        monkeypatch.delitem(sys.modules, name)


def test_a_module_that_comes_first_by_now_is_not_imported(place: Path) -> None:
    (place / "single.py").write_text("VALUE = 'old'\n")
    packed = pack_sources({"single": read(place / "single.py")})
    (place / "single").mkdir()
    (place / "single" / "__init__.py").write_text("VALUE = 'new'\n")
    script = (
        f"import sys; sys.path.insert(0, {str(place)!r})\n"
        f"from hpctrain.worker.pinned import pin_sources; pin_sources({packed!r})\n"
        "import single; print(single.VALUE)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "old\n", done.stderr


def test_a_namespace_package_that_is_gone_is_imported_all_the_same(place: Path) -> None:
    (place / "outer" / "inner").mkdir(parents=True)
    module = place / "outer" / "inner" / "part.py"
    module.write_text("VALUE = 'old'\n")
    packed = pack_sources({"outer.inner.part": read(module)})
    (place / "outer").rename(place / "elsewhere")
    script = (
        f"import sys; sys.path.insert(0, {str(place)!r})\n"
        f"from hpctrain.worker.pinned import pin_sources; pin_sources({packed!r})\n"
        "import outer.inner.part as part; print(part.VALUE)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "old\n", done.stderr


def test_a_file_that_a_library_hides_is_not_kept(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "html").mkdir()
    for name in ("statistics.py", "wave.py"):
        (place / name).write_text("VALUE = 'mine'\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(place)])
    for name in ("statistics", "wave"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import cloudpickle

    def train() -> None:
        import statistics  # noqa: F401
        import wave  # noqa: F401

    finder = ModuleFinder()
    finder.follow(cloudpickle.dumps(train))
    assert not {"statistics", "wave"} & set(finder.sources)


def test_a_tree_of_too_many_files_is_known_to_be_incomplete(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cloudpickle

    monkeypatch.setattr("hpctrain.plan.modules._MOST_FILES", 1)
    monkeypatch.syspath_prepend(str(place))

    def train() -> None:
        import other
        import package.part  # noqa: F401

        print(other)

    finder = ModuleFinder()
    finder.follow(cloudpickle.dumps(train))
    assert not finder.is_complete


@pytest.mark.parametrize("holds", ["the same", "something else"])
def test_in_a_packed_environment_the_same_file_there_is_imported(place: Path, holds: str) -> None:
    packed = pack_sources(sources_of(place))
    node = place / "node"
    shutil.copytree(place / "package", node / "with/0/package")
    (node / "hpctrain-pack.json").touch()
    if holds != "the same":
        (node / "with/0/package/part.py").write_text("VALUE = 2\n\n\ndef fail():\n    pass\n")
    shutil.copy(place / "other.py", node / "with/0")
    script = IMPORT.format(place=str(node / "with/0"), packed=packed)
    where = f"import sys; sys.prefix = {str(node / 'env')!r}\n"
    said = run_python("-c", where + script, timeout_s=60).stdout
    there = node / "with/0" if holds == "the same" else place
    assert f"old 1 {there / 'package/part.py'} other" in said
