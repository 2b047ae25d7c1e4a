from __future__ import annotations

import ast
from pathlib import Path

import hpctrain
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.run_record import RunRecord
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, read_status

PACKAGE = Path(hpctrain.__file__).parent
# Of the format: they are used by RunRecord, and by nothing else.
WRITERS = {"append_event", "write_status"}
OPENERS = ("write_atomic", "open_append", "append_durably")


def test_a_status_is_returned_as_it_was_written(tmp_path: Path):
    paths = RunPaths(tmp_path)
    written = RunRecord(paths).write(RunStatus(name="run", state=RunState.RUNNING, launcher="here"))
    assert written.updated_at > 0
    assert read_status(paths) == written


def test_events_are_appended_in_order(tmp_path: Path):
    paths = RunPaths(tmp_path)
    RunRecord(paths).append("fit", launcher="here")
    RunRecord(paths).append("submitted", job_id="7")
    assert [event["event"] for event in read_events(paths)] == ["fit", "submitted"]


def test_no_other_module_writes_the_status_or_the_ledger():
    allowed = {PACKAGE / "rundir" / f"{name}.py" for name in ("status", "ledger", "run_record")}
    found = []
    for module in sorted(set(PACKAGE.rglob("*.py")) - allowed):
        text = module.read_text()
        # Most name none of them: to parse those takes seconds.
        if not any(name in text for name in (*WRITERS, *OPENERS)):
            continue
        for node in ast.walk(ast.parse(text)):
            is_import = isinstance(node, ast.ImportFrom) and {a.name for a in node.names} & WRITERS
            if is_import or (isinstance(node, ast.Call) and _opens_for_writing(node)):
                found.append(f"{module.relative_to(PACKAGE)}: {ast.unparse(node)}")
    assert found == []


def _opens_for_writing(call: ast.Call) -> bool:
    function = getattr(call.func, "id", getattr(call.func, "attr", None))
    if function not in OPENERS or not call.args:
        return False
    return ast.unparse(call.args[0]).endswith(("paths.status", "paths.ledger"))
