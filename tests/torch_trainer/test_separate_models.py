"""Ranks that each train a model of their own are noticed, and nobody else is suspected."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from hpctrain import RunConfig, ScalingConfig
from hpctrain.torch import TorchTrainer
from tests.processes import REFUSED_BY_FIPS

pytestmark = pytest.mark.mpi
WARNING = "UserWarning: every rank trains a model of its own: parameters of ranks 0 and 1 differ"


def train(config: dict[str, Any]) -> None:
    import sys
    import warnings

    import torch

    import hpctrain
    import hpctrain.collective
    from hpctrain.torch import prepare_model

    rank = hpctrain.get_context().get_world_rank()
    case = config["case"]
    if case == "filtered":
        warnings.filterwarnings("ignore", message="every rank trains")
    torch.manual_seed(0 if case == "one seed" else rank)
    model = torch.nn.Linear(4, 2 + (rank if case == "stages" else 0))
    if case == "prepared":
        model = prepare_model(model)
    if case == "sends":
        value = torch.zeros(1)
        torch.distributed.send(value, 1) if rank == 0 else torch.distributed.recv(value, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(config["reports"]):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        if step == 0:
            # Rank 0 compares with a step that the other has made, and does not wait for it.
            hpctrain.collective.barrier()
        hpctrain.report({"step": step})
        print("after report", step + 1, file=sys.stderr)


def output(tmp_path: Path, case: str, reports: int = 4) -> str:
    result = TorchTrainer(
        train,
        train_loop_config={"case": case, "reports": reports},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tmp_path, name="run", verbose=0, launcher="local"),
    ).fit()
    assert result.state == "finished"
    logs = sorted((tmp_path / "run/logs/1").glob("rank-*.out"))
    return "".join(log.read_text() for log in logs)


@pytest.mark.parametrize("reports", [1, 8])
def test_a_model_that_was_not_prepared_is_warned_of_once(tmp_path: Path, reports: int) -> None:
    printed = output(tmp_path, "forgotten", reports)
    assert printed.count(WARNING) == 1
    assert "hpctrain.torch.prepare_model(model)" in printed
    # Soon: not only at the end of a long training.
    if reports > 4:
        assert printed.index(WARNING) < printed.index("after report 8")


@pytest.mark.parametrize(
    "case",
    [
        *("prepared", "stages", "sends"),
        *(pytest.param(case, marks=pytest.mark.long) for case in ("filtered", "one seed")),
    ],
)
def test_nothing_is_said_of_models_that_are_together_or_apart_on_purpose(
    tmp_path: Path, case: str
) -> None:
    assert "every rank trains" not in output(tmp_path, case)


def test_a_python_in_fips_mode_compares_them_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(REFUSED_BY_FIPS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert output(tmp_path, "forgotten").count(WARNING) == 1
