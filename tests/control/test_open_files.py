from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from hpctrain.control.hub import Hub
from hpctrain.control.open_files import raise_limit_of_files
from hpctrain.control.proof import Credentials

SetSoft = Callable[[int], None]
WITH_A_LOW_HARD_LIMIT = """
import resource
from hpctrain.control.open_files import raise_limit_of_files
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))
for _ in range(2):
    raise_limit_of_files(5000)
    print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def soft_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@pytest.fixture
def set_soft() -> Iterator[SetSoft]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4000:
        pytest.skip(f"the hard limit is {hard}")
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        yield lambda number: resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))


def test_the_soft_limit_is_raised_and_never_lowered(set_soft: SetSoft):
    set_soft(1024)
    assert raise_limit_of_files(1000)[0] == 1024
    assert soft_limit() == 1024
    assert raise_limit_of_files(3000)[0] == 1024
    assert soft_limit() == 3000


def test_a_hard_limit_that_is_too_low_is_reached_and_reported_once():
    argv = [sys.executable, "-c", WITH_A_LOW_HARD_LIMIT]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["(128, 128)"] * 2
    (line,) = done.stderr.splitlines()
    assert "may need 5000 open files, and its hard limit is 128" in line
    assert "ulimit -Hn 5000 as root" in line


@pytest.mark.parametrize("fanout", [None, 32])
def test_a_hub_may_have_a_connection_to_each_of_its_nodes(set_soft: SetSoft, fanout: int | None):
    set_soft(1024)
    hub = Hub(attempt=1)
    credentials = Credentials(b"s" * 32, run="/runs/one", attempt=1)
    hub.listen_tcp(credentials, only_here=True, fanout=fanout, num_agents=1500)
    hub.close()
    assert soft_limit() == 1756
