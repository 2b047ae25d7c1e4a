"""Reports with a state: what their checkpoints hold, and what becomes of those that fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hpctrain import FailureConfig, Result, SyncConfig
from hpctrain.errors import ConfigError, TrainingFailedError, WorkerContextError
from hpctrain.rundir.store import CheckpointStore
from hpctrain.torch import TorchTrainer, report_state
from tests.runs import fit


def _run(
    directory: Path, train: Callable[[dict[str, Any]], Any], *, workers: int = 0, **config: Any
) -> Result:
    scratch = config.pop("scratch", None)
    failure_config = config.pop("failure_config", FailureConfig())
    return fit(
        train,
        directory,
        trainer=TorchTrainer,
        train_loop_config=config,
        num_workers=workers,
        name="states",
        sync_config=SyncConfig(scratch_dir=scratch),
        failure_config=failure_config,
    )


def _steps(config: dict[str, Any]) -> dict[str, Any]:
    """Report a state twice, and change it in place after each report."""
    import torch

    import hpctrain.torch
    from hpctrain import CheckpointUploadMode

    weights = {"w": torch.arange(5_000_000.0), "step": 0}
    loop = hpctrain.torch.loop_state()
    for step in (1, 2):
        weights["w"] += 1
        weights["step"] = step
        hpctrain.torch.report_state(
            {"step": step},
            loop=loop,
            weights=weights,
            checkpoint_dir_name=f"step-{step}",
            mode=CheckpointUploadMode[config["mode"]],
        )
        weights["w"].mul_(2)
    return {"w": weights["w"]}


@pytest.mark.parametrize("scratch", [False, True], ids=["direct", "scratch"])
@pytest.mark.parametrize("mode", ["SYNC", "ASYNC"])
def test_a_reported_state_is_as_it_was_at_the_call(
    tmp_path: Path, mode: str, scratch: bool
) -> None:
    (tmp_path / "node").mkdir()
    result = _run(tmp_path, _steps, mode=mode, scratch=str(tmp_path / "node") if scratch else None)
    store = CheckpointStore(result.path / "checkpoints")
    first, second = store.manifests()
    assert (first.name, second.name) == ("step-1", "step-2")
    expected = torch.arange(5_000_000.0) + 1
    for manifest in (first, second):
        store.verify(manifest)
        kinds = {file.path: file.kind for file in manifest.files}
        (name,) = (path for path in kinds if path.endswith(".safetensors"))
        assert kinds == {
            name: "header",
            "state.json": "content",
            "loop.pt": "content",
            "loop-rank-00000.pt": "content",
        }
        tensors = load_file(result.path / "checkpoints" / manifest.name / name)
        assert torch.equal(tensors["weights.w"], expected)
        expected = expected * 2 + 1
    assert list((tmp_path / "node").rglob("*.safetensors")) == []


def test_steps_that_a_graph_may_replay_are_saved_before_the_report_returns(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> list[bool]:
        import torch

        import hpctrain.torch
        from hpctrain import CheckpointUploadMode
        from hpctrain.torch.state import report
        from hpctrain.worker.context import active_worker

        snapshots = []
        for capturable in (True, False):
            model = torch.nn.Linear(3, 3)
            hpctrain.torch.report_state(
                {"capturable": capturable},
                model=model,
                optimizer=torch.optim.Adam(model.parameters(), capturable=capturable),
                mode=CheckpointUploadMode.ASYNC,
            )
            snapshots.append(active_worker("here").session in report._snapshots)
        return snapshots

    assert _run(tmp_path, train).return_value == [False, True]


def test_another_mode_is_refused(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        import hpctrain.torch

        hpctrain.torch.report_state({}, x={"a": 1}, mode="async")  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match=r"report_state\(mode='async'\): .*\.SYNC or .*\.ASYNC"):
        _run(tmp_path, train)


def test_metrics_that_are_none_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        import torch

        import hpctrain.torch

        hpctrain.torch.report_state({"loss": torch.ones(1)}, weights={"w": torch.ones(3)})

    with pytest.raises(ConfigError, match="Metrics are numbers"):
        _run(tmp_path, train)
    assert list((tmp_path / "states" / "checkpoints").rglob("*.safetensors")) == []


def test_outside_of_a_run_there_is_nothing_to_report_to() -> None:
    with pytest.raises(WorkerContextError, match=r"report_state\(\) was called outside"):
        report_state({}, weights={"w": torch.ones(3)})


def _small_disk() -> Callable[[dict[str, Any]], list[str]]:
    """Report a state in each of five reports; on rank 1 the second does not fit."""

    def train(config: dict[str, Any]) -> list[str]:
        import resource

        import torch

        import hpctrain.torch
        from hpctrain import CheckpointUploadMode
        from hpctrain.errors import CheckpointError

        rank = hpctrain.get_context().get_world_rank()
        told = []
        for step in range(1, 6):
            if rank == 1:
                limit = 1_000_000 if step == 2 else resource.RLIM_INFINITY
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            weight = torch.nn.Parameter(torch.full((1_000_000,), step), requires_grad=False)
            weights = torch.nn.ParameterDict({"w": weight})
            mode = CheckpointUploadMode[config["mode"]]
            try:
                hpctrain.torch.report_state({"step": step}, weights=weights, mode=mode)
            except CheckpointError as error:
                told.append(str(error))
            try:
                # Waits for what is under way.
                hpctrain.get_all_reported_checkpoints()
            except CheckpointError as error:
                told.append(str(error))
        return told

    return train


@pytest.mark.mpi
@pytest.mark.parametrize("mode", ["SYNC", "ASYNC"])
def test_ranks_whose_state_does_not_fit_are_told_and_go_on(tmp_path: Path, mode: str) -> None:
    result = _run(tmp_path, _small_disk(), workers=2, mode=mode)
    (told,) = result.return_value
    assert "the checkpoint of report 2 was not committed" in told
    assert "File too large" in told
    assert "earlier checkpoints are whole" in told
    assert len(result.attempts) == 1
    assert [m["step"] for m in result.metrics_history] == [1, 2, 3, 4, 5]
    directory = result.path / "checkpoints"
    store = CheckpointStore(directory)
    assert sorted(path.name for path in directory.iterdir()) == [
        f"{number:06d}" for number in (1, 3, 4, 5)
    ]
    for manifest in store.manifests():
        store.verify(manifest)


def _no_directory() -> Callable[[dict[str, Any]], list[list[str]]]:
    """Report a state in each of three reports; on rank 0 there is no room for a directory once."""

    def train(config: dict[str, Any]) -> list[list[str]]:
        import errno
        from pathlib import Path

        import torch

        import hpctrain.torch
        from hpctrain.errors import CheckpointError

        mkdir, told = Path.mkdir, []

        def full(path: Path, *arguments: Any, **options: Any) -> None:
            if ".tmp-" in str(path):
                raise OSError(errno.ENOSPC, "No space left on device")
            mkdir(path, *arguments, **options)

        for step in range(1, 4):
            is_full = hpctrain.get_context().get_world_rank() == 0 and step == 2
            Path.mkdir = full if is_full else mkdir
            try:
                hpctrain.torch.report_state({"step": step}, weights={"w": torch.full((9,), step)})
            except CheckpointError as error:
                told.append(str(error))
        from mpi4py import MPI

        gathered: list[list[str]] = MPI.COMM_WORLD.allgather(told)
        return gathered

    return train


@pytest.mark.mpi
def test_a_rank_that_has_no_room_for_a_directory_has_made_its_report(tmp_path: Path) -> None:
    result = _run(tmp_path, _no_directory(), workers=2)
    (first,), (second,) = result.return_value
    assert "rank 0 could not write its part of the checkpoint of report 2" in first
    assert "No space left on device" in first
    assert "could not be written" in second
    assert sorted(path.name for path in (result.path / "checkpoints").iterdir()) == [
        "000001",
        "000003",
    ]


def _one_more_report() -> Callable[[dict[str, Any]], None]:
    """Report a state on two ranks, one of which has made a report more."""

    def train(config: dict[str, Any]) -> None:
        import torch

        import hpctrain.torch

        if hpctrain.get_context().get_world_rank() == 1:
            hpctrain.report({"of": "one rank"})
        hpctrain.torch.report_state({"of": "both"}, weights={"w": torch.zeros(9)})

    return train


@pytest.mark.mpi
def test_ranks_at_different_reports_save_no_state_of_two_moments(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailedError, match=r"is in report_state\(\) of report \d"):
        _run(tmp_path, _one_more_report(), workers=2)
    assert list((tmp_path / "states" / "checkpoints").iterdir()) == []


def _damaging() -> Callable[[dict[str, Any]], list[float]]:
    """Report a state in each of four reports; flip a bit of the third, and die."""

    def train(config: dict[str, Any]) -> list[float]:
        import os
        import signal

        import torch

        import hpctrain.torch

        weights = {"w": torch.zeros(100_000), "step": 0}
        checkpoint = hpctrain.get_checkpoint()
        if checkpoint is not None:
            hpctrain.torch.load_state(checkpoint, weights=weights)
        world = hpctrain.get_context().world
        for step in range(int(weights["step"]) + 1, 5):
            weights["w"] += step
            weights["step"] = step
            hpctrain.torch.report_state({"step": step}, weights=weights)
            if (step, world.attempt, world.world_rank) == (3, 1, 0):
                path = hpctrain.get_checkpoint().path / "state-00001-of-00002.safetensors"
                with open(path, "r+b") as file:
                    file.seek(5000)
                    (byte,) = file.read(1)
                    file.seek(5000)
                    file.write(bytes([byte ^ 1]))
                os.kill(os.getpid(), signal.SIGKILL)
        return [weights["w"].min().item(), weights["w"].max().item()]

    return train


@pytest.mark.mpi
def test_a_state_that_loading_finds_damaged_is_set_aside_by_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Before ranks start, of a large state the headers are verified; to load it, each block.
    monkeypatch.setattr("hpctrain.rundir.store._SCANNED_BYTES", 0)
    result = _run(
        tmp_path,
        _damaging(),
        workers=2,
        failure_config=FailureConfig(max_failures=2),
    )
    events = map(json.loads, (result.path / "ledger.jsonl").read_text().splitlines())
    attempts = [event for event in events if event["event"].startswith("attempt-")]
    assert [e["first_report"] for e in attempts if "first_report" in e] == [0, 3, 2]
    assert "is damaged: block 0 of 1" in attempts[3]["cause"]
    assert (result.path / "checkpoints" / "000003.damaged").is_dir()
    assert result.return_value == [10.0, 10.0]
