"""What becomes of a process that was a rank, whatever became of the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpctrain import BackendConfig, environ
from hpctrain.backend import Backend, BackendContext
from hpctrain.control import wire
from tests import runs

calls: list[str] = []


class Exporting(Backend):
    def on_start(self, context: BackendContext, config: ExportingConfig) -> None:
        context.export(HPC_NEW="1", HPC_CHANGED="2", HPC_GONE=None)
        context.export(HPC_NEW="2")
        if config.fails_at_start:
            raise RuntimeError("no start")

    def on_shutdown(self, context: BackendContext, config: ExportingConfig) -> None:
        calls.append("on_shutdown")

    def release(self) -> None:
        calls.append(f"release with HPC_NEW={environ.variable('HPC_NEW')}")


@dataclass(frozen=True, kw_only=True)
class ExportingConfig(BackendConfig):
    fails_at_start: bool = False

    @property
    def backend_cls(self) -> type[Backend]:
        return Exporting


@pytest.fixture
def fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.delenv("HPC_NEW", raising=False)
    monkeypatch.setenv("HPC_CHANGED", "1")
    monkeypatch.setenv("HPC_GONE", "1")
    calls.clear()

    def fit(train: Callable[[], None], **settings: bool) -> None:
        config = ExportingConfig(**settings)
        runs.fit(train, tmp_path, num_workers=0, name=None, backend_config=config)

    return fit


def exported() -> list[str | None]:
    return [environ.variable(name) for name in ("HPC_NEW", "HPC_CHANGED", "HPC_GONE")]


def look() -> None:
    calls.append(f"training with {exported()}")


def fail() -> None:
    raise RuntimeError("no training")


def test_a_backend_is_released_last_and_its_variables_are_given_back(
    fit: Callable[..., None],
) -> None:
    fit(look)
    assert calls == ["training with ['2', '2', None]", "on_shutdown", "release with HPC_NEW=2"]
    assert exported() == [None, "1", "1"]


@pytest.mark.parametrize("fails_at_start", [False, True])
def test_so_it_is_where_the_rank_fails(fit: Callable[..., None], fails_at_start: bool) -> None:
    with pytest.raises(Exception, match="no start" if fails_at_start else "no training"):
        fit(fail, fails_at_start=fails_at_start)
    assert calls == ["release with HPC_NEW=2"]
    assert exported() == [None, "1", "1"]


def test_a_return_value_too_large_to_be_sent_is_dropped_with_a_line_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wire, "MAX_CONTENT_BYTES", 10_000)
    fits = runs.fit(lambda: bytes(9000), tmp_path, num_workers=0, name="fits")
    large = runs.fit(lambda: bytes(10_000), tmp_path, num_workers=0, name="large")
    assert (fits.return_value, large.return_value) == (bytes(9000), None)
    (line,) = (text for text in capfd.readouterr().err.splitlines() if "is dropped" in text)
    assert "the return value of rank 0 has 10,0" in line
    assert "Write it to a file and send its path, or report a checkpoint." in line
