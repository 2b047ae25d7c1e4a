"""What ``hpctrain report --json`` prints: the numbers of the page. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hpctrain.run_report.curves import Curve
from hpctrain.run_report.facts import RunFacts


def run_to_json(run: RunFacts) -> dict[str, Any]:
    """Return the numbers of a run. Not collective."""
    used = run.efficiency
    return {
        "name": run.name,
        "path": run.path,
        "state": run.state,
        "began_at": run.began_at,
        "until": run.until,
        "jobs": list(run.jobs),
        "num_attempts": len(run.attempts),
        "num_restarts": run.num_restarts,
        "slow_nodes": list(run.slow_nodes),
        "num_reports": run.num_reports,
        "num_repeated": run.num_repeated,
        "median_report_s": used.median_report_s,
        "core_hours": used.core_hours,
        "core_hours_useful": used.useful[0],
        "core_hours_lost": used.lost[0],
        "gpu_hours": used.gpu_hours,
        "gpu_hours_useful": used.useful[1],
        "gpu_hours_lost": used.lost[1],
        "uses": [
            {
                "use": share.use.value,
                "seconds": share.seconds,
                "core_hours": share.core_hours,
                "gpu_hours": share.gpu_hours,
            }
            for share in used.shares
        ],
        "training_parts": [
            {
                "part": each.part.value,
                "seconds": each.seconds,
                "unseen_seconds": each.unseen_s,
                "attempt": each.attempt,
                "of_rank_0": each.is_of_rank_0,
                "most_seconds": None if each.most is None else each.most[0],
                "most_rank": None if each.most is None else each.most[1],
                "least_seconds": None if each.least is None else each.least[0],
                "least_rank": None if each.least is None else each.least[1],
            }
            for each in used.parts
        ],
        "intervals": [
            {
                "use": interval.use.value,
                "begin": interval.begin,
                "end": interval.end,
                "attempt": interval.attempt,
            }
            for interval in run.intervals
        ],
        "metrics": [_metric(curve) for curve in run.metrics.curves],
        "checkpoints": [asdict(saved) for saved in run.checkpoints],
        "damage": list(run.damage),
    }


def _metric(curve: Curve) -> dict[str, Any]:
    least, most = curve.least, curve.most
    return {
        "name": curve.name,
        "num_values": len(curve.values),
        "num_not_finite": curve.num_not_finite,
        "last": curve.last,
        "least": None if least is None else least[1],
        "least_report": None if least is None else least[0],
        "most": None if most is None else most[1],
        "most_report": None if most is None else most[0],
    }
