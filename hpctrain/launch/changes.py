"""How a request differs from that of a run which exists, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpctrain.launch.digests import MODULES
from hpctrain.plan.spec import RunSpec
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.trust import read_spec

_MOST_SHOWN = 8
# Contents of `RunSpec.worker` that have no digest of their own.
_THE_REST = "datasets, preprocessor or metadata"


def find_changes(paths: RunPaths, plan: Mapping[str, Any], spec: RunSpec) -> list[str]:
    """Return what a request changes of what decides the result of a run.

    Not collective. What the run's plan does not have, as an older hpctrain wrote it, is taken as
    unchanged.

    Parameters
    ----------
    plan
        Content of ``plan.json``.
    spec
        What is asked for now.
    """
    before, now = plan["digests"], spec.digests
    changed = [what for what in now if before.get(what, now[what]) != now[what]]
    if not changed:
        return [] if plan["fingerprint"] == spec.fingerprint else [_THE_REST]
    values = _stored_values(paths)
    described: list[str] = []
    for what in changed:
        if what == MODULES:
            described += _differing_files(plan.get("modules", {}), spec.modules) or [what]
        else:
            described += _differing_values(what, values, spec.values) or [what]
    if len(described) > _MOST_SHOWN:
        others = len(described) - _MOST_SHOWN
        described = [*described[:_MOST_SHOWN], f"and {others} more"]
    return described


def _differing_files(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    edited = [f"{name}: edited" for name in now if before.get(name, now[name]) != now[name]]
    added = [f"{name}: not used before" for name in now if name not in before]
    return [*edited, *added, *(f"{name}: not used any more" for name in before if name not in now)]


def _differing_values(what: str, before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    if not before:
        return []
    names = [n for n in {**before, **now} if n == what or n.startswith(f"{what}[")]
    return [
        f"{name}: {before.get(name, 'not there')}, now {now.get(name, 'not there')}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _stored_values(paths: RunPaths) -> Mapping[str, str]:
    """Return the values that a run was begun with, if its spec is this user's own."""
    try:
        return RunSpec.from_bytes(read_spec(paths)).values
    except Exception:  # cut off, damaged, or of a version with other classes
        return {}
