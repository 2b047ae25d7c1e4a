"""The owners of sbatch's options: the plan, the user, or the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hpctrain.errors import ConfigError

# Options that the plan sets, as sbatch and srun name them, and the user's field for each.
_OWNED_BY_BOTH = {
    "nodes": "SlurmConfig(nodes=...)",
    "ntasks": "ScalingConfig(num_workers=...)",
    "ntasks-per-node": "SlurmConfig(tasks_per_node=...)",
    "cpus-per-task": "resources_per_worker={'CPU': ...}",
}
_GPUS = "use_gpu=True and resources_per_worker={'GPU': ...}"
_OWNED_BY_SBATCH = {
    **_OWNED_BY_BOTH,
    "ntasks-per-core": "SlurmConfig(tasks_per_node=...)",
    "ntasks-per-gpu": "SlurmConfig(tasks_per_node=...)",
    "ntasks-per-socket": "SlurmConfig(tasks_per_node=...)",
    "gpus": _GPUS,
    "gpus-per-node": _GPUS,
    "gpus-per-socket": _GPUS,
    "gpus-per-task": _GPUS,
    "tres-per-task": "resources_per_worker={'CPU': ..., 'GPU': ...}",
    "job-name": "RunConfig(name=...)",
    # hpctrain looks for the job's log at the path of the plan, and a requeued job appends to it.
    "output": "RunConfig(storage_path=...)",
    "error": "RunConfig(storage_path=...)",
    "open-mode": "the log that hpctrain appends to",
    "signal": "SlurmConfig(stop_notice_s=...)",
    "array": "one run for each value",
    # Without a process that continues the run, the job would stay without an owner.
    "no-kill": "num_workers=(fewest, most), or SlurmConfig(spare_nodes=...),",
    # With these sbatch does not print the job id at once, or submits no job.
    "wait": "fit(), or 'hpctrain submit --wait',",
    "parsable": "'hpctrain submit', which prints the job id,",
    "quiet": "RunConfig(verbose=0)",
    "test-only": "HPCTRAIN_DRY_RUN=1",
    "wrap": "SlurmConfig(setup=...)",
    "help": "sbatch itself",
    "usage": "sbatch itself",
    "version": "sbatch itself",
    # All later queries about the job go to the cluster of this machine.
    "clusters": "a login node of that cluster, or SLURM_CLUSTERS,",
    # The run directory belongs to the user who calls fit().
    "uid": "a login as that user",
    "gid": "a login with that group",
}
# A site profile and the environment may set the defaults of these.
_FIELDS = {
    name: f"SlurmConfig({name}=...)"
    for name in ("partition", "account", "qos", "time", "constraint", "reservation", "mem")
}
_OWNED_BY_SRUN = {
    **_OWNED_BY_BOTH,
    "tasks-per-node": _OWNED_BY_BOTH["ntasks-per-node"],
    "mpi": "SlurmConfig(mpi=...)",
    "output": "RunConfig(log_to_file=...)",
    "error": "RunConfig(log_to_file=...)",
}

_SHORT = {
    "A": "account",
    "a": "array",
    "B": "extra-node-info",
    "b": "begin",
    "C": "constraint",
    "c": "cpus-per-task",
    "D": "chdir",
    "d": "dependency",
    "e": "error",
    "F": "nodefile",
    "G": "gpus",
    "H": "hold",
    "h": "help",
    "i": "input",
    "J": "job-name",
    "k": "no-kill",
    "L": "licenses",
    "M": "clusters",
    "m": "distribution",
    "N": "nodes",
    "n": "ntasks",
    "O": "overcommit",
    "o": "output",
    "p": "partition",
    "Q": "quiet",
    "q": "qos",
    "S": "core-spec",
    "s": "oversubscribe",
    "t": "time",
    "u": "usage",
    "V": "version",
    "v": "verbose",
    "W": "wait",
    "w": "nodelist",
    "x": "exclude",
}
_SHORT_SWITCHES = "HhkOQsuVvW"
_SHORT_OF_SRUN = {name: _SHORT[name] for name in "Nncoe"}
_SHORT_SWITCHES_OF_SRUN = "EHhlOQsuVvXZ"
_OTHER_NAMES = {"cluster": "clusters", "tasks-per-node": "ntasks-per-node"}

FIRST_JOB_ONLY = ("begin", "dependency", "hold")
"""Options that a successor must not have: it continues at once."""

CHOOSE_NODES = frozenset({"constraint", "exclude", "gres", "nodefile", "nodelist", "reservation"})
"""Options that leave some nodes of a partition out, other than by how much of a node they ask."""

# sbatch accepts one of each.
_ALTERNATIVES = (
    frozenset({"mem", "mem-per-cpu", "mem-per-gpu"}),
    frozenset({"requeue", "no-requeue"}),
    frozenset({"exclusive", "oversubscribe"}),
)

# `man sbatch`, INPUT ENVIRONMENT VARIABLES, of Slurm 22.05 to 26.05. They win over the lines of a
# script, so none of them may reach sbatch. Not here, and left alone: what changes nothing of a job
# (SBATCH_DEBUG, SBATCH_IGNORE_PBS).
_NAMED_LIKE_THE_OPTION = """
    account acctg-freq batch cluster-constraint clusters consolidate-segments constraint
    container container-id container-type core-spec cpus-per-gpu delay-boot distribution error
    exclusive export get-user-env gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket
    gpus-per-task gres gres-flags hint input job-name mem-bind mem-per-cpu mem-per-gpu network
    no-kill no-requeue open-mode output overcommit partition power profile qos requeue
    reservation signal spread-job spread-segments thread-spec threads-per-core tres-bind
    tres-per-task use-min-nodes wait wait-all-nodes wckey
"""
_VARIABLES = {
    **{"SBATCH_" + n.upper().replace("-", "_"): n for n in _NAMED_LIKE_THE_OPTION.split()},
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_BURST_BUFFER": "bb",
    "SBATCH_CPU_FREQ_REQ": "cpu-freq",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_REQ_SWITCH": "switches",
    "SBATCH_SEGMENT_SIZE": "segment",
    "SBATCH_TIMELIMIT": "time",
}
# All long ones of `man sbatch` that are not named above, of Slurm 22.05 to 26.05.
_NAMED_OTHERWISE = """
    array bb bbf begin chdir comment contiguous cores-per-socket cpu-freq cpus-per-task deadline
    dependency exclude export-file extra extra-node-info gid help hold ignore-pbs
    kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mincpus nice nodefile nodelist
    nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket oom-kill-step
    oversubscribe parsable prefer priority propagate quiet reboot resv-ports segment
    sockets-per-node stepmgr switches test-only time time-min tmp uid usage verbose version wrap
"""
_LONG = frozenset([*_NAMED_LIKE_THE_OPTION.split(), *_NAMED_OTHERWISE.split(), *_OTHER_NAMES])
# For these any value counts, even an empty one.
_SWITCHES = frozenset(
    {
        "consolidate-segments",
        "get-user-env",
        "no-requeue",
        "overcommit",
        "requeue",
        "spread-job",
        "spread-segments",
        "use-min-nodes",
    }
)
# The user's settings of Slurm's commands; the others describe the job of a process.
_NOT_OF_A_JOB = frozenset({"SLURM_CLUSTERS", "SLURM_CONF", "SLURM_JWT", "SLURM_MPI_TYPE"})


def parse_sbatch_args(sbatch_args: Sequence[str]) -> dict[str, str | None]:
    """Return a user's further options by name, without dashes; None is a switch.

    Not collective.

    Raises
    ------
    ConfigError
        If one of them contradicts the plan, with the field to use instead, or cannot be read.
    """
    parsed: dict[str, str | None] = {}
    what = "SlurmConfig(sbatch_args=...)"
    for option in sbatch_args:
        for name, value in _read_option(option):
            _refuse_owned(what, option, name, {**_OWNED_BY_SBATCH, **_FIELDS})
            if name == "gres" and _asks_for_gpus(value):
                _refuse_owned(what, option, name, {"gres": _GPUS})
            parsed = merge_directives(parsed, {name: value})
    return parsed


def check_srun_args(srun_args: Sequence[str], *, what: str = "SlurmConfig(srun_args=...)") -> None:
    """Refuse further options of the workers' step that contradict the plan.

    Not collective. Slurm would use the last of two, and ranks would not be where hpctrain expects
    them.

    Parameters
    ----------
    srun_args
        The options.
    what
        What errors call their origin.

    Raises
    ------
    ConfigError
        With the field to use instead.
    """
    for option in srun_args:
        if option.startswith("--"):
            name, *values = re.split("[= ]", option[2:], maxsplit=1)
        else:
            letters = option[1:].lstrip(_SHORT_SWITCHES_OF_SRUN) if option[:1] == "-" else ""
            name, values = _SHORT_OF_SRUN.get(letters[:1], option), []
        _refuse_owned(what, option, name, _OWNED_BY_SRUN)
        if name and "export".startswith(name) and "ALL" not in ",".join(values).split(","):
            raise ConfigError(
                f"{what} holds {option!r}, but ranks need the executor's environment. Use "
                f"--export=ALL,NAME=value to add a variable."
            )


def check_site_directives(directives: Mapping[str, str], *, origin: str) -> None:
    """Refuse directives of a site profile that contradict the plan, or are not names in full.

    Not collective. Names that hpctrain does not know pass: plugins of a site add options.

    Raises
    ------
    ConfigError
        If there is one.
    """
    for name, value in directives.items():
        full = _full_name(name)
        full = _OTHER_NAMES.get(full, full)
        owned = {**_OWNED_BY_SBATCH, **({"gres": _GPUS} if _asks_for_gpus(value) else {})}
        if full in owned:
            raise ConfigError(
                f"site profile {origin}: [directives] holds {name!r}, but hpctrain sets --{full} "
                f"itself. Use {owned[full]} instead."
            )
        is_part = name not in _LONG and any(known.startswith(name) for known in _LONG)
        if is_part or not re.fullmatch(r"[a-z][\w-]+", name, re.IGNORECASE):
            raise ConfigError(
                f"site profile {origin}: [directives] holds {name!r}. Its keys are sbatch's long "
                f"options in full, without dashes before them, such as 'partition'."
            )


def read_sbatch_variables(
    environ: Mapping[str, str],
) -> tuple[dict[str, str | None], tuple[str, ...]]:
    """Return sbatch's options from the environment, and the ignored ones with the reason.

    Not collective.

    Raises
    ------
    ConfigError
        If it selects another cluster.
    """
    options: dict[str, str | None] = {}
    refused = []
    for variable, name in _VARIABLES.items():
        value = environ.get(variable)
        if value is None:
            continue
        if name == "clusters":
            raise ConfigError(
                f"{variable}={value} is in the environment, but hpctrain queries the cluster of "
                f"this machine about its jobs. Use {_OWNED_BY_SBATCH[name]} instead."
            )
        owner = _GPUS if name == "gres" and _asks_for_gpus(value) else _OWNED_BY_SBATCH.get(name)
        if owner is not None:
            refused.append(f"{variable}={value} is ignored: use {owner.rstrip(',')}")
        else:
            options[name] = None if name in _SWITCHES else value or None
    if "switches" in options and "SBATCH_WAIT4SWITCH" in environ:
        options["switches"] = f"{options['switches']}@{environ['SBATCH_WAIT4SWITCH']}"
    return options, tuple(refused)


def hidden_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the variables that would override a submitted script.

    Not collective. They include the variables of this process's own job: sbatch reads some as
    options, and passes on the others.
    """
    in_job = "SLURM_JOB_ID" in environ
    return tuple(
        name
        for name in environ
        if name in _VARIABLES
        or (in_job and name.startswith(("SLURM_", "SLURMD_")) and name not in _NOT_OF_A_JOB)
    )


def merge_directives(
    directives: Mapping[str, str | None], more: Mapping[str, str | None]
) -> dict[str, str | None]:
    """Return directives in which later ones replace earlier ones that they contradict.

    Not collective. Generic resources are added up.

    Examples
    --------
    >>> merge_directives({"mem-per-gpu": "60G", "gres": "gpu:4"}, {"mem": "0", "gres": "nvme:1"})
    {'gres': 'gpu:4,nvme:1', 'mem': '0'}
    """
    merged = dict(directives)
    for name, value in more.items():
        for group in _ALTERNATIVES:
            if name in group:
                for other in group - {name}:
                    merged.pop(other, None)
        before = merged.get(name)
        merged[name] = f"{before},{value}" if name == "gres" and before and value else value
    return merged


def _read_option(option: str) -> list[tuple[str, str | None]]:
    """Return the names and values in one word of a command line."""
    match = re.fullmatch(r"--([\w-]+)(?:([= ])(.*))?", option)
    if match is not None:
        name, separator, value = match.groups()
        if separator == " " and value.startswith("-"):
            raise ConfigError(
                f"SlurmConfig(sbatch_args=...) holds {option!r}, which is two options. Give each "
                f"its own entry."
            )
        name = _full_name(name)
        return [(_OTHER_NAMES.get(name, name), value)]
    read: list[tuple[str, str | None]] = []
    letters = option[1:]
    while letters[:1] and letters[0] in _SHORT_SWITCHES:
        read.append((_SHORT[letters[0]], None))
        letters = letters[1:]
    if letters or not read:
        name = _SHORT.get(letters[:1], "")
        if not name or "\n" in letters:
            raise ConfigError(
                f"SlurmConfig(sbatch_args=...) holds {option!r}, which sbatch does not know. Each "
                f"entry is one option as on a command line, such as '--mail-type=END'."
            )
        read.append((name, letters[1:].lstrip(" ") or None))
    return read


def _full_name(name: str) -> str:
    """Return the option that sbatch takes a name for: it accepts prefixes of one alone."""
    found = [known for known in _LONG if known.startswith(name)]
    return found[0] if len(found) == 1 else name


def _refuse_owned(what: str, option: str, name: str, owned: Mapping[str, str]) -> None:
    # Slurm's commands accept unambiguous prefixes of option names.
    full = next((known for known in owned if known.startswith(name)), None)
    full = name if name in owned else full
    if full is not None:
        raise ConfigError(
            f"{what} holds {option!r}, but hpctrain sets --{full} itself. Use "
            f"{owned[full]} instead."
        )


def _asks_for_gpus(gres: str | None) -> bool:
    return gres is not None and any(part.split(":")[0] == "gpu" for part in gres.split(","))
