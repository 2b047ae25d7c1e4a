"""What is added to the error that ends a sweep: how the sweep goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from hpctrain.errors import ConfigError, HpctrainError, RunStoppedError, SupersededError
from hpctrain.log import log
from hpctrain.printable import describe_error
from hpctrain.tune.ledger import SweepLedger, SweepPaths
from hpctrain.tune.local_runner import LocalRunner
from hpctrain.tune.metric_check import UnreportedMetricError
from hpctrain.tune.person_stops import PersonStops
from hpctrain.tune.place import is_of_files
from hpctrain.tune.sweep import Sweep
from hpctrain.uncaught import show_as


@contextmanager
def errors_of_sweep(
    paths: SweepPaths, sweep: Sweep, person: PersonStops, how_to_go_on: str
) -> Iterator[None]:
    """Add the next step to an error that ends a sweep, and write down why. Not collective.

    Parameters
    ----------
    person
        What a person has stopped.
    how_to_go_on
        In words.
    """
    try:
        yield
    except SupersededError:
        raise
    except RunStoppedError as error:
        _note_interrupt(paths, sweep.reason)
        where = "" if person.why() else "In another job "
        raise RunStoppedError(f"{error} {where}{how_to_go_on}.") from error
    except UnreportedMetricError as error:
        _note_interrupt(paths, str(error))
        raise ConfigError(
            f"{error} The trials were stopped. If the function is wrong, mend it, and go on with "
            f"Tuner.restore({str(paths.root)!r}, trainable, restart_errored=True).fit(). If the "
            f"metric's name is wrong, correct it and begin a new sweep: another "
            f"RunConfig(name=...), or existing='restart'."
        ) from error
    except ConfigError as error:
        _note_interrupt(paths, str(error))
        raise ConfigError(
            f"{error} The trials were stopped; get_results() has what they reported. Begin again "
            f"under another name, or with RunConfig(existing='restart')."
        ) from error
    except HpctrainError as error:
        _note_interrupt(paths, str(error))
        raise
    except Exception as error:
        if isinstance(error, OSError) and is_of_files(error, paths):
            # `errors_of_files` explains it.
            _note_interrupt(paths, str(error))
            raise
        _note_interrupt(paths, describe_error(error))
        # Of a scheduler, a search algorithm or a stop criterion of the user's.
        log(f"the sweep stopped because of an error; {how_to_go_on}")
        raise


@contextmanager
def interrupts_of_sweep(sweep: Sweep, runner: LocalRunner, how_to_go_on: str) -> Iterator[None]:
    """Log at Ctrl-C what is left at work, and how the sweep goes on. Not collective.

    Parameters
    ----------
    how_to_go_on
        In words.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        left = runner.describe_left(sweep.at_work)
        log(f"interrupted; {how_to_go_on}{left}", new_line=True)
        show_as(error, "")
        raise


def _note_interrupt(paths: SweepPaths, reason: str) -> None:
    """Write down why a sweep has not come to its end, for those who look at it later."""
    # The error itself is raised, also where it is that nothing can be written.
    with suppress(OSError):
        SweepLedger(paths=paths).append("sweep-interrupted", reason=reason)
