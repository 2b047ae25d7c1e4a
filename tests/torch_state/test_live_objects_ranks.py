"""What FSDP2 has sharded stays so, also inside of other objects; buffers; who does not come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain import SyncConfig
from hpctrain.errors import TrainingFailedError
from hpctrain.torch import TorchConfig, TorchTrainer, load_state
from tests.runs import fit

pytestmark = pytest.mark.mpi


def _fit(directory: Path, train: Callable[[], Any], **sync: Any) -> Any:
    result = fit(
        train,
        directory / "runs",
        trainer=TorchTrainer,
        torch_config=TorchConfig(backend="gloo"),
        sync_config=SyncConfig(**sync),
    )
    return result.return_value


def _sharded(directory: str) -> Callable[[], dict[str, Any]]:
    def train() -> dict[str, Any]:
        import torch
        from torch import nn
        from torch.distributed.fsdp import fully_shard

        import hpctrain.torch

        class App:
            def __init__(self, **parts: Any) -> None:
                self.parts = parts

            def state_dict(self) -> Any:
                return {name: part.state_dict() for name, part in self.parts.items()}

            def load_state_dict(self, state: Any) -> None:
                for name, part in self.parts.items():
                    part.load_state_dict(state[name])

        class Own(torch.optim.AdamW):
            def state_dict(self) -> Any:
                return {**super().state_dict(), "more": 1}

        def make(seed: int) -> tuple[Any, Any]:
            torch.manual_seed(seed)
            model: Any = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8, bias=False))
            model[1].weight = model[0].weight
            fully_shard(model)
            return model, Own(model.parameters(), foreach=False)

        def step(model: Any, optimizer: Any) -> None:
            model(torch.arange(8)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        def whole(model: Any) -> Any:
            return model[0].weight.full_tensor().detach()

        model, optimizer = make(1)
        step(model, optimizer)
        app = App(model=model, optimizer=optimizer)
        hpctrain.torch.save_state(f"{directory}/app", app=app)
        hpctrain.torch.save_state(f"{directory}/named", model=model, own=optimizer)
        expected = whole(model)
        found: dict[str, Any] = {}

        live, stepped = make(2)
        step(live, stepped)
        hpctrain.torch.load_state(f"{directory}/app", app=App(model=live, optimizer=stepped))
        found["tied"] = live[1].weight is live[0].weight
        found["same"] = torch.equal(whole(live), expected)

        live, fresh = make(3)
        hpctrain.torch.load_state(f"{directory}/named", model=live, own=fresh)
        (state,) = fresh.state.values()
        found["kind"] = type(state["exp_avg"]).__name__
        for pair in ((live, fresh), (model, optimizer)):
            step(*pair)
        found["trains alike"] = torch.equal(whole(live), whole(model))

        live, fresh = make(4)
        before = whole(live)
        try:
            hpctrain.torch.load_state(f"{directory}/app", app=App(model=live, optimizer=fresh))
        except hpctrain.errors.CheckpointError as error:
            found["refused"] = str(error)
        found["unchanged"] = torch.equal(whole(live), before)

        class Bag:
            def __init__(self, **tree: Any) -> None:
                self.tree = tree

            def state_dict(self) -> Any:
                return self.tree

            def load_state_dict(self, state: Any) -> None:
                self.tree = state

        saved = Bag(sharded=live.state_dict(), whole={"w": expected})
        hpctrain.torch.save_state(f"{directory}/bag", x=saved)
        loaded = Bag(sharded=live.state_dict(), whole={})
        hpctrain.torch.load_state(f"{directory}/bag", x=loaded)
        found["whole"] = type(loaded.tree["whole"]["w"]).__name__
        return found

    return train


def test_what_is_sharded_stays_sharded(tmp_path: Path) -> None:
    found = _fit(tmp_path, _sharded(str(tmp_path)))
    refused = found.pop("refused")
    assert found == {
        "tied": True,
        "same": True,
        "kind": "DTensor",
        "trains alike": True,
        "unchanged": True,
        "whole": "Tensor",
    }
    assert "app.optimizer.state.0.exp_avg of shape [8, 4] is not there yet" in refused
    assert "Nothing was changed." in refused

    # A process for itself has all of it.
    alone: dict[str, Any] = {}
    load_state(tmp_path / "app", app=alone)
    assert alone["model"]["0.weight"].shape == (8, 4)
    assert alone["optimizer"]["state"][0]["exp_avg"].shape == (8, 4)


def _statistics() -> Callable[[], list[list[float]]]:
    """Train with BatchNorm on unlike samples; return rank 0's means, and those that were saved."""

    def train() -> list[list[float]]:
        import torch
        from torch import nn

        import hpctrain
        import hpctrain.torch

        rank = hpctrain.get_context().get_world_rank()
        torch.manual_seed(0)
        model: Any = hpctrain.torch.prepare_model(
            nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 64), nn.BatchNorm1d(64))
        )
        torch.manual_seed(rank)
        for _ in range(3):
            model(torch.randn(8, 3)).sum().backward()
        hpctrain.torch.report_state({"of": "both"}, model=model)
        live = model.module[2].running_mean.clone()
        checkpoint = hpctrain.get_checkpoint()
        assert checkpoint is not None
        hpctrain.torch.load_state(checkpoint, model=model)
        return [live.tolist(), model.module[2].running_mean.tolist()]

    return train


def test_a_run_resumes_with_the_statistics_of_rank_0(tmp_path: Path) -> None:
    live, loaded = _fit(tmp_path, _statistics())
    assert live == loaded


def _alone(*, others_return: bool) -> Callable[[], None]:
    """Report a state on one rank alone, as one saves with torch.save."""

    def train() -> None:
        import threading

        import torch

        import hpctrain
        import hpctrain.torch

        if hpctrain.get_context().get_world_rank() == 0:
            hpctrain.torch.report_state({"of": "one"}, x={"w": torch.zeros(3)})
        elif not others_return:
            threading.Event().wait(600)

    return train


def test_a_state_that_one_rank_reports_is_an_error_after_the_timeout(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailedError, match=r"waited 3 s .* never inside `if rank == 0`"):
        _fit(tmp_path, _alone(others_return=False), sync_timeout=3)


def test_a_rank_that_returns_while_another_waits_for_it_in_a_report_is_noticed_at_once(
    tmp_path: Path,
) -> None:
    waits = r"rank 1 returned, but rank 0 waits for all ranks in report_state\(\) of report 1\. Ev"
    with pytest.raises(TrainingFailedError, match=waits):
        _fit(tmp_path, _alone(others_return=True), sync_timeout=600)
