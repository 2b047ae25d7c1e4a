"""How two runs differ: request, code, versions and outcome."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpctrain.errors import ConfigError, DamagedFileError
from hpctrain.launch.code_record import read_code
from hpctrain.launch.run_environment import differing_names, read_variables, show_variable
from hpctrain.plan.sources import SourceFile, unpack_sources
from hpctrain.plan.spec import RunSpec
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.plan import read_plan
from hpctrain.rundir.status import read_status
from hpctrain.rundir.trust import read_spec

_NOT_THERE = "-"
_DIFFERS = "another one"
# Names, places and times differ between any two runs; what else is digested stands in the values.
_ASKED = ("trainer", "backend", "argv", "cwd", "python", "site", "git", "seed")
_NESTED = ("scaling_config", "run_config", "versions")
# They are fields of the configurations, too.
_SHOWN_ELSEWHERE = ("number of workers", "checkpoint_config", "modules of the script")
_IGNORED = ("run_config.storage_path",)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A value that differs; ``-`` where a run has none."""

    field: str
    first: str
    second: str


def compare_runs(first: RunPaths, second: RunPaths) -> list[Difference]:
    """Return how two runs differ.

    Not collective. Values of ``train_loop_config`` are read from ``spec.pkl``, which is this user's
    own; of another user's run it is only known that they differ.

    Raises
    ------
    ConfigError
        If one of them has no ``plan.json``.
    DamagedFileError
        If it is damaged.
    """
    plans = [_read(paths) for paths in (first, second)]
    specs = [read_own_spec(paths) for paths in (first, second)]
    has_one_python = is_same_python(*(str(plan.get("python")) for plan in plans))
    asked = [name for name in _ASKED if not (name == "python" and has_one_python)]
    return [
        *_code_and_values(plans, specs),
        *_fields([{name: plan.get(name) for name in asked} for plan in plans]),
        *_fields(
            [flatten_fields({name: plan.get(name, {}) for name in _NESTED}) for plan in plans]
        ),
        *_uncommitted([read_code(paths) for paths in (first, second)]),
        *_variables([read_variables(plan) for plan in plans]),
        *_fields([_outcome(paths) for paths in (first, second)]),
    ]


def compare_sources(first: RunPaths, second: RunPaths) -> str:
    """Return how the modules that two runs keep differ, as a unified diff. Not collective.

    Raises
    ------
    ConfigError
        If one of the runs is another user's, or keeps no modules.
    """
    both = []
    for paths in (first, second):
        spec = read_own_spec(paths)
        if spec is None or not spec.sources:
            raise ConfigError(
                f"{paths.root} keeps no modules: it is another user's, of an older hpctrain, or "
                f"RunConfig(snapshot=False) was set, or its function imports none of your own."
            )
        both.append(unpack_sources(spec.sources))
    return "".join(_diff(*both))


def read_own_spec(paths: RunPaths) -> RunSpec | None:
    """Return ``spec.pkl`` if only this user can have written it, else None. Not collective."""
    try:
        return RunSpec.from_bytes(read_spec(paths))
    # A class of an older version may be gone, and unpickling raises what it likes.
    except Exception:
        return None


def _read(paths: RunPaths) -> dict[str, Any]:
    try:
        return read_plan(paths)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(f"{paths.root} has no plan.json: it was never begun.") from error


def _code_and_values(
    plans: list[dict[str, Any]], specs: list[RunSpec | None]
) -> Iterator[Difference]:
    digests = [plan.get("digests", {}) for plan in plans]
    values = [{} if spec is None else dict(spec.values) for spec in specs]
    known = all(spec is not None for spec in specs)
    for name in {**digests[0], **digests[1]}:
        if digests[0].get(name) == digests[1].get(name) or name in _SHOWN_ELSEWHERE:
            continue
        found = [
            difference
            for difference in _fields(values)
            if difference.field == name or difference.field.startswith(f"{name}[")
        ]
        if known and found:
            yield from found
        else:
            yield Difference(field=name, first=_DIFFERS, second=_DIFFERS)
    modules = [plan.get("modules", {}) for plan in plans]
    for name in sorted({**modules[0], **modules[1]}):
        digest = [of.get(name) for of in modules]
        if digest[0] != digest[1]:
            shown = [_NOT_THERE if each is None else str(each)[:12] for each in digest]
            yield Difference(field=f"module {name}", first=shown[0], second=shown[1])


def _uncommitted(both: list[dict[str, Any] | None]) -> Iterator[Difference]:
    """Yield the branches, and the files with other uncommitted changes."""
    first, second = both
    if first is None or second is None:
        return
    if (errors := [code.get("error") for code in (first, second)]) != [None, None]:
        # What is not known does not differ.
        shown = [_NOT_THERE if error is None else f"not known: {error}" for error in errors]
        yield Difference(field="uncommitted changes", first=shown[0], second=shown[1])
        return
    yield from _fields([{"git branch": code.get("branch")} for code in (first, second)])
    files = first.get("files", {}), second.get("files", {})
    for name in sorted({**files[0], **files[1]}):
        shown = [_digest_of(of, name) for of in files]
        if shown[0] != shown[1]:
            yield Difference(field=f"uncommitted {name}", first=shown[0], second=shown[1])


def _digest_of(files: Mapping[str, Any], name: str) -> str:
    if name not in files:
        return _NOT_THERE
    return "deleted" if files[name] is None else str(files[name])[:12]


def _variables(both: list[dict[str, str] | None]) -> Iterator[Difference]:
    """Yield the variables that differ; none where one of the runs has no record of them."""
    first, second = both
    if first is None or second is None:
        return
    for name in differing_names(first, second):
        yield Difference(
            field=f"variable {name}",
            first=show_variable(first, name),
            second=show_variable(second, name),
        )


def _outcome(paths: RunPaths) -> dict[str, Any]:
    try:
        status = read_status(paths)
    except (OSError, DamagedFileError):
        status = None
    if status is None:
        return {"state": None}
    return {
        "state": status.state.value,
        "attempts": status.attempt,
        "reports": status.reports,
        "nodes": len(status.nodes),
        **flatten_fields({"metrics": dict(status.metrics)}),
    }


def is_same_python(first: str, second: str) -> bool:
    """Return whether two names, such as python and python3, are those of one interpreter.

    Not collective. Environments link to the same file from different directories.
    """
    is_beside = os.path.dirname(first) == os.path.dirname(second)
    return is_beside and os.path.realpath(first) == os.path.realpath(second)


def _fields(both: list[dict[str, Any]]) -> Iterator[Difference]:
    for name in {**both[0], **both[1]}:
        first, second = (format_field(of[name]) if name in of else _NOT_THERE for of in both)
        if first != second and name not in _IGNORED and not _is_shown_by_parts(name, both):
            yield Difference(field=name, first=first, second=second)


def _is_shown_by_parts(name: str, both: list[dict[str, Any]]) -> bool:
    """Return whether one run has None where the other has fields, which are listed themselves."""
    has_none = any(name in of and of[name] is None for of in both)
    return has_none and any(key.startswith(f"{name}.") for of in both for key in of)


def format_field(value: Any) -> str:
    """Return a value of a field as text. Not collective."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def flatten_fields(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one, with dots in its names. Not collective."""
    flat: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten_fields(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _lines(source: SourceFile | None) -> list[str]:
    content = b"" if source is None else source.content
    return content.decode("utf-8", "replace").splitlines(keepends=True)


def _diff(first: Mapping[str, SourceFile], second: Mapping[str, SourceFile]) -> Iterator[str]:
    for name in sorted({**first, **second}):
        before, after = _lines(first.get(name)), _lines(second.get(name))
        for line in difflib.unified_diff(before, after, f"first/{name}", f"second/{name}"):
            yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
