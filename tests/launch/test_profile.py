"""Ask ranks of a run for traces, and put them together."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain.errors import ConfigError, LaunchError
from hpctrain.launch.profile import ask_executor, profile_run, write_traces
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.profile_request import ProfileRequest
from hpctrain.rundir.status import read_status

MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))
SCRIPT = """
import sys
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig
from hpctrain.torch import TorchTrainer

def train_torch():
    import os
    import torch
    import hpctrain
    from hpctrain.torch import prepare_model
    model = prepare_model(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    over = torch.zeros(1)
    while not over.item():
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        over[0] = float(os.path.exists("over"))
        torch.distributed.all_reduce(over, torch.distributed.ReduceOp.MAX)

def train_plainly():
    import os
    def count_up():
        # Python switches threads where a loop begins again.
        for _ in range(1_000_000):
            pass
    while not os.path.exists("over"):
        count_up()

kind, name, launcher = sys.argv[1:]
homes = {"torch": (TorchTrainer, train_torch), "plain": (DataParallelTrainer, train_plainly)}
cls, train = homes[kind]
cls(
    train,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path="runs", name=name, verbose=0, launcher=launcher),
).fit()
"""


def events_of(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path) as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


class Live:
    """A run of two ranks that trains until it is told that it is over.

    Parameters
    ----------
    kind
        What the ranks do. ``spmd-`` before it: the user's own mpiexec starts them.
    """

    def __init__(self, place: Path, kind: str) -> None:
        self.place = place
        (place / "train.py").write_text(SCRIPT)
        argv = [sys.executable, "train.py", kind.removeprefix("spmd-"), "a-run"]
        self.process = subprocess.Popen(
            [*argv, "local"] if argv[2] == kind else [MPIEXEC, "-n", "2", *argv, "auto"],
            cwd=place,
            stdin=subprocess.DEVNULL,
        )
        self.paths = RunPaths(place / "runs" / "a-run")
        end = time.monotonic() + 120
        while (status := read_status(self.paths)) is None or status.phase != "training":
            assert time.monotonic() < end
            assert self.process.poll() is None
            time.sleep(0.1)

    def end(self) -> int:
        (self.place / "over").touch()
        return self.process.wait(timeout=60)


@pytest.fixture
def live(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Live]:
    run = Live(tmp_path, request.param)
    try:
        yield run
    finally:
        run.end()


def ask(run: Live, output: Path, **changes: Any) -> Any:
    options = {"ranks": [0, 1], "steps": 3, "seconds": 1.0, "timeout_s": 60.0, **changes}
    return profile_run(run.paths, output=output, **options)


@pytest.mark.mpi
@pytest.mark.parametrize("live", ["torch"], indirect=True)
def test_steps_of_torch_are_traced_on_the_ranks_that_are_asked_for(
    live: Live, tmp_path: Path
) -> None:
    found = ask(live, tmp_path / "both.json.gz")
    assert (found.ranks, found.failed) == ((0, 1), {})
    events = events_of(found.path)
    for rank in range(2):
        steps = [
            e for e in events if e["pid"] == 1000 * rank and e["name"] == "Optimizer.step#SGD.step"
        ]
        assert len(steps) == 3
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {"rank 0", "rank 1"} <= names
    # On one clock: both ranks made these steps together.
    first, second = (
        [e["ts"] for e in events if e["pid"] // 1000 == rank and "dur" in e] for rank in range(2)
    )
    assert max(min(first), min(second)) < min(max(first), max(second))
    assert abs(min(first) / 1e6 - time.time()) < 600
    again = ask(live, tmp_path / "one.json.gz", ranks=[1])
    assert again.ranks == (1,)
    with pytest.raises(ConfigError, match=r"has the ranks 0 to 1, and no rank 2\."):
        ask(live, tmp_path / "none.json.gz", ranks=[2])
    with pytest.raises(ConfigError, match=r"is no directory, so x\.gz cannot be written"):
        ask(live, tmp_path / "nowhere" / "x.gz")
    with pytest.raises(ConfigError, match=r"both\.json\.gz exists, and is not replaced"):
        ask(live, found.path)
    with pytest.raises(ConfigError, match=r"its name ends in \.json\.gz"):
        ask(live, tmp_path / "trace.json")
    live.paths.profile_request.write_bytes(b"damaged")
    end = time.monotonic() + 60
    while live.paths.profile_request.exists():
        assert time.monotonic() < end
        time.sleep(0.1)
    # The run has gone on, and its record tells of the two profiles.
    assert live.end() == 0
    ledger = [json.loads(line) for line in live.paths.ledger.read_text().splitlines()]
    asked = [event["ranks"] for event in ledger if event["event"] == "profile-asked"]
    assert asked == [[0, 1], [1]]
    with pytest.raises(ConfigError, match="a-run is finished: only a run whose ranks train"):
        ask(live, tmp_path / "late.json.gz")


@pytest.mark.mpi
@pytest.mark.parametrize("live", ["plain"], indirect=True)
def test_ranks_without_an_optimizer_are_sampled(live: Live, tmp_path: Path) -> None:
    found = ask(live, tmp_path / "plain.json.gz")
    assert found.ranks == (0, 1)
    for rank in range(2):
        names = {e["name"] for e in events_of(found.path) if e["pid"] == 1000 * rank}
        assert any("count_up" in name for name in names), names


@pytest.mark.mpi
@pytest.mark.parametrize("live", ["spmd-torch"], indirect=True)
def test_ranks_that_the_user_started_are_traced(live: Live, tmp_path: Path) -> None:
    found = ask(live, tmp_path / "spmd.json.gz", steps=2)
    assert (found.ranks, found.failed) == ((0, 1), {})
    names = [e["name"] for e in events_of(found.path)]
    assert names.count("Optimizer.step#SGD.step") == 4
    assert live.end() == 0


@pytest.mark.mpi
@pytest.mark.parametrize("live", ["torch"], indirect=True)
def test_a_run_that_ends_first_says_so_and_leaves_no_request(live: Live, tmp_path: Path) -> None:
    def profile() -> Any:
        return profile_run(
            live.paths,
            ranks=[0, 1],
            steps=10**9,
            seconds=1.0,
            output=tmp_path / "x.json.gz",
            timeout_s=60,
            on_asked=lambda: (live.place / "over").touch(),
        )

    refused = None
    try:
        # Of ranks that had begun there is what they have.
        assert profile().ranks
    except LaunchError as error:
        refused = str(error)
    if refused is not None:
        assert re.search("rank 0: .*returned first|rank 0: the run has ended", refused)
        assert not (tmp_path / "x.json.gz").exists()
    assert not live.paths.profile_request.exists()


def test_numbers_of_processes_are_those_of_one_rank_and_names_say_which(tmp_path: Path) -> None:
    for rank in range(2):
        content = {
            "baseTimeNanoseconds": 5_000_000 * (rank + 1),
            "traceEvents": [
                {"ph": "M", "name": "process_name", "pid": 77, "args": {"name": "python"}},
                {"ph": "X", "name": "step", "pid": 77, "tid": 77, "ts": 1.0, "dur": 2.0},
                {"ph": "X", "name": "kernel", "pid": 0, "tid": 7, "ts": 1.5, "dur": 1.0},
            ],
        }
        (tmp_path / f"{rank}.json").write_text(json.dumps(content))
    write_traces({1: tmp_path / "1.json", 0: tmp_path / "0.json"}, tmp_path / "all.gz")
    events = events_of(tmp_path / "all.gz")
    assert [(e["pid"], e["ts"]) for e in events if e["name"] == "step"] == [
        (0, 5001.0),
        (1000, 10001.0),
    ]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {0: "rank 0", 1: "rank 0: 0", 1000: "rank 1", 1001: "rank 1: 0"}


@pytest.mark.parametrize(
    "change", [{"name": "../x"}, {"ranks": "x"}, {"steps": []}, {"seconds": None}, {"name": ""}]
)
def test_a_request_that_is_none_is_refused(change: dict[str, Any]) -> None:
    request = ProfileRequest(name="T1", ranks=(0, 3), steps=None, seconds=2.0, until=9.0)
    assert ProfileRequest.from_json(json.loads(request.to_bytes())) == request
    with pytest.raises(ConfigError):
        ProfileRequest.from_json({**request.to_json(), **change})


def test_a_request_appears_as_a_whole_and_not_over_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = RunPaths(tmp_path)
    before: list[bool] = []
    seen: list[int] = []
    link = os.link

    def watched(source: Any, target: Any) -> None:
        before.append(paths.profile_request.exists())
        link(source, target)
        seen.append(paths.profile_request.stat().st_size)

    monkeypatch.setattr("os.link", watched)
    request = ProfileRequest(name="T1", ranks=(0,), steps=None, seconds=2.0, until=9.0)
    ask_executor(paths, request)
    assert seen == [len(request.to_bytes())]
    with pytest.raises(ConfigError, match="another profile of this run is being asked for"):
        ask_executor(paths, request)
    # The first saw none when it had written all of it.
    assert before == [False, True]
    assert [path.name for path in tmp_path.iterdir()] == ["profile"]


def test_a_damaged_trace_is_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "0.json").write_text('{"traceEvents": [{"ph": "X", "name": "a", "pid": 1}]}')
    (tmp_path / "1.json").write_text('{"traceEvents": [')
    damaged = write_traces(
        {0: tmp_path / "0.json", 1: tmp_path / "1.json"}, tmp_path / "all.json.gz"
    )
    assert list(damaged) == [1]
    assert "its trace cannot be read" in damaged[1]
    assert {e["pid"] for e in events_of(tmp_path / "all.json.gz")} == {0}
