"""The file for node_exporter's textfile collector, read by prometheus_client's own parser."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import (
    Checkpoint,
    ConfigError,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
    collective,
)
from hpctrain.callback import RunContext
from hpctrain.callbacks import PrometheusCallback
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus
from tests.waiting import wait_until

pytest.importorskip("prometheus_client")

Samples = dict[tuple[str, str], float]


def parse(text: str, *, run: str = "run") -> Samples:
    """Return the values by name and by the one label that is no label of all."""
    from prometheus_client.parser import text_string_to_metric_families

    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert (labels.pop("run"), labels.pop("job_id")) == (run, "")
            key = sample.name, "".join(labels.values())
            assert key not in samples
            samples[key] = sample.value
    return samples


def _train(config: dict[str, Any]) -> None:
    rank = hpctrain.get_context().get_world_rank()
    found = hpctrain.get_checkpoint()
    hpctrain.report({"loss": 0.5, "val": {"loss": math.nan}, "note": "text"})
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / f"state-{rank}").touch()
        hpctrain.report({"loss": 0.25}, checkpoint=Checkpoint.from_directory(directory))
    collective.barrier()
    if found is None and rank == 1:
        raise RuntimeError("a failure")
    if rank == 0:
        file, deadline = Path(config["file"]), time.monotonic() + 60
        while 'hpctrain_report{job_id="",run="run"} 4.0' not in file.read_text():
            assert time.monotonic() < deadline, file.read_text()
            time.sleep(0.01)
        (file.parent / "during").write_text(file.read_text())


@pytest.mark.mpi
def test_the_file_is_right_during_and_after_a_run_that_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    place = tmp_path / "collected"
    place.mkdir()
    file = place / "hpctrain_run.prom"
    result = DataParallelTrainer(
        _train,
        train_loop_config={"file": str(file)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="run",
            storage_path=tmp_path / "runs",
            verbose=0,
            failure_config=FailureConfig(max_failures=1),
            callbacks=[PrometheusCallback(place, interval_s=0.05)],
        ),
    ).fit()
    assert result.error is None
    during, after = parse((place / "during").read_text()), parse(file.read_text())
    for samples, state in ((during, "running"), (after, "finished")):
        assert samples["hpctrain_metric", "loss"] == 0.25
        assert math.isnan(samples["hpctrain_metric", "val/loss"])
        assert ("hpctrain_metric", "note") not in samples
        assert samples["hpctrain_report", ""] == 4
        assert samples["hpctrain_attempt", ""] == 2
        assert samples["hpctrain_ranks", ""] == 2
        assert samples["hpctrain_reports_total", ""] == 4
        assert samples["hpctrain_checkpoints_total", ""] == 2
        assert samples["hpctrain_restarts_total", ""] == 1
        assert samples["hpctrain_worker_failures_total", ""] == 1
        states = {label for (name, label), on in samples.items() if name == "hpctrain_state" and on}
        assert states == {state}
    assert after["hpctrain_report_timestamp_seconds", ""] <= time.time()
    assert sorted(path.name for path in place.iterdir()) == ["during", "hpctrain_run.prom"]


class Run:
    """A run as the executor calls a callback, which was pickled before."""

    def __init__(self, path: Path, callback: PrometheusCallback) -> None:
        self.path = path
        path.mkdir()
        callback.on_submit({})
        self.callback: PrometheusCallback = pickle.loads(pickle.dumps(callback))
        self.number = 0

    def context(self) -> RunContext:
        return RunContext(name="run", path=self.path, attempt=1, world_size=1, report=self.number)

    def report(self, **metrics: Any) -> None:
        self.number += 1
        self.callback.after_report(self.context(), [metrics], None)

    def finish(self, state: RunState) -> None:
        status = RunStatus(name="run", state=state, launcher="local")
        self.callback.on_finish(self.context(), Result(path=self.path, status=status, error=None))


def test_it_writes_at_most_once_in_an_interval_and_what_came_last_is_not_forgotten(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.prom"
    run = Run(tmp_path / "run", PrometheusCallback(file, interval_s=3600))
    run.report(loss=1)
    run.report(loss=2)
    assert parse(file.read_text())["hpctrain_metric", "loss"] == 1
    run.finish(RunState.STOPPED)
    samples = parse(file.read_text())
    assert samples["hpctrain_metric", "loss"] == 2
    assert samples["hpctrain_state", "stopped"] == 1
    # The timer of an interval that no report ends.
    run = Run(tmp_path / "run2", PrometheusCallback(file, interval_s=0.2))
    run.report(loss=3)
    run.report(loss=4)
    wait_until(lambda: parse(file.read_text())["hpctrain_metric", "loss"] == 4, "the last one")
    run.finish(RunState.FINISHED)


def test_odd_names_of_metrics_are_values_of_a_label(tmp_path: Path) -> None:
    file = tmp_path / "a.prom"
    run = Run(tmp_path / "run", PrometheusCallback(file))
    odd = {'a "b"\\\n{c}': 1.0, "größe/µ": 2.0, "9": 3.0, "\ud800": 4.0, "": 5.0}
    run.report(**odd)
    samples = parse(file.read_text())
    named = {label: value for (name, label), value in samples.items() if name == "hpctrain_metric"}
    assert named == {**{k: v for k, v in odd.items() if k != "\ud800"}, "?": 4.0}


def test_a_run_without_a_report_has_its_state(tmp_path: Path) -> None:
    file = tmp_path / "a.prom"
    run = Run(tmp_path / "run", PrometheusCallback(file))
    run.callback.after_exception(run.context(), {0: RuntimeError("x"), 3: RuntimeError("x")})
    run.finish(RunState.FAILED)
    samples = parse(file.read_text())
    assert samples["hpctrain_state", "failed"] == 1
    assert samples["hpctrain_worker_failures_total", ""] == 2
    assert samples["hpctrain_report_timestamp_seconds", ""] == 0


def test_a_place_that_cannot_be_written_is_refused_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "directory.prom").mkdir()
    for place, expected in (
        ("missing/a.prom", "there is no "),
        ("missing", "there is no "),
        ("file/a.prom", "is not a directory"),
        ("directory.prom", "is a directory"),
    ):
        callback = PrometheusCallback(tmp_path / place)
        with pytest.raises(ConfigError, match=expected) as caught:
            callback.on_submit({})
        assert "check=False" in str(caught.value)
    PrometheusCallback(tmp_path / "missing", check=False).on_submit({})
    with pytest.raises(ConfigError, match="interval_s"):
        PrometheusCallback(tmp_path, interval_s=0)
    with pytest.raises(ConfigError, match="textfile"):
        PrometheusCallback(17)  # type: ignore[arg-type]


def test_a_directory_of_somebody_else_is_refused() -> None:
    code = (
        "import os\n"
        "from pathlib import Path\n"
        "from hpctrain.callbacks.prometheus import _refuse_unwritable\n"
        # Root writes anywhere.
        "os.geteuid() or os.setresuid(12345, 12345, 12345)\n"
        "_refuse_unwritable('/', file=Path('/hpctrain_run.prom'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "cannot write into /" in done.stderr


def test_what_cannot_be_written_later_is_logged_once_and_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "collected"
    place.mkdir()
    run = Run(tmp_path / "run", PrometheusCallback(place, interval_s=1e-9))
    place.rmdir()
    run.report(loss=1)
    run.report(loss=2)
    said = capsys.readouterr()
    assert (said.out + said.err).count("PrometheusCallback cannot write") == 1
    place.mkdir()
    run.report(loss=3)
    assert parse((place / "hpctrain_run.prom").read_text())["hpctrain_metric", "loss"] == 3
    run.finish(RunState.FINISHED)
