"""What is the same in a replay, and what is not: code, versions, input files, Slurm."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpctrain.container import Container
from hpctrain.doctor.finding import Finding, Level
from hpctrain.errors import DamagedFileError, HpctrainError
from hpctrain.launch.code_record import commit_of, find_edited, read_code, top_of
from hpctrain.launch.digests import FILES, MODULES, identify_checkpoint, identify_datasets
from hpctrain.launch.record import installed_versions
from hpctrain.launch.request import Request
from hpctrain.launch.run_diff import Difference, is_same_python
from hpctrain.launch.run_environment import Variables, show_variable
from hpctrain.launch.stored import StoredRun
from hpctrain.pack.header import EnvironmentPack
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.plan.modules import combine, shown_name
from hpctrain.plan.sources import SourceFile, unpack_sources
from hpctrain.plan.spec import RunSpec
from hpctrain.rundir.paths import RunPaths

_NOT_THERE = "-"
_GONE = "gone"
_LONGEST = 120
_MOST_FILES = 8
# Digests of values that are not given.
_UNSET = ("None", "{}")
_RESUME = "resume_from_checkpoint"
_SEED = "seed of the ranks"
_VARIABLES = "recorded variables"


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What is the same in a replay, and what is not."""

    same: Sequence[str]
    """What decides the result, and is as it was."""
    kept: Sequence[str]
    """Files of the modules that are imported as they were."""
    edited: Sequence[str]
    """Those of them that have changed since, or are gone."""
    differences: Sequence[Difference]
    """What differs: the first value is that of the record, the second that of now."""
    variables: Sequence[Difference]
    """Variables that are set as they were: the first value is set, the second was set here."""
    unknown: Sequence[str]
    """What no record holds."""
    warnings: Sequence[str]
    """What Slurm says against the job, with the next step."""
    digests: Mapping[str, str]
    """Digests of what decides the result now, by name."""
    modules: Mapping[str, str]
    """Digests of the modules that are imported now, by file."""
    python: str
    """The interpreter of the run that is repeated."""


def find_changes(
    plan: Mapping[str, Any],
    stored: StoredRun,
    request: Request,
    launch_plan: LaunchPlan,
    *,
    variables: Variables,
    asks_slurm: bool,
) -> Changes:
    """Return what is the same in a replay, and what is not. Not collective.

    Parameters
    ----------
    plan
        Content of the ``plan.json`` of the run that is repeated.
    stored
        What it was begun with.
    request, launch_plan
        What is launched now.
    variables
        Those of the run, and of this process.
    asks_slurm
        Whether Slurm is asked if it still has what a job asks for.
    """
    recorded = plan["digests"]
    sources = unpack_sources(stored.spec.sources)
    kept = {shown_name(name, source.path): source for name, source in sources.items()}
    modules = _digest_modules(plan.get("modules", {}), stored.spec, kept)
    digests = dict(recorded)
    if MODULES in digests:
        digests[MODULES] = combine(modules.items())
    if FILES in digests:
        digests |= identify_datasets(request.worker_spec.datasets)
    if _RESUME in digests and (resumed := identify_checkpoint(request.resume_from)) is not None:
        digests[_RESUME] = resumed
    changed_variables = _variables(variables)
    origin = RunPaths(stored.plan.parent)
    tree, no_tree = _tree(origin, plan, kept)
    return Changes(
        same=[
            *(
                name
                for name, digest in digests.items()
                if digest == recorded[name]
                and digest not in _UNSET
                and name != MODULES
                and (name != "stop" or request.run_config.stop is not None)
            ),
            *([_SEED] if stored.spec.settings.seed is not None else ()),
            *([_VARIABLES] if variables.recorded and variables.repeats else ()),
        ],
        kept=sorted(kept),
        edited=sorted(name for name, source in kept.items() if not source.is_unchanged()),
        differences=[
            *_modules(plan.get("modules", {}), modules),
            *_inputs(recorded, digests, request),
            *_versions(plan),
            *_commit(plan, origin),
            *tree,
            *_launch(plan, stored.launch_plan, launch_plan),
            *(() if variables.repeats else changed_variables),
        ],
        variables=changed_variables if variables.repeats else [],
        unknown=[
            *([f"other files of the tree ({no_tree})"] if no_tree else ()),
            *_unknown(stored.spec, variables),
        ],
        warnings=_ask_slurm(request, launch_plan) if asks_slurm else [],
        digests=digests,
        modules=modules,
        python=plan.get("python", sys.executable),
    )


def _variables(variables: Variables) -> list[Difference]:
    recorded = variables.recorded or {}
    return [
        Difference(
            field=f"variable {name}",
            first=_text(show_variable(recorded, name)),
            second=_text(show_variable(variables.here, name)),
        )
        for name in variables.differing
    ]


def _unknown(spec: RunSpec, variables: Variables) -> list[str]:
    return [
        "variables of the shell" if variables.recorded is None else "other variables of the shell",
        "files that the training function reads by itself",
        "random numbers without a seed"
        if spec.settings.seed is None
        else "random generators that it makes itself without a seed",
    ]


def _digest_modules(
    recorded: Mapping[str, str], spec: RunSpec, kept: Mapping[str, Any]
) -> dict[str, str]:
    """Return the digest of each module that ranks import; one that is gone is left out."""
    now = {}
    for name, digest in recorded.items():
        found = digest if name in kept else _digest_on(spec.settings.sys_path, name)
        if found is not None:
            now[name] = found
    return now


def _digest_on(folders: Sequence[str], name: str) -> str | None:
    """Return the digest of the first file of a name below folders; None without one."""
    for folder in folders:
        try:
            with open(os.path.join(folder, name), "rb") as file:
                return hashlib.sha256(file.read()).hexdigest()
        except OSError:
            continue
    return None


def _modules(recorded: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Difference]:
    for name, digest in recorded.items():
        if now.get(name) != digest:
            second = now[name][:12] if name in now else _GONE
            yield Difference(field=f"module {name}", first=digest[:12], second=second)


def _inputs(
    recorded: Mapping[str, str], now: Mapping[str, str], request: Request
) -> Iterator[Difference]:
    if recorded.get(FILES) != now.get(FILES):
        yield Difference(field=FILES, first="as they were", second=_describe_files(request))
    if recorded.get(_RESUME) != now.get(_RESUME):
        first, second = f"{request.resume_from}, as it was", "changed since"
        yield Difference(field=_RESUME, first=first, second=second)


def _describe_files(request: Request) -> str:
    """Return which files of the datasets are gone, or were changed last."""
    from hpctrain.data.identity import files_of, newest

    files = [
        path for dataset in request.worker_spec.datasets.values() for path in files_of(dataset)
    ]
    if gone := [path for path in files if not os.path.exists(path)]:
        others = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        return f"{gone[0]}{others}: {_GONE}"
    return f"changed since; the last one: {newest(files)}"


def _versions(plan: Mapping[str, Any]) -> Iterator[Difference]:
    before, now = plan.get("versions", {}), installed_versions()
    for name in {**before, **now}:
        yield from _differ(f"version of {name}", before.get(name), now.get(name))
    before_python = plan.get("python", sys.executable)
    if not is_same_python(before_python, sys.executable):
        yield from _differ("python", before_python, sys.executable)


def _commit(plan: Mapping[str, Any], origin: RunPaths) -> Iterator[Difference]:
    # That of a script in no tree is of the directory that it was called from.
    if (top := top_of(origin, plan)) is not None:
        before, now = plan.get("git"), commit_of(top)
        yield from _differ("git commit", before, now or (before and "not known: git gives none"))


def _tree(
    origin: RunPaths, plan: Mapping[str, Any], kept: Mapping[str, SourceFile]
) -> tuple[list[Difference], str]:
    """Return how the tree of the script differs, but for what the run keeps; or why not."""
    try:
        code = read_code(origin)
    except DamagedFileError as error:
        return [], str(error).partition("\n")[0]
    if code is None:
        return [], ""
    script = os.path.join(str(plan.get("cwd", "")), *map(str, plan.get("argv", ())[:1]))
    paths = [os.path.realpath(path) for path in (script, *(file.path for file in kept.values()))]
    edited = find_edited(code, without=frozenset(paths))
    if edited is None:
        return [], str(code.get("error") or f"git does not compare {code.get('top')} any more")
    if not edited:
        return [], ""
    shown = ", ".join(edited[:_MOST_FILES])
    others = f" and {len(edited) - _MOST_FILES} more" if len(edited) > _MOST_FILES else ""
    return [
        Difference(
            field="other files of the tree",
            first="as they were",
            second=f"changed since: {shown}{others}",
        )
    ], ""


def _launch(
    plan: Mapping[str, Any], before: LaunchPlan | None, now: LaunchPlan
) -> Iterator[Difference]:
    if before is None:
        return
    if before.launcher != now.launcher:
        yield Difference(field="launcher", first=before.launcher, second=now.launcher)
    elif now.launcher == "slurm":
        for name in {**before.directives, **now.directives}:
            if name != "job-name":
                yield from _differ(
                    f"sbatch --{name}",
                    _option(before.directives, name),
                    _option(now.directives, name),
                )
        for name in before.first_job_directives:
            yield from _differ(f"sbatch --{name}", _option(before.first_job_directives, name), None)
    yield from _differ("mpi", before.mpi, now.mpi)
    yield from _differ("srun_args", list(before.srun_args), list(now.srun_args))
    yield from _differ("container", _shown(before.container), _shown(now.container))
    yield from _differ(
        "environment_pack", _digest_of(before.environment_pack), _digest_of(now.environment_pack)
    )
    # Their values may be secret.
    if before.launcher != now.launcher or before.environment == now.environment:
        return
    names = {**before.environment, **now.environment}
    changed = [n for n in names if before.environment.get(n) != now.environment.get(n)]
    yield Difference(
        field="variables of the site profile", first="as they were", second=", ".join(changed)
    )


def _option(directives: Mapping[str, str | None], name: str) -> str | None:
    """Return the value of an option, the name of a switch, or None."""
    return (directives[name] or f"--{name}") if name in directives else None


def _differ(field: str, before: Any, now: Any) -> Iterator[Difference]:
    if before != now:
        yield Difference(field=field, first=_text(before), second=_text(now))


def _shown(container: Container | None) -> str | None:
    return None if container is None else repr(container)


def _digest_of(pack: EnvironmentPack | None) -> str | None:
    return None if pack is None else pack.sha256


def _text(value: Any) -> str:
    if value is None:
        return _NOT_THERE
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _ask_slurm(request: Request, plan: LaunchPlan) -> list[str]:
    from hpctrain.launch.precheck import asks_of, check_asks

    try:
        findings = check_asks(asks_of(request, plan))
    except HpctrainError as error:
        return [f"Slurm was not asked whether it still has all of it: {error}"]
    return [text for finding in findings if (text := _against(finding))]


def _against(finding: Finding) -> str:
    if finding.level is Level.ERROR:
        return f"{finding.what}: it may never start. {finding.step}"
    if finding.level is Level.NOTE and finding.check == "partition":
        return f"{finding.what}: it may be gone. SlurmConfig(partition=...): 'sinfo' lists others"
    return ""
