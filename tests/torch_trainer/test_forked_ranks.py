"""Ranks that are forked from a process that has imported torch: as they are without it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from hpctrain import ConfigError, FailureConfig
from hpctrain.execute.fork_server import ForkServers
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.torch import TorchConfig, TorchTrainer
from tests.runs import fit
from tests.waiting import wait_until

# Starts of ranks that import torch, on a machine that is busy.
pytestmark = [pytest.mark.mpi, pytest.mark.timeout(240)]


@pytest.fixture(scope="module", autouse=True)
def _forks() -> None:
    """Let each run have a process of its own that imports torch: what these tests are about."""


@pytest.fixture(autouse=True)
def without_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCTRAIN_FORK_SERVER", raising=False)


def _reasons(root: Path) -> list[str]:
    events = read_events(RunPaths(root))
    return [event["reason"] for event in events if event["event"] == "not-forked"]


def _trains() -> Callable[[], Any]:
    """Return a training function that draws without a seed first."""

    def train() -> dict[str, Any]:
        import os
        import random

        import numpy as np
        import torch
        from torch import distributed, nn

        import hpctrain
        import hpctrain.torch

        drawn = [np.random.random(), random.random(), torch.rand(1).item()]
        torch.manual_seed(3)
        model: Any = hpctrain.torch.prepare_model(
            nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 1))
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        losses = []
        for _ in range(5):
            loss = model(torch.randn(64, 32)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
        with open(f"/proc/{os.getppid()}/cmdline", encoding="utf-8") as file:
            parent = file.read().split("\0")
        mine: dict[str, Any] = {
            "losses": losses,
            "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
            "parent": "hpctrain.worker.fork_server" in parent,
            "pmi": [name for name in os.environ if name.startswith("PMI")],
            "drawn": drawn,
            "mpi": hpctrain.get_context().get_world_rank(),
        }
        everybody: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(everybody, mine)
        return {"ranks": everybody}

    return train


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_forked_ranks_compute_the_same_to_the_last_bit(
    num_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for wanted in ("1", "0"):
        monkeypatch.setenv("HPCTRAIN_FORK_SERVER", wanted)
        result = fit(
            _trains(), tmp_path, name=wanted, num_workers=num_workers, trainer=TorchTrainer
        )
        assert result.return_value is not None
        found[wanted] = result.return_value["ranks"]
        assert _reasons(tmp_path / wanted) == []
        assert [rank.pop("parent") for rank in found[wanted]] == [wanted == "1"] * num_workers
        drawn = [number for rank in found[wanted] for number in rank.pop("drawn")]
        assert len(set(drawn)) == 3 * num_workers
    assert found["1"] == found["0"]


def _is_killed_once() -> Callable[[], Any]:
    def train() -> list[int]:
        import os
        import signal

        from torch import distributed

        import hpctrain

        context = hpctrain.get_context()
        if context.world.attempt == 1:
            hpctrain.report({"server": os.getppid()})
            if context.get_world_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            distributed.barrier()
        return [os.getppid(), os.getpgid(0), os.getpid()]

    return train


def test_a_restart_has_the_server_of_the_first_start(tmp_path: Path) -> None:
    result = fit(
        _is_killed_once(),
        tmp_path,
        trainer=TorchTrainer,
        failure_config=FailureConfig(max_failures=1),
    )
    assert result.return_value is not None
    server, group, pid = result.return_value
    assert result.metrics is not None
    assert server == result.metrics["server"]
    assert group == pid
    assert _reasons(result.path) == []
    restarts = [e for e in read_events(RunPaths(result.path)) if e["event"] == "restart"]
    assert ["killed (SIGKILL)" in restart["what"] for restart in restarts] == [True]
    wait_until(lambda: not Path(f"/proc/{server}").exists(), "the server outlives its run")


def _optimizes_until_it_is_killed(go: str) -> Callable[[], Any]:
    def train() -> dict[str, Any]:
        import os
        import signal
        import sys
        import time
        from pathlib import Path

        import torch

        import hpctrain

        context, had = hpctrain.get_context(), "torch._dynamo" in sys.modules
        torch.manual_seed(3)
        model = torch.nn.Linear(32, 1)
        optimizer = torch.optim.Adam(model.parameters())
        losses = []
        for _ in range(5):
            loss = model(torch.randn(64, 32)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
        server = os.getppid()
        hpctrain.report({"server": server})
        while context.world.attempt == 1 and not Path(go).exists():
            time.sleep(0.02)
        if context.world.attempt == 1 and context.get_world_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        torch.distributed.barrier()
        cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
        return {"losses": losses, "had": had, "server": server, "cache": cache}

    return train


def test_a_restart_has_the_modules_of_the_first_start_and_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, prepare = tmp_path / "go", ForkServers.prepare_restart

    def prepare_and_tell(self: ForkServers, imported: Collection[str]) -> None:
        prepare(self, imported)
        if not self.is_preparing:
            go.touch()

    monkeypatch.setattr(ForkServers, "settle_s", 0.0)
    monkeypatch.setattr(ForkServers, "prepare_restart", prepare_and_tell)
    found = {}
    for wanted in ("1", "0"):
        monkeypatch.setenv("HPCTRAIN_FORK_SERVER", wanted)
        result = fit(
            _optimizes_until_it_is_killed(str(go)),
            tmp_path,
            name=wanted,
            trainer=TorchTrainer,
            failure_config=FailureConfig(max_failures=1),
        )
        assert result.return_value is not None
        found[wanted] = result.return_value
        assert _reasons(result.path) == []
    assert [found["1"].pop("had"), found["0"].pop("had")] == [True, False]
    server = found["1"].pop("server")
    del found["0"]["server"]
    assert found["1"] == found["0"]
    wait_until(lambda: not Path(f"/proc/{server}").exists(), "the server outlives its run")


SCRIPT = """
    import os, sys, time
    from pathlib import Path
    from hpctrain import FailureConfig, RunConfig, ScalingConfig
    from hpctrain.torch import TorchTrainer

    def train():
        import hpctrain
        context, here = hpctrain.get_context(), Path({folder!r})
        attempt, rank = context.world.attempt, context.get_world_rank()
        (here / f"new-{{attempt}}-{{rank}}").write_text(f"{{os.getpid()}} {{os.getppid()}}")
        (here / f"new-{{attempt}}-{{rank}}").rename(here / f"here-{{attempt}}-{{rank}}")
        while attempt == 1 and not (here / "go").exists():
            time.sleep(0.01)
        return attempt

    print(TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="run", storage_path={folder!r}, verbose=0, launcher="local",
            failure_config=FailureConfig(max_failures=1),
        ),
    ).fit().return_value)
"""


class Script:
    """A run of two ranks that wait, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        path = folder / "script.py"
        path.write_text(textwrap.dedent(SCRIPT.format(folder=str(folder))), encoding="utf-8")
        self._folder = folder
        # By it all of its processes are found.
        self.mark = f"FORKED_RANKS_TEST={folder}"
        self.process = subprocess.Popen(
            [sys.executable, str(path)],
            env={**os.environ, "FORKED_RANKS_TEST": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )

    def ranks(self, attempt: int) -> list[list[int]]:
        """Return the process of each rank of an attempt, and of its server."""
        files = [self._folder / f"here-{attempt}-{rank}" for rank in range(2)]
        wait_until(lambda: all(f.exists() for f in files), process=self.process, timeout_s=120)
        return [[int(word) for word in file.read_text().split()] for file in files]

    def left(self) -> dict[int, str]:
        """Return the processes that are alive."""
        found = {}
        for proc in Path("/proc").iterdir():
            try:
                if self.mark not in (proc / "environ").read_text(errors="replace"):
                    continue
                if (proc / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                    found[int(proc.name)] = (proc / "cmdline").read_text().replace("\0", " ")
            except (OSError, ValueError):
                continue
        return found

    def launcher(self) -> int:
        """Return the process of mpiexec."""
        (pid,) = [pid for pid, command in self.left().items() if "/mpiexec" in command.split()[0]]
        return pid


def test_nothing_is_left_of_a_run_whose_executor_is_killed(tmp_path: Path) -> None:
    script = Script(tmp_path)
    ((_, server), _) = script.ranks(1)
    assert "hpctrain.worker.fork_server" in script.left()[server]
    script.process.kill()
    script.process.communicate(timeout=60)
    wait_until(lambda: not script.left(), lambda: f"left: {script.left()}")


@pytest.mark.parametrize("victim", ["launcher", "server"])
def test_a_run_goes_on_after_its_launcher_or_its_server_was_killed(
    victim: str, tmp_path: Path
) -> None:
    script = Script(tmp_path)
    ranks = script.ranks(1)
    server = ranks[0][1]
    if victim == "launcher":
        os.killpg(script.launcher(), signal.SIGKILL)
    else:
        os.kill(server, signal.SIGKILL)
        # Ranks live on without it; the next attempt has another one.
        wait_until(lambda: server not in script.left())
        assert all(pid in script.left() for pid, _ in ranks)
        os.kill(ranks[1][0], signal.SIGKILL)
    again = script.ranks(2)
    assert (again[0][1] == server) == (victim == "launcher")
    printed, _ = script.process.communicate(timeout=60)
    assert (script.process.returncode, printed.split()[-1:]) == (0, ["2"])
    wait_until(lambda: not script.left(), lambda: f"left: {script.left()}")
    assert _reasons(tmp_path / "run") == []


def test_the_reason_why_ranks_are_not_forked_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text("", encoding="utf-8")
    paths = filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    result = fit(
        _is_killed_once(),
        tmp_path / "runs",
        trainer=TorchTrainer,
        verbose=1,
        failure_config=FailureConfig(max_failures=1),
    )
    assert result.return_value is not None
    (reason,) = _reasons(result.path)
    assert f"{tmp_path}/sitecustomize.py runs at the start of each interpreter" in reason
    said = "note: each rank imports its modules itself: "
    assert capfd.readouterr().err.count(said) == 1


@pytest.mark.parametrize("attribute", ["preload", "preload_for_trials"])
@pytest.mark.parametrize("preload", ["torch", ("torch", 3), ("not a module",)])
def test_a_preload_that_names_no_modules_is_refused(
    preload: Any, attribute: str, tmp_path: Path
) -> None:
    class Config(TorchConfig):
        pass

    setattr(Config, attribute, preload)
    with pytest.raises(ConfigError, match=rf"Config.{attribute} is .* Names of modules are needed"):
        fit(_trains(), tmp_path, trainer=TorchTrainer, torch_config=Config())
