"""Names of replays."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.errors import ConfigError
from hpctrain.launch.replay_name import free_name, taken_name


def test_the_number_of_a_replay_is_the_first_that_is_free(tmp_path: Path) -> None:
    assert free_name(tmp_path, "run") == "run-replay-1"
    (tmp_path / "run-replay-1").mkdir()
    # A link that leads nowhere has the name, too.
    (tmp_path / "run-replay-2").symlink_to(tmp_path / "nowhere")
    assert free_name(tmp_path, "run") == free_name(tmp_path, "run-replay-1") == "run-replay-3"


@pytest.mark.parametrize("base", ["r" * 128, "ü", "-", "a b", "..", "x.20260131-235959"])
def test_every_directory_gives_a_name_that_a_run_may_have(tmp_path: Path, base: str) -> None:
    from hpctrain.config import RunConfig

    RunConfig(name=free_name(tmp_path, base))


def test_a_name_is_taken_until_the_run_has_begun_or_was_not_begun(tmp_path: Path) -> None:
    with taken_name(tmp_path, "run", None) as first, taken_name(tmp_path, "run", None) as second:
        assert [first, second] == ["run-replay-1", "run-replay-2"]
        (tmp_path / second / "plan.json").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["run-replay-2"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match="is not a directory"),
        taken_name(tmp_path / "file", "run", None),
    ):
        pass
