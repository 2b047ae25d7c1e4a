"""Slurm-specific settings, in Slurm's own formats. No I/O, no environment."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from os import PathLike
from typing import Literal

from hpctrain.checks import check_type, show_changes, shown
from hpctrain.container import Container
from hpctrain.errors import ConfigError
from hpctrain.rules import (
    Rule,
    checked,
    choice,
    count,
    kind,
    line,
    optional,
    path,
    several,
    with_value,
)

GpuRequest = Literal["auto", "gpus-per-node", "gpus-per-task", "gres", "gpus"]

_GPU_REQUESTS = ("auto", "gpus-per-node", "gpus-per-task", "gres", "gpus")
_STOP_NOTICE_S = 120
# A year has 525600 of them; Slurm's INFINITE is 2**32 - 1.
_MOST_MINUTES = 2**31 - 1
_TIME = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,12})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?")


def _options(what: str, value: object) -> str:
    if not isinstance(value, str) or not value.isprintable() or not value.startswith("-"):
        field = what.replace("[...]", "...")
        raise ConfigError(
            f"{field} holds {shown(value)}. Each entry is one option as on a "
            f"command line, such as '--mail-type=END' (value after '=')."
        )
    return value


def _shell_lines(what: str, value: object) -> str:
    check_type(what, value, str)
    assert isinstance(value, str)
    if "\0" in value:
        raise ConfigError(f"{what} holds {shown(value)}. A line of a shell has no NUL: drop it.")
    return value


def _setup(what: str, value: object) -> tuple[str, ...]:
    lines: tuple[str, ...] = several(_shell_lines)(what, value)
    check_setup(what, lines)
    return lines


def _time(what: str, value: object) -> object:
    time_limit_minutes(value, what=what)  # type: ignore[arg-type]
    return value


def _container(what: str, value: object) -> Container:
    if isinstance(value, (str, PathLike)):
        raise ConfigError(
            f"{with_value(what, value)}: say which runtime opens the image, as in "
            f"Container(image={shown(path(what, value))}, runtime='apptainer')."
        )
    check_type(what, value, Container)
    assert isinstance(value, Container)
    return value


def _node_directory(what: str, value: object) -> str:
    directory: str = path(what, value)
    if not directory.startswith(("/", "$")) or not directory.isprintable():
        raise ConfigError(
            f"{with_value(what, value)}: give the whole path of a directory of each node, such as "
            f"'/local/scratch', '$TMPDIR' or '/dev/shm'."
        )
    return directory.rstrip("/") or "/"


TIME: Rule = optional(_time)
"""A time limit in one of Slurm's formats, or None."""
_WORD = optional(line(otherwise="or None to leave the choice to the site"))


@checked(
    partition=_WORD,
    account=_WORD,
    qos=_WORD,
    time=TIME,
    stop_notice_s=optional(count(1)),
    constraint=_WORD,
    reservation=_WORD,
    nodes=optional(count(1)),
    tasks_per_node=optional(count(1)),
    spare_nodes=count(0),
    exclusive=kind(bool),
    mem=_WORD,
    gpu_request=choice(*_GPU_REQUESTS),
    setup=_setup,
    sbatch_args=several(_options),
    srun_args=several(_options),
    skip_directives=several(line(otherwise="the name of an option")),
    site=_WORD,
    mpi=line(otherwise="or 'auto' to leave the choice to hpctrain"),
    container=optional(_container),
    environment_pack=optional(path),
    environment_pack_dir=_node_directory,
)
@dataclass(frozen=True, kw_only=True)
class SlurmConfig:
    """Settings that only Slurm needs: partition, time limit, account.

    A field that is ``None`` adds no directive: the site's default applies.
    """

    partition: str | None = None
    """``--partition``."""
    account: str | None = None
    """``--account``."""
    qos: str | None = None
    """``--qos``."""
    time: str | int | timedelta | None = None
    """``--time``: Slurm's own formats (``"30"``, ``"2:00:00"``, ``"1-12"``), minutes, a
    timedelta."""
    stop_notice_s: int | None = None
    """Seconds before the end of the time limit at which the run is asked to save and exit, so that
    it can continue in another job: ``--signal``. By default 120, or a quarter of `time` if that is
    less. It must suffice for a step, a checkpoint, and half a minute for Slurm. In a job that you
    wrote yourself it is a quarter of the time left when ``fit()`` is called, if that is less."""
    constraint: str | None = None
    """``--constraint``."""
    reservation: str | None = None
    """``--reservation``."""
    nodes: int | None = None
    """``--nodes``. By default as few as possible."""
    tasks_per_node: int | None = None
    """Maximum of workers on one node. By default it follows from `nodes`, the site profile or the
    partition."""
    spare_nodes: int = 0
    """Additional nodes of the job: when a node is lost, the run continues at full size. They stay
    empty until then, and are charged."""
    exclusive: bool = False
    """``--exclusive``."""
    mem: str | None = None
    """``--mem``: memory of a node, for example ``"120G"``; ``"0"`` is all of it."""
    gpu_request: GpuRequest = "auto"
    """How GPUs are requested. ``auto`` is the site profile's option, else ``gpus-per-node``, which
    makes all GPUs of a node visible to its ranks, as NCCL needs."""
    setup: Sequence[str] = ()
    """Shell lines of the batch script, before hpctrain's own: modules, environments."""
    sbatch_args: Sequence[str] = ()
    """Further sbatch options, each as one word of a command line, without shell quotes:
    ``"--mail-type=END"``, ``"--comment=two words"``."""
    srun_args: Sequence[str] = ()
    """Further srun options for the step of the workers."""
    skip_directives: Sequence[str] = ()
    """Options to omit because the site rejects them: ``"mem"``, ``"cpus-per-task"``."""
    site: str | None = None
    """Name of a site profile (``hpctrain template --list``), or its path."""
    mpi: str = "auto"
    """``auto`` (probe), ``wheel`` (the MPI wheel of this environment), an srun PMI type (``pmi2``,
    ``pmix``, ...), or the path of a site's ``mpiexec``, which is then used instead of srun."""
    container: Container | None = None
    """The container image that ranks run in, in every job of Slurm. None runs them in the Python
    outside."""
    environment_pack: str | None = None
    """File of ``hpctrain pack``: in every job of Slurm each node gets a copy of this Python
    environment before agents and ranks start, and they start in it. The executor and validations
    stay in the shared one."""
    environment_pack_dir: str = "$TMPDIR"
    """Directory of each node's own disk or memory for that copy, such as ``"/dev/shm"``. Variables
    are those of the job; without TMPDIR it is ``/tmp``."""

    __repr__ = show_changes

    def __post_init__(self) -> None:
        """Check the fields against each other."""
        if self.environment_pack is not None and self.container is not None:
            raise ConfigError(
                f"SlurmConfig(container=..., environment_pack={self.environment_pack!r}): ranks "
                f"start in one of them. An image is one file already: leave environment_pack out."
            )
        if self.time is not None:
            limit_s = time_limit_minutes(self.time) * 60
            if self.stop_notice_s is not None and self.stop_notice_s >= limit_s:
                raise ConfigError(
                    f"SlurmConfig(stop_notice_s={self.stop_notice_s}, time={self.time!r}): the run "
                    f"would be asked to stop before it begins. The notice must be shorter than "
                    f"the time limit of {limit_s:g} s."
                )

    @property
    def notice_s(self) -> int:
        """Seconds before the end of the time limit at which the run is asked to stop."""
        if self.stop_notice_s is not None:
            return self.stop_notice_s
        if self.time is None:
            return _STOP_NOTICE_S
        return max(1, min(_STOP_NOTICE_S, int(time_limit_minutes(self.time) * 15)))


def check_setup(what: str, lines: Sequence[str]) -> None:
    """Refuse directives among the shell lines of a batch script. Not collective.

    Raises
    ------
    ConfigError
        If there is one.
    """
    for given in "\n".join(lines).splitlines():
        if given.startswith("#SBATCH"):
            raise ConfigError(
                f"{what} holds {given!r}, which sbatch does not read there: its directives end "
                f"with the first command. Use SlurmConfig(sbatch_args=[...]) instead."
            )


def time_limit_minutes(
    time: str | int | timedelta, *, what: str = "SlurmConfig(time=...)"
) -> float:
    """Return a Slurm time limit in minutes.

    Not collective.

    Parameters
    ----------
    time
        One of the formats of ``man sbatch``, option ``--time``: ``minutes``, ``minutes:seconds``,
        ``hours:minutes:seconds``, ``days-hours``, ``days-hours:minutes``,
        ``days-hours:minutes:seconds``; or minutes, or a timedelta.
    what
        Its name in the error message.

    Raises
    ------
    ConfigError
        If it has another form, or is not positive.

    Examples
    --------
    >>> time_limit_minutes("1-12"), time_limit_minutes("2:00:00"), time_limit_minutes(45)
    (2160.0, 120.0, 45.0)
    """
    if isinstance(time, timedelta):
        minutes = time.total_seconds() / 60
    elif isinstance(time, int) and not isinstance(time, bool):
        minutes = float(max(-_MOST_MINUTES, min(time, 2 * _MOST_MINUTES)))
    else:
        match = _TIME.fullmatch(time) if isinstance(time, str) else None
        if match is None:
            raise ConfigError(
                f"{what.replace('...', shown(time))}: Slurm reads minutes, minutes:seconds, "
                f"hours:minutes:seconds, days-hours, days-hours:minutes or "
                f"days-hours:minutes:seconds."
            )
        days, first, second, third = (int(part) if part else None for part in match.groups())
        first = first or 0
        if days is not None:
            minutes = days * 1440 + first * 60 + (second or 0) + (third or 0) / 60
        elif third is not None:
            minutes = first * 60 + (second or 0) + third / 60
        else:
            minutes = first + (second or 0) / 60
    if minutes > _MOST_MINUTES:
        raise ConfigError(
            f"{what.replace('...', shown(time))}: Slurm counts up to {_MOST_MINUTES} minutes. Ask "
            f"for less, or leave it out."
        )
    if minutes <= 0:
        raise ConfigError(
            f"{what.replace('...', shown(time))} is {minutes:g} minutes. Ask for more than 0."
        )
    return minutes


def format_time_limit(time: str | int | timedelta) -> str:
    """Return a time limit as Slurm reads it. Not collective.

    Examples
    --------
    >>> format_time_limit(timedelta(days=1, seconds=1)), format_time_limit(90)
    ('1440:01', '90:00')
    """
    if isinstance(time, str):
        return time
    minutes, seconds = divmod(math.ceil(time_limit_minutes(time) * 60), 60)
    return f"{minutes}:{seconds:02d}"
