"""``plan.json``: what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import damaged, read_object


def require_plan(paths: RunPaths) -> dict[str, Any]:
    """Return what a run was begun with, where that has to be there. Not collective.

    Raises
    ------
    OSError
        If it cannot be read just now.
    DamagedFileError
        If it is missing or damaged.
    """
    try:
        return read_plan(paths, needs=("trainer", "backend", "fingerprint", "digests"))
    except FileNotFoundError as error:
        raise damaged(paths.plan, "it is missing") from error


def read_plan(paths: RunPaths, *, needs: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a run was begun with. Not collective.

    Parameters
    ----------
    needs
        Fields that it has to have. Others may be absent, as in an older version's.

    Raises
    ------
    FileNotFoundError, NotADirectoryError
        If there is no plan.
    OSError
        If it cannot be read just now.
    DamagedFileError
        If it is damaged.
    """
    plan = read_object(paths.plan)
    for name, kind in _KINDS.items():
        if name in plan and not isinstance(plan[name], kind):
            raise damaged(paths.plan, f"{name} is {plan[name]!r:.80}")
    for name in needs:
        if name not in plan:
            raise damaged(paths.plan, f"it has no {name}")
    return plan


_KINDS = {
    "run_id": str,
    "trainer": str,
    "backend": str,
    "fingerprint": str,
    "digests": dict,
    "modules": dict,
    "argv": list,
    "cwd": str,
    "python": str,
    "scaling_config": dict,
    "run_config": dict,
    "launch_plan": dict,
    "versions": dict,
}
