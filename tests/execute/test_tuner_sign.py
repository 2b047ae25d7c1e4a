from __future__ import annotations

import errno
from pathlib import Path

import pytest

from hpctrain.execute import tuner_sign
from hpctrain.execute.tuner_sign import shows_life
from hpctrain.tune.ledger import SweepPaths
from hpctrain.tune.tuner_life import shown_alive


def test_a_tuner_at_work_is_seen(tmp_path: Path) -> None:
    paths = SweepPaths(root=tmp_path)
    with shown_alive(paths):
        assert shows_life(paths.alive, patience_s=60.0)


def test_one_that_is_gone_left_a_sign_that_does_not_change(tmp_path: Path) -> None:
    paths = SweepPaths(root=tmp_path)
    assert not shows_life(paths.alive, patience_s=0.0)
    with shown_alive(paths):
        pass
    assert paths.alive.exists()
    assert not shows_life(paths.alive, patience_s=0.3)


@pytest.mark.parametrize(
    ("contents", "is_alive"),
    [
        ([b"1", b"1", b"2"], True),
        ([b"1", b"1", b"1"], False),
        # As on NFS, where a file that is replaced is unreadable for a moment.
        ([b"1", None, b"1"], False),
        ([None, b"1", b"1"], False),
        ([None, b"1", b"2"], True),
        ([None, None, None], False),
    ],
)
def test_a_sign_that_cannot_be_read_for_a_moment_is_no_change(
    monkeypatch: pytest.MonkeyPatch, contents: list[bytes | None], is_alive: bool
) -> None:
    looks = iter(contents)
    last = contents[-1]

    def read(path: Path) -> bytes:
        if (content := next(looks, last)) is None:
            raise OSError(errno.ESTALE, "stale")
        return content

    monkeypatch.setattr(tuner_sign, "read_content", read)
    monkeypatch.setattr(tuner_sign, "LOOK_INTERVAL_S", 0.001)
    assert shows_life(Path("alive"), patience_s=0.2) == is_alive
