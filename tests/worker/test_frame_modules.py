from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any

import pytest

from hpctrain.worker.frame_modules import frame_modules


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What Python has looked up by its file."""
    found, real = [], inspect.getmodule

    def look_up(object: Any, _filename: str | None = None) -> ModuleType | None:
        found.append(object)
        return real(object, _filename)

    monkeypatch.setattr(inspect, "getmodule", look_up)
    yield found
    assert inspect.getmodule is look_up


def own_frame() -> FrameType:
    return sys._getframe()


def frame_of_other_file() -> FrameType:
    variables = globals()
    exec(compile("_frame = __import__('sys')._getframe()", "other.py", "exec"), variables)
    frame = variables.pop("_frame")
    assert isinstance(frame, FrameType)
    return frame


def frame_of_no_module() -> FrameType:
    variables: dict[str, Any] = {"__name__": __name__}
    exec("import sys; frame = sys._getframe()", variables)
    frame = variables["frame"]
    assert isinstance(frame, FrameType)
    return frame


def test_the_module_of_a_frame_is_known_without_a_look_at_files(looks: list[Any]) -> None:
    with frame_modules():
        assert inspect.getmodule(own_frame()) is sys.modules[__name__]
    assert looks == []


@pytest.mark.parametrize(
    "make", [lambda: own_frame, lambda: "text", frame_of_other_file, frame_of_no_module]
)
def test_all_else_is_looked_up_as_always(looks: list[Any], make: Callable[[], Any]) -> None:
    object = make()
    expected = inspect.getmodule(object)
    looks.clear()
    with frame_modules():
        assert inspect.getmodule(object) is expected
    assert looks[:1] == [object]


def test_it_is_as_before_after_an_import_that_failed(looks: list[Any]) -> None:
    with pytest.raises(ImportError), frame_modules():
        raise ImportError
    inspect.getmodule(own_frame())
    assert len(looks) == 1
