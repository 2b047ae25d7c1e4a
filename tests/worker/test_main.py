"""The process of a rank until it is connected: what it imports, and how long it waits."""

from __future__ import annotations

import os
import subprocess
import sys

from hpctrain import timeouts
from hpctrain.backend import OF_EVERY_RANK
from hpctrain.worker.parent_death import has_ended


def test_a_rank_imports_no_more_of_python_than_it_needs() -> None:
    # What else a fork server imports for its ranks comes with a seed, or with the first checkpoint.
    ours = ["hpctrain.worker.main", "hpctrain.worker.linked_training", "hpctrain.worker.train"]
    ours.append("hpctrain.rundir.trust")
    assert set(ours) <= set(OF_EVERY_RANK)
    program = f"import sys, {', '.join(ours)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert loaded >= set(ours), done.stderr
    # hashlib loads OpenSSL. Without a framework this is most of what a rank costs until it trains.
    heavy = {"concurrent.futures", "difflib", "hashlib", "hmac", "logging", "secrets"}
    assert loaded & heavy == set()


LAUNCHER_ENDS = """
import os, sys
from hpctrain.worker import main

reading, writing = os.pipe()
if os.fork():
    os.read(reading, 1)
    os._exit(0)
launcher = os.getppid()
os.write(writing, b"x")
try:
    main._connect("no-such.%N", launcher)
except main.LinkTimeoutError as error:
    print(error)
"""


def test_a_rank_whose_launcher_is_gone_does_not_wait_for_an_agent() -> None:
    # The output is at its end when the rank is.
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER_ENDS],
        capture_output=True,
        text=True,
        timeout=timeouts.AGENT_OF_NODE_S / 2,
    )
    assert done.stdout.endswith(", and what has started this rank is gone\n"), done.stderr


def test_a_rank_whose_launcher_was_gone_before_it_looked_does_not_wait_for_an_agent() -> None:
    # Of a launcher that was killed it knows no more than the process that had started that.
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as host:
        namespace = os.readlink(f"/proc/{host.pid}/ns/pid")
        assert not has_ended(f"{host.pid} {namespace}")
    assert has_ended(f"{host.pid} {namespace}")
    # In a container another process may have the number.
    assert not has_ended(f"{host.pid} pid:[1]")
    done = subprocess.run(
        [sys.executable, "-m", "hpctrain.worker.main", "run", "1", "1", "no-such.%N"],
        env={**os.environ, "HPCTRAIN_SLOT_HOST": f"{host.pid} {namespace}"},
        capture_output=True,
        text=True,
        timeout=timeouts.AGENT_OF_NODE_S / 2,
    )
    assert done.stderr.endswith(", and what has started this rank is gone\n"), done.stderr


POOL = """
import faulthandler, multiprocessing, signal, sys
from hpctrain.worker.main import Warnings

noted = []
warnings = Warnings()
warnings.handle(signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
warnings.pass_on(noted.append)
faulthandler.dump_traceback_later(20, exit=True)
with multiprocessing.get_context("fork").Pool(2) as pool:
    next(pool.imap_unordered(abs, range(1000)))
if child := os.fork():
    _, status = os.waitpid(child, 0)
    print("pool ended, child ended by", os.waitstatus_to_exitcode(status), noted)
else:
    # Slurm sends these to every process of a step.
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR2)
    print("child noted", noted, flush=True)
    signal.raise_signal(signal.SIGTERM)
    os._exit(1)
"""


def test_a_process_that_a_rank_forks_is_ended_by_sigterm_and_keeps_no_warning() -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import os\n{POOL}"], capture_output=True, text=True, timeout=60
    )
    lines = ["child noted []", "pool ended, child ended by -15 []"]
    assert done.stdout.splitlines() == lines, done.stderr


HANDLER_OF_ONES_OWN = """
import os, signal
from hpctrain.worker.main import Warnings

Warnings().handle(signal.SIGTERM)
signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
if child := os.fork():
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    signal.raise_signal(signal.SIGTERM)
"""


def test_a_forked_process_keeps_the_handler_that_the_training_function_has_set() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANDLER_OF_ONES_OWN], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "7\n", done.stderr


AFTER_THE_LINK = """
import os, signal, socket
from hpctrain.control.link import Link
from hpctrain.worker.main import Warnings

end, _peer = socket.socketpair()
link = Link(end, attempt=1, on_lost=lambda: None)
warnings = Warnings()
warnings.handle(signal.SIGTERM, signal.SIGUSR2)
warnings.pass_on(link.post_signal)
warnings.ignore()
link.close()
signal.raise_signal(signal.SIGTERM)
signal.raise_signal(signal.SIGUSR2)
print("goes on")
"""


def test_a_warning_that_comes_after_the_last_frame_is_ignored() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AFTER_THE_LINK], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "goes on\n", done.stderr
