"""A page about a sweep: one HTML file that needs no other one, and no network. Pure."""

from __future__ import annotations

import json

from hpctrain.run_report import sweep_sections
from hpctrain.run_report.markup import Html, to_html
from hpctrain.run_report.page import fill_page
from hpctrain.run_report.sweep_drawing import choose_axes, make_sweep_data
from hpctrain.run_report.sweep_facts import SweepFacts, TrialFacts

MOST_TRIALS = 2000
"""Further trials are counted, and in the exported table, but not on the page."""


def render_sweep_page(sweep: SweepFacts, *, now: float) -> str:
    """Return the page. Not collective.

    Parameters
    ----------
    sweep
        The sweep.
    now
        When the page is made, in seconds since the epoch.
    """
    trials = choose_trials(sweep)
    axes = choose_axes(sweep, trials)
    data = make_sweep_data(sweep, trials, axes)
    content = {
        "Overview": Html(_left_out(sweep, trials) + sweep_sections.overview(sweep)),
        "Configurations": sweep_sections.configurations(sweep, trials, axes),
        "Curves": sweep_sections.curves(sweep, trials, len(json.loads(data)["charts"])),
        "Timeline": sweep_sections.timeline(sweep, trials),
        "Trials": sweep_sections.all_trials(sweep, trials),
    }
    kind = "over" if sweep.state == "ended" else "open"
    return fill_page(
        sweep.name,
        subject="sweep",
        state=f'<span class="badge {kind}">{to_html(sweep.state)}</span>',
        damage=sweep.damage,
        content=content,
        data=data,
        now=now,
    )


def choose_trials(sweep: SweepFacts) -> list[TrialFacts]:
    """Return the trials that are on the page, in their order: if need be, the best ones.

    Not collective.
    """
    if len(sweep.trials) <= MOST_TRIALS:
        return list(sweep.trials)
    others = [trial for trial in sweep.trials if trial.score is None]
    kept = {trial.name for trial in [*sweep.ranking, *others][:MOST_TRIALS]}
    return [trial for trial in sweep.trials if trial.name in kept]


def _left_out(sweep: SweepFacts, trials: list[TrialFacts]) -> str:
    if len(trials) == len(sweep.trials):
        return ""
    return (
        f"<p>{len(trials)} of {len(sweep.trials)} trials are on this page, the best ones. "
        f"<code>hpctrain tune export</code> writes all of them.</p>"
    )
