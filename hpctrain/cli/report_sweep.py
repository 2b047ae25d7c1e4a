"""``hpctrain report`` of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpctrain.run_report.sweep_facts import SweepFacts


def find_sweep(run: Path, storage: Path) -> Path | None:
    """Return the directory of the sweep that an argument names; None if it names none.

    Not collective.
    """
    from hpctrain.cli.stored_runs import is_run
    from hpctrain.rundir.sweep import is_sweep

    for root in (run, storage / run):
        if is_run(root):
            return None
        if is_sweep(root):
            return root.absolute()
    return None


def report_sweep(root: Path, *, is_compared: bool, output: Path | None, json: bool) -> None:
    """Write a page about a sweep; see `hpctrain.cli.report.report`. Not collective.

    Raises
    ------
    ConfigError
        If it cannot be written there, or other runs are to be shown over it.
    """
    import time

    from hpctrain.cli.report import check_target
    from hpctrain.errors import ConfigError
    from hpctrain.run_report.sweep_facts import read_sweep_facts
    from hpctrain.run_report.sweep_page import render_sweep_page
    from hpctrain.rundir.files import write_atomic
    from hpctrain.tune.ledger import SweepPaths

    if is_compared:
        raise ConfigError(
            f"{root} is a sweep, and --compare shows runs over each other. The trials of a sweep "
            f"are compared on its page; give trials to compare them as runs: {root.name}/TRIAL."
        )
    target = output
    if target is None and not json:
        target = Path(f"{root.name}-report.html")
    if target is not None:
        check_target(target)
    facts = read_sweep_facts(SweepPaths(root=root))
    if target is not None:
        page = render_sweep_page(facts, now=time.time())
        write_atomic(target, page.encode(errors="backslashreplace"))
    if json:
        from hpctrain.cli.json_output import print_json

        print_json(to_json(facts, target))
    else:
        from hpctrain.cli.terminal import width_of_output

        assert target is not None
        print(render(facts, target, width=width_of_output()))


def render(sweep: SweepFacts, target: Path, *, width: int | None) -> str:
    """Return what the page shows in a few lines. Pure.

    Parameters
    ----------
    width
        Columns of the terminal; None for a program.
    """
    from hpctrain.cli.report import wrap_row
    from hpctrain.printable import show_controls
    from hpctrain.run_report.markup import format_number, format_span
    from hpctrain.run_report.sweep_sections import count_states
    from hpctrain.rundir.display import format_metrics

    reason = f"; {sweep.reason.splitlines()[0]}" if sweep.reason else ""
    rows = [("trials", f"{len(sweep.trials)}: {count_states(sweep.trials)}")]
    if not sweep.trials:
        rows = [("trials", "none yet")]
    rows.append(("reports", str(sum(trial.num_reports for trial in sweep.trials))))
    rows.append(("took", format_span(sweep.until - sweep.began_at)))
    if (best := sweep.best) is not None:
        rows.append(("best", f"{best.name}: {sweep.metric}={format_number(best.score)}"))
        rows.append(("config", format_metrics(best.config) or "-"))
    rows += [("damaged", what) for what in sweep.damage]
    lines = [f"{sweep.name}: {sweep.state}{reason}"]
    for key, value in [*rows, ("page", str(target))]:
        lines += wrap_row(key, value, width)
    return show_controls("\n".join(lines))


def to_json(sweep: SweepFacts, target: Path | None) -> dict[str, Any]:
    """Return the object that ``--json`` prints. Pure."""
    return {
        "output": None if target is None else str(target),
        "runs": [],
        "sweeps": [
            {
                "name": sweep.name,
                "path": sweep.path,
                "state": sweep.state,
                "reason": sweep.reason,
                "metric": sweep.metric,
                "mode": sweep.mode,
                "seed": sweep.seed,
                "began_at": sweep.began_at,
                "until": sweep.until,
                "best": None if sweep.best is None else sweep.best.name,
                "improvements": [
                    {"seconds": at, "value": value, "trial": name}
                    for at, value, name in sweep.improvements
                ],
                "trials": [
                    {
                        "trial": trial.name,
                        "state": trial.trial.state.value,
                        "reports": trial.num_reports,
                        "config": dict(trial.trial.config),
                        "metrics": dict(trial.metrics),
                        "score": trial.score,
                        "reason": trial.trial.reason or None,
                    }
                    for trial in sweep.trials
                ],
                "damage": list(sweep.damage),
            }
        ],
        "comparisons": [],
    }
