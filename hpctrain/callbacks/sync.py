"""Upload offline logger data from a machine with network access."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpctrain import environ
from hpctrain.callbacks.logger import require_package
from hpctrain.errors import ConfigError
from hpctrain.rundir.display import counted


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome for the record of one tracker."""

    tracker: str
    text: str
    """What was sent, or why nothing was."""
    is_sent: bool = True
    """Whether the tracker has all that there is."""


def sync_run(
    root: Path, *, is_over: bool, timeout_s: float, mlflow_uri: str | None = None
) -> Iterator[Outcome]:
    """Upload the logger data in a run directory that is not uploaded yet.

    Not collective. It needs the network.

    Parameters
    ----------
    root
        The run directory.
    is_over
        Whether nothing is written any more.
    timeout_s
        Seconds that the tool of a tracker may take, which tries again while a server does not
        answer.
    mlflow_uri
        Server of MLflow; ``MLFLOW_TRACKING_URI`` if it is None.
    """
    if parts := sorted((root / "wandb").glob("offline-run-*/run-*.wandb")):
        yield _attempt("wandb", lambda: _sync_wandb(root, parts, timeout_s, is_over=is_over))
    if archives := sorted((root / "comet").glob("*.zip"), key=lambda path: path.stat().st_mtime_ns):
        yield _attempt("comet", lambda: _sync_comet(archives, timeout_s))
    if (root / "mlruns").is_dir():
        uri = mlflow_uri or environ.variable("MLFLOW_TRACKING_URI")
        yield _attempt("mlflow", lambda: _sync_mlflow(root, uri))


def _attempt(tracker: str, sync: Callable[[], Outcome]) -> Outcome:
    try:
        return sync()
    # The other records are sent after any error of a library.
    except Exception as error:
        kind = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
        return Outcome(tracker=tracker, text=f"not sent: {kind}{error}", is_sent=False)


def _sync_wandb(root: Path, parts: Sequence[Path], timeout_s: float, *, is_over: bool) -> Outcome:
    require_package("hpctrain sync", "wandb", "wandb")
    # wandb itself marks a part like this.
    waiting = [part for part in parts if not _marker(part).exists()]
    if not waiting:
        return Outcome(tracker="wandb", text="there already")
    if not is_over:
        # A part that is sent before its end is marked as sent too.
        text = "not sent: the run is not over, and wandb sends a part of a run once"
        return Outcome(tracker="wandb", text=text, is_sent=False)
    said = _run(root, timeout_s, "wandb", "sync", *(str(part.parent) for part in waiting))
    if left := [part for part in waiting if not _marker(part).exists()]:
        text = f"not sent: {len(left)} of {len(waiting)} parts: {said or 'wandb does not say why'}"
        return Outcome(tracker="wandb", text=text, is_sent=False)
    return Outcome(tracker="wandb", text=f"sent {counted(len(waiting), 'part')}")


def _marker(part: Path) -> Path:
    return part.with_name(f"{part.name}.synced")


def _sync_comet(archives: Sequence[Path], timeout_s: float) -> Outcome:
    require_package("hpctrain sync", "comet_ml", "comet")
    sent = 0
    # In order: the first creates the experiment that the others continue.
    for archive in archives:
        marker = archive.with_name(f"{archive.name}.uploaded")
        if marker.exists():
            continue
        tool = "comet_ml.scripts.comet"
        if said := _run(archive.parent, timeout_s, tool, "upload", str(archive)):
            text = f"not sent: {archive.name}: {said}"
            return Outcome(tracker="comet", text=text, is_sent=False)
        marker.touch()
        sent += 1
    return Outcome(
        tracker="comet", text=f"sent {counted(sent, 'part')}" if sent else "there already"
    )


def _sync_mlflow(root: Path, uri: str | None) -> Outcome:
    require_package("hpctrain sync", "mlflow", "mlflow")
    if not uri:
        raise ConfigError(
            "there is no server of MLflow. Set MLFLOW_TRACKING_URI, or give --mlflow-uri."
        )
    from hpctrain.callbacks.mlflow_copy import copy_file_store

    sent = copy_file_store(root, uri)
    values = ", ".join(counted(number, what) for what, number in sent.items() if number)
    return Outcome(tracker="mlflow", text=f"sent {values}" if values else "there already")


def _run(cwd: Path, timeout_s: float, module: str, *arguments: str) -> str:
    """Run the tool of a tracker; return its error output, or that it failed without any."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return (
            f"{module} was not done after {timeout_s:g} s, which --timeout sets. Does its server "
            f"answer?"
        )
    lines = [line.strip() for line in done.stdout.splitlines() if "error" in line.lower()]
    if done.returncode == 0:
        return ""
    return " / ".join(lines[-2:]) or f"{module} ended with {done.returncode}"
