"""The table of the states of a run, from ``hpctrain.rundir.states``."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise

from hpctrain.rundir import states
from hpctrain.rundir.states import TRANSITIONS, RunEvent, RunState


def render_states() -> str:
    """Return what the states and the events mean, and what each event makes of each state."""
    meanings = [f"``{state.value}``\n   {_meaning('RunState', state)}\n" for state in RunState]
    lines = ["\n", *meanings, "\n.. list-table::\n   :header-rows: 1\n\n"]
    head = ["event", *(state.value for state in RunState)]
    lines += [f"   {'* -' if i == 0 else '  -'} {cell}\n" for i, cell in enumerate(head)]
    for event in RunEvent:
        nexts = (TRANSITIONS[state].get(event) for state in RunState)
        cells = [f"**{event.value}**: {_meaning('RunEvent', event)}"]
        cells += ["--" if after is None else after.value for after in nexts]
        lines += [f"   {'* -' if i == 0 else '  -'} {cell}\n" for i, cell in enumerate(cells)]
    return "".join(lines)


def _meaning(enum: str, member: RunState | RunEvent) -> str:
    """Return the text below a member in the code."""
    (body,) = (
        node.body
        for node in ast.parse(inspect.getsource(states)).body
        if isinstance(node, ast.ClassDef) and node.name == enum
    )
    for node, text in pairwise(body):
        is_it = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == member.name
        if is_it and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            return str(text.value.value)
    raise LookupError(member)
