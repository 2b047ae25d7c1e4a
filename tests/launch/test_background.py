"""Runs in the background take turns, by a file in the directory for temporary files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from hpctrain.errors import ConfigError
from hpctrain.launch.background import _turn_file


def test_a_file_in_the_place_of_the_directory_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"hpctrain-{os.getuid()}").write_text("")
    with pytest.raises(ConfigError, match=r"hpctrain-\d+, in which .* Set TMPDIR"):
        _turn_file()
