"""Which of the modules that a training function imports are found."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain.worker.import_watch import ImportWatch


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return what makes a module ``watched_library``."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(source: str = "") -> None:
        (tmp_path / "watched_library.py").write_text(source, encoding="utf-8")

    yield make
    sys.modules.pop("watched_library", None)


@pytest.fixture
def make_watch() -> Iterator[Callable[..., ImportWatch]]:
    made: list[ImportWatch] = []

    # Not in the fixture: pytest has a variable that changes when the test begins.
    def make(*names: str) -> ImportWatch:
        made.append(ImportWatch(names or ["watched_library", "json", "not_there"]))
        return made[-1]

    yield make
    for watch in made:
        watch.close()


def test_an_import_is_found_once_and_only_what_was_asked_for(
    library: Callable[..., None], make_watch: Callable[..., ImportWatch]
) -> None:
    watch = make_watch()
    # One that changes the environment itself does so in a fork server too.
    library("import os; os.environ['OF_WATCHED_LIBRARY'] = '1'")
    assert watch.take_new() == []
    with pytest.MonkeyPatch.context() as restored:
        restored.setenv("OF_WATCHED_LIBRARY", "0")
        restored.delenv("OF_WATCHED_LIBRARY")
        importlib.import_module("watched_library")
    assert watch.take_new() == ["watched_library"]
    assert watch.take_new() == []


def test_an_import_is_left_out_after_a_variable_was_set(
    library: Callable[..., None],
    make_watch: Callable[..., ImportWatch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = make_watch()
    library()
    monkeypatch.setenv("READ_BY_WATCHED_LIBRARY", "1")
    importlib.import_module("watched_library")
    assert watch.take_new() == []


def test_variables_of_the_backend_do_not_count_and_those_before_it_do(
    library: Callable[..., None],
    make_watch: Callable[..., ImportWatch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = make_watch()
    library()
    watch.enter_backend()
    monkeypatch.setenv("MASTER_PORT_OF_TEST", "1")
    watch.enter_training()
    importlib.import_module("watched_library")
    assert watch.take_new() == ["watched_library"]

    del sys.modules["watched_library"]
    other = make_watch("watched_library")
    monkeypatch.setenv("SET_BY_A_MODULE_OF_THE_USER", "1")
    other.enter_backend()
    other.enter_training()
    importlib.import_module("watched_library")
    assert other.take_new() == []


def test_a_report_does_not_look_through_all_modules(
    library: Callable[..., None],
    make_watch: Callable[..., ImportWatch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Modules(dict[str, Any]):
        def keys(self) -> Any:
            raise AssertionError("all of them are looked at")

    library()
    watch = make_watch()
    importlib.import_module("watched_library")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "modules", Modules(sys.modules))
        assert watch.take_new() == ["watched_library"]
        assert watch.take_new() == []


def test_an_import_that_fails_is_not_found(
    library: Callable[..., None], make_watch: Callable[..., ImportWatch]
) -> None:
    watch = make_watch()
    library("raise ValueError('no')")
    with pytest.raises(ValueError, match="no"):
        importlib.import_module("watched_library")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("not_there")
    assert watch.take_new() == []


def test_it_leaves_no_finder_behind(make_watch: Callable[..., ImportWatch]) -> None:
    watch = make_watch()
    assert watch in sys.meta_path
    watch.close()
    watch.close()
    assert watch not in sys.meta_path
    nothing = make_watch("json")
    assert nothing not in sys.meta_path
