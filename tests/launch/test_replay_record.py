"""The module path of a replay in another interpreter."""

from __future__ import annotations

import sys

from hpctrain.launch.replay_record import module_path


def test_packages_of_another_interpreter_give_way_to_those_of_this_one() -> None:
    recorded = [
        "/home/me/project",
        "/old/lib/python311.zip",
        "/old/lib/python3.11",
        "/old/lib/python3.11/lib-dynload",
        "/old/lib/python3.11/site-packages",
    ]
    same = module_path(recorded, recorded_python=sys.executable)
    assert same == tuple(recorded)
    other = module_path(recorded, recorded_python="/old/bin/python")
    assert other[0] == "/home/me/project"
    assert not any(path.startswith("/old") for path in other)
    assert any(path.endswith("-packages") for path in other)
