"""What the ranks of a real process group waited for, which they measure themselves, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpctrain.run_report.facts import read_facts
from hpctrain.run_report.training_parts import Activity
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.torch import TorchTrainer
from tests.runs import fit

pytestmark = pytest.mark.mpi


def train(config: dict[str, Any]) -> None:
    import json
    import threading
    import time
    from pathlib import Path

    import torch
    from torch.utils.data import DataLoader, TensorDataset

    import hpctrain
    import hpctrain.torch

    rank, never = hpctrain.get_context().get_world_rank(), threading.Event()

    class Slow(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            never.wait(0.01)
            return super().__getitem__(index)

    model = hpctrain.torch.prepare_model(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = Slow(torch.rand(320, 1), torch.rand(320, 1))
    loader: Any = DataLoader(dataset, batch_size=1)
    if config["prepares"]:
        loader = hpctrain.torch.prepare_data_loader(loader)
    batches = iter(loader)
    measured = {"data": 0.0, "collective": 0.0, "steps": 0.0}
    began = time.perf_counter()
    for step in range(120):
        at = time.perf_counter()
        x, y = next(batches)
        waited = time.perf_counter()
        if step:
            measured["data"] += waited - at
        # Rank 1 takes longer, and rank 0 waits for it in the backward pass.
        never.wait(0.03 if rank == 1 else 0.0)
        loss = ((model(x) - y) ** 2).mean()
        at = time.perf_counter()
        loss.backward()
        measured["collective"] += time.perf_counter() - at
        optimizer.step()
        optimizer.zero_grad()
        hpctrain.report({"loss": loss.item(), "waited": 7, "data": 1.0})
    measured["steps"] = time.perf_counter() - began
    Path(config["place"], f"{rank}.json").write_text(json.dumps(measured))


@pytest.mark.parametrize("prepares", [True, False], ids=["prepared loader", "plain loader"])
def test_a_late_rank_and_a_slow_loader_are_told_apart(tmp_path: Path, prepares: bool) -> None:
    result = fit(
        train,
        tmp_path,
        trainer=TorchTrainer,
        train_loop_config={"place": str(tmp_path), "prepares": prepares},
    )
    paths = RunPaths(Path(result.path))
    measured = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    (event,) = [e for e in read_events(paths) if e["event"] == "attempt-ended"]
    waits = event["waits"]
    # A sample of the steps, all of which are alike.
    shares = [each["collective"] / each["steps"] for each in measured]
    assert waits["steps"]["most"] == [pytest.approx(shares[0], abs=0.15), 0]
    assert waits["steps"]["least"] == [pytest.approx(shares[1], abs=0.15), 1]
    assert shares[0] - shares[1] > 0.4
    parts = {each.part: each for each in read_facts(paths).efficiency.parts}
    data, collective = parts[Activity.DATA], parts[Activity.COLLECTIVE]
    assert collective.most is not None
    assert collective.most[1] == 0
    assert collective.unseen_s == 0
    if prepares:
        near = pytest.approx(sum(each["data"] for each in measured) / 2, rel=0.15)
        assert waits["data"]["mean"] == near
        assert data.seconds is not None
    else:
        assert waits["data"] is None
        assert data.seconds is None
    # What users report under such names stays theirs.
    assert (result.metrics["waited"], result.metrics["data"]) == (7, 1.0)
    columns = set(result.metrics_dataframe.columns)
    assert columns == {"report", "attempt", "time", "checkpoint", "loss", "waited", "data"}
