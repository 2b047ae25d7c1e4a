"""A run in an allocation whose ranks wait for files, and the processes that it has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpctrain.testing.slurm import VirtualCluster
from tests.waiting import wait_until

# Without torch, whose import is not what this is about.
WAITS = """
    import json, os, sys, time
    from pathlib import Path
    from hpctrain import (
        BackendConfig, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig,
    )

    from hpctrain.execute.spare_ranks import SpareRanks

    SpareRanks.settle_s = float(sys.argv[4])

    class Config(BackendConfig):
        preload = ("hpctrain.worker.main", "numpy")
        preload_for_trials = ("wave",)

    def train(config):
        import os, resource, signal
        import hpctrain, hpctrain.collective
        here, context = Path(config["here"]), hpctrain.get_context()
        rank, attempt = context.get_world_rank(), context.world.attempt
        had = "wave" in sys.modules
        import wave
        if config["restarts"] > 1:
            # A run that makes no progress is stopped.
            saved = hpctrain.Checkpoint.from_dict({"attempt": attempt})
            hpctrain.report({"attempt": attempt}, saved if rank == 0 else None)
        with open(f"/proc/{os.getppid()}/cmdline") as file:
            parent = file.read().replace(chr(0), " ")
        step = f"{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}"
        with open("/proc/self/cgroup") as file:
            mine = {"parent": parent, "step": step, "cgroup": file.read(), "had": had}
        mine["variables"] = dict(os.environ)
        mine["cpus"] = sorted(os.sched_getaffinity(0))
        limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
        mine["limits"] = [resource.getrlimit(getattr(resource, name)) for name in limits]
        (here / f"new-{attempt}-{rank}").write_text(json.dumps(mine))
        (here / f"new-{attempt}-{rank}").rename(here / f"here-{attempt}-{rank}")
        hpctrain.collective.barrier()
        while config["restarts"] > 1 and not (here / f"go-{attempt}").exists():
            time.sleep(0.02)
        is_last = attempt > config["restarts"]
        if not is_last and config["dies"] == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        while not is_last and not (here / "go").exists():
            time.sleep(0.02)
        return attempt

    print(DataParallelTrainer(
        train,
        train_loop_config={
            "here": sys.argv[1], "dies": int(sys.argv[2]), "restarts": int(sys.argv[3])
        },
        backend_config=Config(),
        scaling_config=ScalingConfig(num_workers=4, use_gpu=sys.argv[5] == "1"),
        run_config=RunConfig(
            name="run", storage_path=sys.argv[1], verbose=0,
            failure_config=FailureConfig(max_failures=int(sys.argv[3])),
        ),
    ).fit().return_value)
"""


class Job:
    """A run of four ranks on two nodes of an allocation.

    With more than one restart each attempt waits for a file, ``go-ATTEMPT``. None has ranks that
    wait for it unless `settle_s` is less than a run takes.
    """

    def __init__(
        self,
        folder: Path,
        cluster: VirtualCluster,
        *,
        dies: int = -1,
        restarts: int = 1,
        settle_s: float = 1e6,
        outlived: bool = False,
        options: Sequence[str] = (),
        use_gpu: bool = False,
        code: str = WAITS,
        words: Sequence[str] = (),
        **variables: str,
    ) -> None:
        path = folder / "wait.py"
        path.write_text(textwrap.dedent(code), encoding="utf-8")
        self._folder = folder
        self._begun: set[str] = set()
        # By it all of its processes are found, on the nodes too.
        self._mark = f"FORKED_IN_STEPS_TEST={folder}"
        self.environ = {**os.environ, **cluster.environ, **variables}
        self.environ["FORKED_IN_STEPS_TEST"] = str(folder)
        # So that the end of the executor is not that of its job.
        waits = f'"$@"; until [ -e {folder}/over ]; do sleep 0.1; done'
        within = ["sh", "-c", waits, "sh"] if outlived else []
        self.process = subprocess.Popen(
            [
                *("salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2"),
                *(*options, *within),
                *(sys.executable, str(path)),
                *(words or map(str, (folder, dies, restarts, settle_s, int(use_gpu)))),
            ],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def ranks(self, attempt: int) -> list[dict[str, Any]]:
        """Return what each rank of an attempt has found."""
        files = [self._folder / f"here-{attempt}-{rank}" for rank in range(4)]
        wait_until(lambda: all(f.exists() for f in files), process=self.process, timeout_s=120)
        return [json.loads(file.read_text()) for file in files]

    def left(self, *words: str) -> list[int]:
        """Return its processes that are alive and have a word in their command."""
        found = []
        for proc in Path("/proc").iterdir():
            try:
                if self._mark not in (proc / "environ").read_text(errors="replace"):
                    continue
                argv = (proc / "cmdline").read_text().split("\0")
                is_alive = (proc / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
            except (OSError, ValueError):
                continue
            is_of_slurm = argv[0] in ("srun", "salloc", "sh")
            if is_alive and any(word in argv for word in words) and not is_of_slurm:
                found.append(int(proc.name))
        return found

    def waiting(self) -> list[int]:
        """Return the ranks that wait for the next attempt, once all have come."""

        def find() -> list[int]:
            named = {pid: _spare(pid) for pid in self.left("hpctrain.worker.main")}
            ranks = [pid for pid, name in named.items() if name and name not in self._begun]
            # Each has a client with the same words.
            return ranks if len(ranks) == 8 else []

        ranks = wait_until(find, process=self.process, timeout_s=60)
        self._begun |= {_spare(pid) for pid in ranks}
        return ranks

    def end(self) -> str:
        """Return what it has printed, once it has ended."""
        printed, _ = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, printed
        return printed


# A client has the command of its rank, too.
OF_STEP = ("hpctrain.worker.main", "hpctrain.worker.fork_server")


def _spare(pid: int) -> str:
    """Return by what those are known with which a rank has waited; empty if it has not."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().partition("\0--spare=")[2]
    except OSError:
        return ""


def step_of(pid: int) -> str:
    """Return the step of a process, as scancel names it."""
    pairs = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    variables = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    return f"{variables['SLURM_JOB_ID']}.{variables['SLURM_STEP_ID']}"


def held(pid: int) -> tuple[int, int]:
    """Return how many descriptors a process has, and how many pages in memory."""
    proc = Path(f"/proc/{pid}")
    return len(list((proc / "fd").iterdir())), int((proc / "statm").read_text().split()[1])
