"""A request against the reservation that it names. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from hpctrain.doctor.finding import Finding, error, ok, remark, warning
from hpctrain.slurm.limits import measured, minutes_of
from hpctrain.slurm.output import parse_time

# Of these the next one comes when this one is over; in one that is flexible a job may end later.
_WITHOUT_END = frozenset({"HOURLY", "DAILY", "WEEKDAY", "WEEKEND", "WEEKLY", "FLEX"})


def check_reservation(
    name: str,
    reservation: Mapping[str, str] | None,
    *,
    user: str,
    accounts: Collection[str],
    nodes: int,
    time: str,
    now: float,
) -> list[Finding]:
    """Return whether a job could start in a reservation. Not collective.

    Parameters
    ----------
    name
        Of the reservation.
    reservation
        Its fields, as scontrol prints them; None if there is none.
    user
        Whose job it is.
    accounts
        The job's account and its parents; empty if that is not known.
    nodes
        Nodes of the job.
    time
        Its time limit as Slurm writes it; empty if it names none.
    now
        Seconds since the epoch.
    """
    if reservation is None:
        return _refuse(
            f"there is no reservation {name!r}",
            why="sbatch refuses the job",
            step="'scontrol show reservation' lists them",
        )
    of_accounts = reservation.get("Accounts", "")
    is_mine = _takes(reservation.get("Users", ""), [user])
    if not is_mine or (accounts and not _takes(of_accounts, accounts)):
        who = f"account {next(iter(accounts))!r}" if is_mine else f"user {user!r}"
        return _refuse(
            f"reservation {name!r} is not for {who}",
            why="sbatch refuses the job",
            step="Ask who made it to add you, or leave it out",
        )
    state, count = reservation.get("State", ""), reservation.get("NodeCnt", "")
    if count.isdigit() and int(count) < nodes:
        return _refuse(
            f"reservation {name!r} has {measured(count, 'node')}, and {nodes} are needed",
            why="it never starts",
            step="Ask for fewer workers, or leave the reservation out",
        )
    duration, flags = reservation.get("Duration", ""), reservation.get("Flags", "").split(",")
    if time and duration and "FLEX" not in flags and minutes_of(time) > minutes_of(duration):
        return _refuse(
            f"reservation {name!r} lasts {duration}, and the job asks for {time}",
            why="it never starts inside it",
            step=f"SlurmConfig(time='{duration}') or less",
        )
    begin, end = reservation.get("StartTime", ""), reservation.get("EndTime", "")
    if state != "ACTIVE":
        what = f"reservation {name!r} begins {begin}"
        return [warning("reservation", what, why="the job waits until then")]
    ends_at = parse_time(end)
    if time and ends_at is not None and not _WITHOUT_END.intersection(flags):
        left = max(math.floor((ends_at - now) / 60), 0)
        if minutes_of(time) > left:
            return _refuse(
                f"reservation {name!r} ends {end}, in {left} minutes, and the job asks for {time}",
                why="it never starts inside it",
                step="A shorter SlurmConfig(time=...), or leave the reservation out",
            )
    groups = reservation.get("Groups", "(null)")
    if groups != "(null)":
        what = f"reservation {name!r} is for {groups}; whether {user!r} is in one was not checked"
        return [remark("reservation", what)]
    return [ok("reservation", f"reservation {name!r} is active, until {end}")]


def _takes(listed: str, names: Collection[str]) -> bool:
    """Return whether a list of users or accounts has one of some names, or excludes none of them.

    Examples
    --------
    >>> _takes("-bob,-eve", ["me"]), _takes("bob", ["me"]), _takes("(null)", ["me"])
    (True, False, True)
    """
    if listed in ("", "(null)"):
        return True
    parts = listed.split(",")
    if listed.startswith("-"):
        return not {part.removeprefix("-") for part in parts}.intersection(names)
    return not set(parts).isdisjoint(names)


def _refuse(what: str, *, why: str, step: str) -> list[Finding]:
    return [error("reservation", what, why=why, step=step)]
