"""Tables of ``ray-train.rst`` and ``tune.rst``, from what ``ray_conformance/measure.py`` wrote."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "tests/ray_conformance/results.json"

STATES = ("unchanged", "documented edit", "refused", "undocumented edit", "wrong")
# What the first error of a script says, and why it is so: every difference has a reason.
REASONS = {
    r"_preprocessor'": (
        "preprocessors are JSON and arrays: ``checkpoint.get_preprocessor()`` reads them"
    ),
    r"only integers, slices": "an array is predicted as an array, not as a dict with one",
    r"is out of bounds": "the local images are fewer than the script wants",
    r"did not end in time": "too slow for two loaded CPUs",
    r"no attribute 'log_dir'": "the older name of ``Result.path``",
    r"^IndentationError": "what its page leaves to its reader is indented by 11",
}
# Why a test of Ray Tune's fails: by what its name and its error say.
REASONS_OF_TESTS = {
    r"(Float|Integer|Categorical|Function)\.__init__": (
        "domains are made by functions, such as ``tune.uniform(1, 2)``, not from classes"
    ),
    r"testFunctionSignature": "``sample_from(f).sample()`` does not call a function of the config",
    r"save_to_dir": "a search algorithm is in ``tuner.pkl``, and has no files of its own",
    r"test_nonserializable": "``fit()`` refuses such a function, not ``Tuner()``",
    r"TUNE_ORIG_WORKING_DIR|RAY_CHDIR_TO": (
        "trials run in the directory of the script, and no variable changes that"
    ),
    r"test_tuner_restore_classmethod": "what is no sweep is a ``ConfigError``",
    r"test_restore_overwrite_trainable": (
        "a restored sweep runs the code of the script that restores it, under any name"
    ),
    r"hard_stop=False": "``MedianStoppingRule`` pauses no trial",
    r"has no attribute 'save'": "a scheduler is in ``tuner.pkl``, and has no files of its own",
    r"test_tuner_can_restore": "a ``Tuner`` writes nothing before ``fit()``",
}


def read_results() -> dict[str, dict[str, Any]]:
    """Return what came of each script and each test file, by name."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def reason_of(error: str, reasons: Mapping[str, str] = REASONS) -> str:
    """Return why a script needs an edit, or a test fails."""
    for pattern, reason in reasons.items():
        if re.search(pattern, error):
            return reason
    return "not understood yet"


def is_of_tune(name: str) -> bool:
    """Return whether a script or a test file is Ray Tune's."""
    return "/tune/" in name


def failures_of_tune(results: dict[str, dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Return file, function and error of each test of Ray Tune's that fails."""
    return [
        (name, function, state.removeprefix("failed: "))
        for name, one in results.items()
        if one["kind"] == "test" and is_of_tune(name)
        for function, state in one["functions"].items()
        if state.startswith("failed")
    ]


def render_tune(results: dict[str, dict[str, Any]]) -> str:
    """Return the tables of the page on sweeps, in reStructuredText."""
    failures = [
        [f"``{function}``", reason_of(f"{function}: {error}", REASONS_OF_TESTS)]
        for _, function, error in failures_of_tune(results)
    ]
    return "\n".join(
        [
            _tables({name: one for name, one in results.items() if is_of_tune(name)}),
            _table(["test function that fails", "reason"], failures),
        ]
    )


def render(results: dict[str, dict[str, Any]]) -> str:
    """Return the tables of the page on Ray Train, in reStructuredText."""
    return _tables({name: one for name, one in results.items() if not is_of_tune(name)})


def _tables(results: dict[str, dict[str, Any]]) -> str:
    scripts = {name: one for name, one in results.items() if one["kind"] == "script"}
    tests = {name: one for name, one in results.items() if one["kind"] == "test"}
    parts = [
        _summary(scripts),
        _table(
            ["what needs an edit that this page does not name", "error", "reason"],
            [
                [f"``{name}``", f"``{_short(one['error'])}``", reason_of(one["error"])]
                for name, one in scripts.items()
                if one["state"] in {"undocumented edit", "wrong"}
            ],
        ),
        _table(
            ["scripts", "state"],
            [
                [f"``{name}``", _state(one)]
                for name, one in scripts.items()
                if one["state"] not in {"undocumented edit", "wrong", "not applicable"}
            ],
        ),
        _counts(
            "scripts that do not apply",
            [one["reason"] for one in scripts.values() if "reason" in one],
        ),
        _tests(tests),
        _counts(
            "test functions that do not apply",
            [
                state.removeprefix("not applicable: ")
                for one in tests.values()
                for state in one["functions"].values()
                if state.startswith("not applicable")
            ],
        ),
    ]
    return "\n".join(parts)


def _summary(scripts: dict[str, dict[str, Any]]) -> str:
    versions: dict[str, Counter[str]] = {}
    for name, one in scripts.items():
        version = name.partition(":")[0]
        version = f"Ray {version}" if "/" not in version else "other repositories"
        versions.setdefault(version, Counter())[one["state"]] += 1
    versions = dict(sorted(versions.items()))
    total = sum(versions.values(), Counter())
    rows = [
        [version, *(str(counts[state]) for state in (*STATES, "not applicable"))]
        for version, counts in {**versions, "all": total}.items()
    ]
    return _table(["scripts of", *STATES, "not applicable"], rows)


def _tests(tests: dict[str, dict[str, Any]]) -> str:
    rows = []
    passed_of_all = applicable_of_all = 0
    for name, one in tests.items():
        states = [s for s in one["functions"].values() if not s.startswith("not applicable")]
        passed = sum(state == "passed" for state in states)
        passed_of_all, applicable_of_all = passed_of_all + passed, applicable_of_all + len(states)
        if states:
            # Where that one could not be had; its functions are those of the release it is near to.
            version = f" ({one['version']} of the file)" if "version" in one else ""
            rows.append([f"``{name}``{version}", f"{passed} of {len(states)}"])
    total = ["all", f"{passed_of_all} of {applicable_of_all}"]
    return _table(["test file of Ray", "test functions that pass"], [total, *rows])


def _counts(title: str, reasons: list[str]) -> str:
    rows = [[reason, str(count)] for reason, count in Counter(reasons).most_common()]
    return _table([title, "number"], rows)


def _state(one: dict[str, Any]) -> str:
    return one["state"] if one["state"] != "refused" else f"refused: ``{_short(one['error'])}``"


def _short(error: str) -> str:
    """Return an error on one line that a cell of a table can hold."""
    line = re.sub(r"\s+", " ", error.replace("`", "'")).strip()
    line = re.sub(r" ?\(?/[^ )]*\)?", "", line.removeprefix("hpctrain.errors."))
    return f"{line[:100].rstrip()}..." if len(line) > 100 else line or "none"


def _table(header: list[str], rows: list[list[str]]) -> str:
    """Return a table; nothing, where there is nothing to list."""
    if not rows:
        return ""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in [header, *rows]:
        lines += [f"   {'*' if index == 0 else ' '} - {cell}" for index, cell in enumerate(row)]
    return "\n".join(lines) + "\n"
