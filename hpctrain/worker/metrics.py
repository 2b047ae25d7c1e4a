"""Metrics of a report as JSON, and the file that keeps rank 0's."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.rundir.files import open_append


class MetricsFile:
    """``metrics.jsonl``, for the rank that writes it.

    Parameters
    ----------
    path
        The file; it is appended to.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = open_append(path)
        self.is_awaited = False
        """Whether a process of another node looks for each line at once."""
        self._is_torn = False

    def append(self, report: int, line: bytes, *, last_checkpoint: str) -> None:
        """Append a report's line. Not collective. It survives a kill of this process.

        Raises
        ------
        CheckpointError
            If it cannot be written as a whole.
        """
        if self._is_torn:
            line = b"\n" + line
        try:
            written = os.write(self._descriptor, line)
            self._is_torn = written < len(line)
            if self.is_awaited:
                # A client of NFS sends what was written when any descriptor of the file is closed
                # (man 5 nfs, close-to-open), and else after up to 30 s.
                os.close(os.dup(self._descriptor))
            reason = f"only {written} of {len(line)} bytes fit" if self._is_torn else None
            cause = None
        except OSError as error:
            reason, cause = str(error.strerror), error
        if reason is not None:
            raise CheckpointError(
                f"report {report} could not be written to {self._path}: {reason}. The last "
                f"complete checkpoint is {last_checkpoint}; free space and call fit() again."
            ) from cause

    def close(self) -> None:
        """Close the file. Further calls do nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def encode_line(
    report: int,
    attempt: int,
    checkpoint: bytes,
    metrics: bytes,
    *,
    waited: bytes = b"",
    lacks: str | None = None,
    validation: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the line of a report, of parts that are JSON already. Not collective.

    Parameters
    ----------
    waited
        What `LoopTime.encode` returns.
    lacks
        As of `PartialMetrics`; None if all metrics are measured.
    validation
        How a rank that gives no part of the checkpoint wants it validated, as of `Manifest`.
    """
    return b'{"report":%d,"attempt":%d,"time":%.6f,"checkpoint":%s,%s%s%s"metrics":%s}\n' % (
        report,
        attempt,
        time.time(),
        checkpoint,
        waited,
        b"" if lacks is None else b'"partial":%s,' % json.dumps(lacks or True).encode(),
        b"" if validation is None else b'"validation":%s,' % _encode(validation).encode(),
        metrics,
    )


def encode_metrics(metrics: Mapping[str, Any]) -> bytes:
    """Return metrics as JSON. Not collective.

    Raises
    ------
    ConfigError
        If they are not a mapping, or hold what JSON has no form for: tensors and arrays.
    """
    if not isinstance(metrics, dict):
        raise ConfigError(
            f"report({metrics!r}): metrics are a dict of names and numbers, and this is a "
            f"{type(metrics).__name__}. For example: report({{'loss': 0.1}})."
        )
    try:
        return _encode(metrics).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"report(): {error}") from error


def _encode_other(value: Any) -> Any:
    """Give JSON the numbers of NumPy; refuse what would have to be copied from a device."""
    kind = type(value)
    if kind.__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "iloc"):
        # Of pandas: a frame has no tolist().
        instead = "use .to_dict()"
    elif hasattr(value, "tolist") or hasattr(value, "item"):
        instead = "use .item() or .tolist()"
    else:
        instead = "save it in the directory of a checkpoint, or report what it has of these"
    raise TypeError(
        f"metrics hold {value!r:.80} of type {kind.__module__}.{kind.__qualname__}. Metrics are "
        f"numbers, strings, lists and dicts: {instead}."
    )


_encode = json.JSONEncoder(separators=(",", ":"), default=_encode_other, check_circular=True).encode
