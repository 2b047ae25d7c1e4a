from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain.checkpoint import Checkpoint
from hpctrain.errors import ConfigError
from hpctrain.execute.attempt_start import choose_checkpoint


def test_a_run_resumes_from_its_own_checkpoint_before_that_of_another_run(tmp_path: Path):
    latest = Checkpoint(tmp_path)
    assert choose_checkpoint(latest, tmp_path / "gone") is latest


def test_a_run_without_a_checkpoint_begins_with_that_of_another_run(tmp_path: Path):
    assert choose_checkpoint(None, None) is None
    assert choose_checkpoint(None, tmp_path) == Checkpoint(tmp_path)


def test_a_checkpoint_of_another_run_that_is_deleted_is_an_error(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"begins with .*gone, which is deleted.*Give another"):
        choose_checkpoint(None, tmp_path / "gone")
