"""A run in a notebook: drawn by IPython, again and again, until it is over."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from hpctrain import RunHandle
from hpctrain.errors import ConfigError
from hpctrain.rundir.live_html import render_live
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import write_status
from tests.cli.live_views import large_view, small_view
from tests.launch.test_live_watch import STATUS, at_work, make_run
from tests.processes import run_python


def test_a_handle_is_shown_as_html(tmp_path: Path) -> None:
    paths = make_run(tmp_path / "r", **at_work())
    handle = RunHandle(paths.root)
    assert "<b>r</b> running" in handle._repr_html_()
    write_status(paths, replace(STATUS, state=RunState.FAILED, error="<i>why</i>"))
    assert "&lt;i&gt;why&lt;/i&gt;" in handle._repr_html_()


def test_a_thousand_ranks_are_shown_by_the_slowest() -> None:
    html = render_live(large_view())
    assert "   997  gpu124            checkpoint" in html
    assert "<svg" in html
    assert " to 1197<" in html
    assert len(html) < 50_000
    assert "<script" not in html


def test_what_a_run_says_is_escaped() -> None:
    view = small_view("<script>", RunState.RUNNING, True, metrics={"<b>": 1})
    assert "<script>" not in render_live(view)


def test_outside_of_a_notebook_it_says_what_to_type(tmp_path: Path) -> None:
    handle = RunHandle(make_run(tmp_path / "r").root)
    with pytest.raises(ConfigError, match="hpctrain top RUN"):
        handle.show()
    with pytest.raises(ConfigError, match="at least 1"):
        handle.show(interval_s=0.1)


def test_it_is_drawn_until_the_run_is_over(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    paths = make_run(tmp_path / "r", **at_work())
    del paths
    script = f"""
        import threading
        from dataclasses import replace
        from IPython.core.interactiveshell import InteractiveShell
        from IPython.core.displaypub import CapturingDisplayPublisher
        shell = InteractiveShell.instance()
        shell.display_pub = CapturingDisplayPublisher()
        import hpctrain
        from hpctrain.rundir.states import RunState
        from hpctrain.rundir.status import write_status
        from tests.launch.test_live_watch import STATUS, at_work
        handle = hpctrain.RunHandle({str(tmp_path / "r")!r})
        write_status(handle._paths, replace(STATUS, name="r", **at_work()))
        handle.show(timeout_s=0)
        (drawn,) = shell.display_pub.outputs
        assert "<b>r</b> running" in drawn["data"]["text/html"]
        assert drawn["data"]["text/plain"].startswith("r: running")
        end = replace(STATUS, name="r", state=RunState.FINISHED)
        threading.Timer(1.5, write_status, (handle._paths, end)).start()
        handle.show(interval_s=1)
        first, *others = shell.display_pub.outputs[1:]
        assert others[-1]["data"]["text/plain"].startswith("r: finished")
        assert {{each["transient"]["display_id"] for each in others}} == {{
            first["transient"]["display_id"]
        }}
        print("drawn", len(others))
    """
    done = run_python("-c", textwrap.dedent(script), cwd=Path(__file__).parents[2], timeout_s=60)
    assert "drawn" in done.stdout
