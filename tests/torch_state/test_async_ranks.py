"""Reports behind training on real ranks: the same files as those of reports that wait."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain import FailureConfig, Result
from hpctrain.bulk.index import INDEX_NAME
from hpctrain.rundir.store import CheckpointStore
from hpctrain.torch import TorchConfig, TorchTrainer
from tests.runs import fit

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]

STEPS = 8


def _training() -> Callable[[dict[str, Any]], list[str]]:
    """Return the training function; what it needs is inside, so that it travels by value."""

    def train(config: dict[str, Any]) -> list[str]:
        import resource

        import torch
        from torch import nn
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        import hpctrain
        import hpctrain.torch
        from hpctrain import CheckpointUploadMode
        from hpctrain.errors import CheckpointError

        rank = hpctrain.get_context().get_world_rank()
        mode = CheckpointUploadMode[config["mode"]]
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 20_000), nn.GELU(), nn.Linear(20_000, 64))
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
        torch.manual_seed(1)
        teacher: Any = nn.Sequential(nn.Linear(64, 30_000), nn.BatchNorm1d(30_000))
        teacher = hpctrain.torch.prepare_model(teacher.append(nn.Linear(30_000, 64)))
        optimizer = torch.optim.AdamW(model.parameters())
        other = torch.optim.SGD(teacher.parameters(), lr=1e-3, momentum=0.9)
        average = {"w": torch.zeros(64, 30_000)}
        whole: dict[str, Any] = {
            "model": nn.ModuleDict({"student": model, "teacher": teacher}),
            "optimizer": [optimizer, other],
            "schedule": torch.optim.lr_scheduler.StepLR(optimizer, 2),
            "average": average,
            "done": {"steps": 0},
        }
        checkpoint = hpctrain.get_checkpoint()
        if checkpoint is not None:
            hpctrain.torch.load_state(checkpoint, **whole)
        told = []
        for step in range(whole["done"]["steps"] + 1, config["steps"] + 1):
            torch.manual_seed(100 * step + rank)
            inputs = torch.randn(4, 64)
            (model(inputs) - teacher(inputs)).square().mean().backward()
            optimizer.step()
            other.step()
            optimizer.zero_grad()
            other.zero_grad()
            whole["schedule"].step()
            average["w"].lerp_(teacher.module[2].weight.detach(), 0.1)
            whole["done"]["steps"] = step
            if rank == 1 and config["full"]:
                limit = 1_000_000 if step == 3 else resource.RLIM_INFINITY
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            try:
                hpctrain.torch.report_state({"step": step}, mode=mode, **whole)
                if config["full"] and step in (2, 3):
                    # The limit holds while the third file is written, and no other.
                    hpctrain.get_all_reported_checkpoints()
            except CheckpointError as error:
                told.append(str(error))
            if rank == 1 and step == config["raise_at"] and checkpoint is None:
                raise RuntimeError("at once after a report")
        return told

    return train


def _run(directory: Path, mode: str, *, raise_at: int = 0, full: bool = False) -> Result:
    return fit(
        _training(),
        directory,
        trainer=TorchTrainer,
        train_loop_config={"mode": mode, "steps": STEPS, "raise_at": raise_at, "full": full},
        torch_config=TorchConfig(backend="gloo"),
        failure_config=FailureConfig(max_failures=1 if raise_at else 0),
    )


def _contents(result: Result) -> dict[str, dict[str, str]]:
    """Return the digests of each checkpoint's files, once they are verified."""
    store = CheckpointStore(result.path / "checkpoints")
    found = {}
    for manifest in store.manifests():
        store.verify(manifest)
        found[manifest.name] = {file.path: file.digest for file in manifest.files}
    return found


@pytest.fixture(scope="module")
def waited(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What a run has saved that waits for each checkpoint."""
    return _contents(_run(tmp_path_factory.mktemp("sync"), "SYNC"))


def test_a_run_that_fails_and_goes_on_saves_what_one_that_waits_saves(
    tmp_path: Path, waited: dict[str, dict[str, str]]
) -> None:
    result = _run(tmp_path, "ASYNC", raise_at=5)
    assert len(result.attempts) == 2
    assert list(waited) == [f"{number:06d}" for number in range(1, STEPS + 1)]
    assert all(INDEX_NAME in files and len(files) == 3 for files in waited.values())
    assert _contents(result) == waited


def test_ranks_are_told_of_a_full_disk_at_the_next_report_and_go_on(
    tmp_path: Path, waited: dict[str, dict[str, str]]
) -> None:
    result = _run(tmp_path, "ASYNC", full=True)
    assert len(result.attempts) == 1
    (told,) = result.return_value
    assert "the checkpoint of report 3 was not committed" in told
    assert "File too large" in told
    assert _contents(result) == {name: files for name, files in waited.items() if name != "000003"}
