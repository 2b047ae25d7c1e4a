"""What ``--json`` prints is what its schema says, and the schema is what the page says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from hpctrain.cli.json_format import FORMAT
from hpctrain.cli.json_output import all_fields, print_json, schema

PAGE = Path(__file__).parents[2] / "docs" / "json-output.rst"
_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "object": dict,
    "array": list,
    "null": type(None),
}


def check(value: Any, rule: dict[str, Any], where: str = "$") -> None:
    """Raise if a value is not what a schema says, as far as ours go."""
    kinds = rule["type"] if isinstance(rule["type"], list) else [rule["type"]]
    assert "boolean" in kinds or not isinstance(value, bool), where
    assert any(isinstance(value, _TYPES[kind]) for kind in kinds), f"{where}: {value!r}: {kinds}"
    if isinstance(value, list):
        for number, item in enumerate(value):
            check(item, rule["items"], f"{where}[{number}]")
    elif isinstance(value, dict) and "properties" in rule:
        assert set(rule["required"]) <= set(value), where
        assert set(value) <= set(rule["properties"]), where
        for name, each in value.items():
            check(each, rule["properties"][name], f"{where}.{name}")


@pytest.mark.parametrize(
    ("verb", "args"),
    [
        ("status", ["fine"]),
        ("status", ["bad"]),
        ("list", []),
        ("wait", ["bad"]),
        ("checkpoints", ["fine"]),
        ("history", ["fine"]),
        ("history", ["bad"]),
    ],
)
def test_the_output_of_a_real_run_is_what_the_schema_says(
    done: Any, verb: str, args: list[str]
) -> None:
    said = json.loads(done(verb, *args, "--json").stdout)
    check(said, schema(verb))
    first = said[0] if isinstance(said, list) else said
    assert first["format"] == FORMAT
    # The check itself finds what is wrong.
    with pytest.raises(AssertionError):
        check([{**first, "new": 1}] if verb == "list" else {**first, "new": 1}, schema(verb))
    missing = {name: value for name, value in first.items() if name != "path"}
    with pytest.raises(AssertionError):
        check([missing] if verb == "list" else missing, schema(verb))


def test_a_checkpoint_and_a_run_without_a_status_are_what_the_schema_says(
    tmp_path: Path, workplace: Any
) -> None:
    from hpctrain.rundir.paths import RunPaths
    from hpctrain.rundir.staging import StagedPart, seal, staging_directory
    from hpctrain.rundir.store import CheckpointStore

    paths = RunPaths(tmp_path / "hpctrain_runs" / "new")
    directory = staging_directory(paths.checkpoints, attempt=1, report=1, rank=0)
    directory.mkdir(parents=True)
    (directory / "model.bin").write_bytes(b"1")
    CheckpointStore(paths.checkpoints).commit(
        attempt=1,
        report=1,
        world_size=1,
        metrics={"loss": 1},
        parts={0: StagedPart(files=tuple(seal(directory)))},
    )
    (paths.checkpoints / "000002").mkdir()
    paths.plan.write_text("{}")
    for verb in ("status", "checkpoints", "history"):
        said = json.loads(workplace(verb, "new", "--json").stdout)
        check(said, schema(verb))
    listed = json.loads(workplace("checkpoints", "new", "--json").stdout)["checkpoints"]
    assert {each["state"] for each in listed} == {"complete", "damaged"}


@pytest.mark.slurm
def test_the_state_of_a_cluster_is_what_the_schema_says(virtual_slurm: Any, workplace: Any) -> None:
    ended = workplace("cluster", "status", "--state", str(virtual_slurm.state_dir), "--json")
    check(json.loads(ended.stdout), schema("cluster status"))


@pytest.mark.parametrize("kind", all_fields())
def test_every_field_is_on_the_page(kind: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"described here: {FORMAT}." in page
    for name, types, meaning in all_fields()[kind]:
        optional = "?" if name.endswith("?") else ""
        row = (
            f"   * - ``{name.removesuffix('?')}``{optional}\n"
            f"     - {types.replace('|', ' or ')}\n"
            f"     - {meaning}\n"
        )
        assert row in page, name


def test_every_verb_with_json_has_a_schema() -> None:
    import click
    from typer.main import get_command

    from hpctrain.cli.main import app

    def verbs(command: Any, name: str = "") -> set[str]:
        if isinstance(command, click.Group) or hasattr(command, "commands"):
            found: set[str] = set()
            for child, each in command.commands.items():
                found |= verbs(each, f"{name} {child}".strip())
            return found
        has_json = any("--json" in parameter.opts for parameter in command.params)
        return {name} if has_json else set()

    assert verbs(get_command(app)) == {
        *(
            "status",
            "why",
            "doctor",
            "diff",
            "pack",
            "replay",
            "report",
            "list",
            "wait",
            "checkpoints list",
            "checkpoints export",
            "history",
            "cluster status",
            "tune best",
            "tune export",
            "tune status",
        )
    }


def test_numbers_that_are_not_finite_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"metrics": {"loss": math.nan, "all": [1.5, -math.inf], "pair": (math.inf, 2)}})
    printed = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert printed["metrics"] == {"loss": None, "all": [1.5, None], "pair": [None, 2]}
