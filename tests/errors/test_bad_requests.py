"""Bad input gets a clear error before anything is submitted or lost."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctrain import ConfigError, DataParallelTrainer, LaunchError, RunConfig, ScalingConfig
from hpctrain.testing.pytest_plugin import require_components
from hpctrain.testing.slurm import ClusterSpec, VirtualCluster
from tests.clusters import own_cluster
from tests.processes import run_python

SCRIPT = """
import json, sys
import hpctrain
from hpctrain import DataParallelTrainer, HpctrainError, RunConfig, ScalingConfig, SlurmConfig

def train():
    hpctrain.report({"a": 1})

if __name__ == "__main__":
    storage, scaling, slurm = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    try:
        DataParallelTrainer(
            train,
            scaling_config=ScalingConfig(**scaling, slurm=SlurmConfig(**slurm)),
            run_config=RunConfig(storage_path=storage, name="run"),
        ).fit()
    except HpctrainError as error:
        print(f"{type(error).__name__}: {error}")
        sys.exit(3)
"""


@pytest.fixture(scope="module")
def script() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "train.py"
        path.write_text(SCRIPT)
        yield path


def refuse(cluster: VirtualCluster, script: Path, storage: Path, scaling: str, slurm: str) -> str:
    done = run_python(
        script, storage, scaling, slurm, environ=cluster.environ, code=3, timeout_s=90
    )
    return done.stdout


@pytest.mark.slurm
@pytest.mark.parametrize(
    ("scaling", "slurm", "message"),
    [
        (
            '{"num_workers": 1}',
            '{"nodes": 2}',
            "num_workers=1 leaves some of 2 nodes empty. Use 2 workers or more",
        ),
        (
            '{"num_workers": 5, "placement_strategy": "STRICT_SPREAD"}',
            "{}",
            "needs 5 nodes with at most 1 worker each, but partition main has 4",
        ),
        (
            '{"num_workers": 40}',
            "{}",
            "needs 10 nodes with at most 4 workers each, but partition main has 4",
        ),
        (
            '{"num_workers": 1, "resources_per_worker": {"CPU": 5}}',
            "{}",
            "resources_per_worker CPU=5, but a node has 4",
        ),
        ('{"num_workers": 4}', '{"partition": "gpuu"}', "this cluster has main, high, low"),
        ('{"num_workers": 4}', '{"partition": "down"}', "partition down is down"),
        (
            '{"num_workers": 4}',
            '{"partition": "short", "time": "5"}',
            "is 5 minutes, but partition short ends jobs after 2",
        ),
        (
            '{"num_workers": 4}',
            '{"constraint": "milan"}',
            "Slurm refused the job: sbatch: error: Batch job submission failed: Invalid feature",
        ),
        ('{"num_workers": 4}', '{"reservation": "friday"}', "reservation='friday'"),
    ],
)
def test_what_slurm_would_never_start_is_refused_before_it_waits(
    virtual_slurm: VirtualCluster,
    script: Path,
    tmp_path: Path,
    scaling: str,
    slurm: str,
    message: str,
) -> None:
    assert message in refuse(virtual_slurm, script, tmp_path, scaling, slurm)


def assert_verbs_know(cluster: VirtualCluster, run: Path, *, account: str) -> None:
    """Check that no verb waits for a run whose account Slurm has refused, and that each says so."""
    words = "Slurm refused the job: sbatch: error: Batch job submission failed: Invalid account"

    def hpctrain(verb: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "hpctrain.cli", verb, str(run)]
        environ = {**os.environ, **cluster.environ, "COLUMNS": "200"}
        return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60)

    for verb in ("attach", "wait"):
        ended = hpctrain(verb)
        assert ended.returncode == LaunchError.exit_code == 3, ended.stderr
        assert words in ended.stderr
        assert f"account='{account}'" in ended.stderr
        assert "sacctmgr show associations" in ended.stderr
    status = hpctrain("status").stdout
    assert status.startswith("run: refused\n")
    assert words in status
    history = hpctrain("history").stdout
    assert history.startswith("run: refused, 0 attempts, 0 restarts\n")
    assert words in " ".join(history.split())


@pytest.mark.slurm
@pytest.mark.matrix("refused accounts and QOS")
def test_an_account_or_qos_that_slurm_refuses_is_named(script: Path, tmp_path: Path) -> None:
    spec = ClusterSpec(num_nodes=1, gpus_per_node=0, accounting=True)
    with own_cluster(spec) as cluster:
        refused = refuse(cluster, script, tmp_path, '{"num_workers": 1}', '{"account": "nope"}')
        assert "Slurm refused the job" in refused
        assert "account='nope'" in refused
        assert "sacctmgr show associations" in refused
        assert_verbs_know(cluster, tmp_path / "run", account="nope")
        refused = refuse(cluster, script, tmp_path, '{"num_workers": 1}', '{"qos": "gold"}')
        assert "qos='gold'" in refused
        assert "sacctmgr show qos" in refused


@pytest.mark.slurm
@pytest.mark.matrix("storage that nodes do not see")
def test_a_storage_path_that_nodes_cannot_see_is_found_by_the_first_action(
    script: Path, tmp_path: Path
) -> None:
    spec = ClusterSpec(num_nodes=1, gpus_per_node=0, private_tmp=True, shared=(script.parent,))
    require_components(spec)
    if spec.mode != "namespaces" or os.geteuid() != 0:
        pytest.skip("a /tmp of its own for each node needs root")
    with own_cluster(spec) as cluster:
        refused = refuse(cluster, script, tmp_path, '{"num_workers": 1}', "{}")
    # Slurm 22.05 does not begin the job; 24.11 and 26.05 make the directory of its log on the node.
    assert re.search(r"LaunchError: job 1 ended \(FAILED, ExitCode (0:53|66:0)", refused), refused
    assert f"do not see the run directory {tmp_path}/run" in refused
    assert "Choose a RunConfig(storage_path=...)" in refused


def test_a_training_function_with_two_arguments_is_refused() -> None:
    def train(model: object, config: object) -> None:
        pass

    with pytest.raises(ConfigError, match=r"train\(model, config\) takes 2 arguments"):
        DataParallelTrainer(train)


def test_a_training_function_that_needs_an_argument_by_name_is_refused() -> None:
    def train(config: object, *, data: object, seed: int = 0) -> None:
        pass

    with pytest.raises(ConfigError, match=r"train\(\*, data\) needs an argument by name"):
        DataParallelTrainer(train)


def test_a_training_function_that_cannot_be_pickled_names_the_culprit(tmp_path: Path) -> None:
    lock = threading.Lock()

    def train() -> None:
        lock.acquire()

    trainer = DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tmp_path, name="run", launcher="local"),
    )
    with pytest.raises(ConfigError, match="captured variable 'lock'"):
        trainer.fit()
    assert not (tmp_path / "run").exists()


def test_a_large_training_function_is_warned_of_with_the_culprit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = bytearray(12 * 2**20)

    def train() -> int:
        return len(weights)

    result = DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=tmp_path, name="run"),
    ).fit()
    assert result.return_value == 12 * 2**20
    said = capsys.readouterr().err
    assert "the training function, with everything it refers to, is 12 MiB when pickled" in said
    assert "captured variable 'weights' (12 MiB)" in said


def test_another_trainer_under_the_same_name_is_refused(tmp_path: Path) -> None:
    class OtherTrainer(DataParallelTrainer):
        pass

    def fails() -> None:
        raise RuntimeError("so that the run is not finished")

    config = RunConfig(storage_path=tmp_path, name="run")
    with pytest.raises(RuntimeError, match="not finished"):
        DataParallelTrainer(
            fails, scaling_config=ScalingConfig(num_workers=0), run_config=config
        ).fit()
    with pytest.raises(
        ConfigError, match=r"belongs to trainer hpctrain\.trainer\.DataParallelTrainer"
    ):
        OtherTrainer(fails, scaling_config=ScalingConfig(num_workers=0), run_config=config).fit()


def test_a_full_disk_is_named_and_the_last_checkpoint_survives(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a small filesystem of our own needs root (mount)")
    storage = tmp_path / "small"
    storage.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16M", "hpctrain-test", str(storage)], check=True
    )
    try:
        _fill(storage)
    finally:
        subprocess.run(["umount", "--lazy", str(storage)], check=True)


def _fill(storage: Path) -> None:
    from hpctrain import Checkpoint, Result, WorkerError

    def train(config: dict[str, str]) -> None:
        import hpctrain

        for step in range(20):
            source = Path(config["outside"]) / "model"
            source.mkdir(exist_ok=True)
            (source / "weights.bin").write_bytes(b"x" * 5_000_000)
            hpctrain.report({"step": step}, Checkpoint.from_directory(source))

    trainer = DataParallelTrainer(
        train,
        train_loop_config={"outside": str(storage.parent)},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=storage, name="run", launcher="local", verbose=0),
    )
    with pytest.raises(WorkerError, match="No space left on device") as caught:
        trainer.fit()
    assert "The last complete checkpoint is /" in str(caught.value)
    result = Result.from_path(storage / "run")
    assert result.state == "failed"
    assert result.checkpoint is not None
    assert (result.checkpoint.path / "weights.bin").stat().st_size == 5_000_000
