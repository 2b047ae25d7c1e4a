"""What a process imports that ranks are forked from: which modules are a library's."""

from __future__ import annotations

import sysconfig

from hpctrain.worker import preload


def test_the_standard_library_is_where_python_says_that_it_is() -> None:
    places = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    assert [f"{place}/" for place in places] == [*preload._STDLIB]
