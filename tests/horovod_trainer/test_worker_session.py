"""What the worker of an elastic run asks its rank."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread

from hpctrain.horovod.worker_session import WorkerSession
from hpctrain.rundir.paths import RunPaths
from hpctrain.testing.thread_comm import run_on_threads
from tests.worlds import make_world

ASKED = 2000


def answer(connection: Connection) -> None:
    """Be the rank, whose answers name the question."""
    with suppress(EOFError):
        while True:
            verb, *_ = connection.recv()
            connection.send_bytes(pickle.dumps((True, verb)))


def test_a_worker_ends_after_what_its_threads_have_asked() -> None:
    here, there = Pipe()
    session = WorkerSession(here, world=make_world(), paths=RunPaths(Path("/none")), reports=0)
    with ThreadPoolExecutor(2) as threads:
        asked = threads.submit(session.artifacts)
        assert there.recv() == ("artifacts",)
        ended = threads.submit(session.end, ("left",))
        there.send((True, "here"))
        assert there.recv() == ("left",)
        assert not ended.done()
        there.send("all are done")
        assert asked.result() == Path("here")
        ended.result()


def test_each_thread_of_a_worker_has_its_own_answer() -> None:
    here, there = Pipe()
    rank = Thread(target=answer, args=(there,), daemon=True)
    rank.start()
    session = WorkerSession(here, world=make_world(), paths=RunPaths(Path("/none")), reports=0)

    def ask(verb: str) -> set[str]:
        return {str(getattr(session, verb)()) for _ in range(ASKED)}

    answers = run_on_threads(2, lambda comm: ask(("artifacts", "should_stop")[comm.rank]))
    assert answers == [{"artifacts"}, {"True"}]
    here.close()
    rank.join()
