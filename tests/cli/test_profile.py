"""``hpctrain profile``: what is parsed, what is printed, and the code it ends with.

How ranks are asked, and how traces are put together, is in tests/launch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import Result as Ended
from typer.testing import CliRunner

from hpctrain.cli.main import app
from hpctrain.launch.profile import Profile
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, write_status

GOLDEN = Path(__file__).parent / "golden"
_SOME = {3: "it has not answered in 300 s", 7: "torch is not imported in this rank, \x1b[2J"}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """A run that has ended, in the storage of the working directory."""
    monkeypatch.chdir(tmp_path)
    paths = RunPaths(tmp_path / "hpctrain_runs" / "llama")
    paths.root.mkdir(parents=True)
    paths.plan.write_text("{}")
    write_status(paths, RunStatus(name="llama", state=RunState.FINISHED, launcher="local"))
    return paths


@pytest.fixture
def asked(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the command asks the run for, which answers at once."""
    calls: list[dict[str, Any]] = []

    def answer(paths: RunPaths, **options: Any) -> Profile:
        assert paths.root == run.root
        options.pop("on_asked")()
        calls.append(options)
        failed = _SOME if len(options["ranks"]) > 3 else {}
        return Profile(options["output"], tuple(set(options["ranks"]) - failed.keys()), failed)

    monkeypatch.setattr("hpctrain.launch.profile.profile_run", answer)
    return calls


def profile(*words: str, columns: str = "") -> Ended:
    return CliRunner().invoke(app, ["profile", "llama", *words], env={"COLUMNS": columns})


@pytest.mark.parametrize(
    ("ranks", "numbers"),
    [
        ("0", [0]),
        ("0,5", [0, 5]),
        ("0-3,8", [0, 1, 2, 3, 8]),
        (" 4 , 6-6", [4, 6]),
        ("0-63", list(range(64))),
    ],
)
def test_ranks_are_numbers_and_ranges(
    ranks: str, numbers: list[int], asked: list[dict[str, Any]]
) -> None:
    profile("--ranks", ranks)
    assert asked[0]["ranks"] == numbers


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ("", "numbers and ranges of ranks, such as 0,5 or 0-3."),
        ("-1", "numbers and ranges of ranks, such as 0,5 or 0-3."),
        ("all", "numbers and ranges of ranks, such as 0,5 or 0-3."),
        ("1,,2", "numbers and ranges of ranks, such as 0,5 or 0-3."),
        ("0-", "numbers and ranges of ranks, such as 0,5 or 0-3."),
        ("3-1", "3-1 ends before it begins."),
        ("0-64", "at most 64; a trace has megabytes."),
        ("0-4000000000", "at most 64; a trace has megabytes."),
        ("0-40,0-40", "1 to 64 ranks; a trace has megabytes."),
    ],
)
def test_what_are_no_ranks_is_a_usage_error(
    ranks: str, said: str, asked: list[dict[str, Any]]
) -> None:
    ended = profile(f"--ranks={ranks}")
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"hpctrain: --ranks {ranks!r}: ")
    assert said in ended.stderr
    assert asked == []


@pytest.mark.parametrize("words", [["--steps", "0"], ["--seconds", "0"], ["--timeout", "0"]])
def test_what_would_profile_nothing_is_a_usage_error(
    words: list[str], asked: list[dict[str, Any]]
) -> None:
    ended = profile(*words)
    assert ended.exit_code == 2
    assert f"Invalid value for '{words[0]}'" in ended.stderr
    assert asked == []


def test_options_reach_the_run_and_what_it_waits_for_is_on_stderr(
    asked: list[dict[str, Any]],
) -> None:
    ended = profile("--steps", "7", "--seconds", "2", "--timeout", "9", "-o", "x.json.gz")
    assert ended.exit_code == 0
    assert ended.stderr == "hpctrain: asked llama for traces; waiting for them\n"
    assert ended.stdout == "x.json.gz: rank 0. Open it in ui.perfetto.dev\n"
    assert asked == [
        {"ranks": [0], "steps": 7, "seconds": 2.0, "output": Path("x.json.gz"), "timeout_s": 9.0}
    ]


def test_a_file_that_is_there_is_not_the_one_that_is_written(
    asked: list[dict[str, Any]],
) -> None:
    for name in ("llama-profile.json.gz", "llama-profile-2.json.gz"):
        assert profile().stdout.startswith(f"{name}: rank 0. ")
        Path(name).touch()
    assert profile().stdout.startswith("llama-profile-3.json.gz: ")


def test_ranks_that_have_not_answered_are_named_and_give_exit_code_3(
    asked: list[dict[str, Any]],
) -> None:
    ended = profile("--ranks", "0-7")
    assert ended.exit_code == 3
    assert ended.stdout.startswith("llama-profile.json.gz: rank 0, 1, 2, 4, 5, 6. ")
    assert ended.stderr.splitlines()[-1] == (
        "hpctrain: without rank 3: it has not answered in 300 s; rank 7: torch is not imported in "
        r"this rank, \x1b[2J"
    )


def test_a_run_that_does_not_train_is_not_profiled(run: RunPaths) -> None:
    ended = profile()
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr == (
        "hpctrain: llama is finished: only a run whose ranks train can be profiled.\n"
    )


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_text_is_as_in_the_golden_file(
    columns: str, asked: list[dict[str, Any]], request: pytest.FixtureRequest
) -> None:
    long = "llama-70b-pretrain-2026-11-24-seed-17-ranks-of-node-12.json.gz"
    cases = {
        "one rank": [],
        "some have not answered": ["--ranks", "0-7"],
        "64 ranks, a long name": ["--ranks", "100-163", "-o", long],
    }
    text = "".join(
        f"== {name}\n{profile(*words, columns=columns).stdout}" for name, words in cases.items()
    )
    assert max(map(len, text.splitlines())) <= int(columns)
    golden = GOLDEN / f"profile-{columns}.txt"
    if request.config.getoption("rewrite_golden"):
        golden.write_text(text)
    assert text == golden.read_text()
