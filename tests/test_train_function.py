"""Which functions are training functions: those that train when they are called."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig
from hpctrain.errors import ConfigError
from hpctrain.train_function import takes_config


async def waits(config: dict[str, Any]) -> None:
    hpctrain.report({"loss": 1.0})


def yields(config: dict[str, Any]) -> Iterator[float]:
    hpctrain.report({"loss": 1.0})
    yield 1.0


async def waits_and_yields(config: dict[str, Any]) -> AsyncIterator[float]:
    yield 1.0


class Waits:
    async def __call__(self, config: dict[str, Any]) -> None: ...


@functools.wraps(waits)
def runs(config: dict[str, Any]) -> None:
    asyncio.run(waits(config))


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (waits, "waits is an async function"),
        (functools.partial(waits), "is an async function"),
        (Waits(), "is an async function"),
        (yields, "yields is a generator"),
        (waits_and_yields, "waits_and_yields is an async generator"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_function_of_which_a_call_runs_nothing_is_refused(function: Any, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"{kind}, of which a call runs nothing"):
        takes_config(function)


def test_a_decorator_may_run_what_it_wraps() -> None:
    assert takes_config(runs)


@pytest.mark.parametrize("function", [waits, yields, waits_and_yields])
def test_a_function_that_returns_what_has_not_run_fails(function: Any, tmp_path: Path) -> None:
    trainer = DataParallelTrainer(
        lambda config: function(config),
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(name="run", storage_path=str(tmp_path), verbose=0),
    )
    with pytest.raises(ConfigError, match="of which nothing has run"):
        trainer.fit()


def test_what_is_returned_after_reports_is_the_users_own(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> Iterator[float]:
        hpctrain.report({"loss": 0.5})
        return yields(config)

    result = DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(name="run", storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert result.metrics["loss"] == 0.5
