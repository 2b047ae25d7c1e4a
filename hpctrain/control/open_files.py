"""The limit of this process on open files, where each node of a large run needs one."""

from __future__ import annotations

import resource

from hpctrain.log import log_once

OTHER_FILES = 256
"""What a process has open beside its connections."""


def raise_limit_of_files(number: int) -> tuple[int, int]:
    """Let this process have so many files if it may; return the limits of before.

    Not collective. Where it may not, that is logged once.
    """
    soft, hard = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= number:
        return limits
    if hard != resource.RLIM_INFINITY and hard < number:
        log_once(
            f"note: with a connection to each node this process may need {number} open files, and "
            f"its hard limit is {hard}: nodes beyond that cannot connect. Raise it: "
            f"ulimit -Hn {number} as root, LimitNOFILE of slurmd, or limits.conf(5)."
        )
        number = hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    return limits
