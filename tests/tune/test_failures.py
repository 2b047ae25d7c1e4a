"""What is logged of trials that fail: once, that all of them do."""

from __future__ import annotations

from pathlib import Path

from tests.tune.played import FakeRunner, Script, make_sweep, states

SAID = "The first 3 trials have failed with this error"


def run(folder: Path, scripts: dict[str, Script], *, num_samples: int = 6) -> list[str]:
    """Run a sweep, and return its lines on failures."""
    shown: list[str] = []
    # The third one is let in when one of the first two has failed.
    sweep = make_sweep(FakeRunner(scripts), folder, num_samples=num_samples)
    sweep._show = shown.append
    sweep.run()
    assert "ERROR" in states(sweep)
    return [line for line in shown if "failed" in line]


def fails(*errors: str, values: tuple[float, ...] = ()) -> dict[str, Script]:
    return {
        f"trial_{number:05d}": Script(values=values, fails=error)
        for number, error in enumerate(errors)
    }


def on_node(number: int) -> str:
    return f"rank 0 of 1 on node{number} failed in phase training: KeyError: 'learning_rate'\nmore"


def test_trials_that_all_fail_with_one_error_are_a_reason_to_stop_the_sweep(tmp_path: Path) -> None:
    lines = run(tmp_path, fails(*map(on_node, range(6))))
    assert len(lines) == 6
    assert [SAID in line for line in lines] == [False, False, True, False, False, False]
    first, said = lines[2].split("\n")
    assert first.endswith("failed in phase training: KeyError: 'learning_rate'")
    assert "hpctrain tune stop" in said
    assert "FailureConfig(fail_fast=True)" in said


def test_trials_that_fail_in_several_ways_or_after_a_report_are_not(tmp_path: Path) -> None:
    for name, scripts in {
        "other error": fails(on_node(0), "out of memory", *map(on_node, range(4))),
        "reported": fails(*map(on_node, range(6)), values=(1.0,)),
        "one is well": {**fails(*map(on_node, range(6))), "trial_00001": Script()},
    }.items():
        (tmp_path / name).mkdir()
        lines = run(tmp_path / name, scripts)
        assert lines
        assert not any(SAID in line for line in lines), name
