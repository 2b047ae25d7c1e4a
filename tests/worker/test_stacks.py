from __future__ import annotations

import threading

from hpctrain.worker.stacks import dump_threads, main_thread_of


def test_the_stacks_of_all_threads_are_there_and_the_main_thread_is_found() -> None:
    ready, release = threading.Event(), threading.Event()

    def wait_elsewhere() -> None:
        ready.set()
        release.wait(60)

    thread = threading.Thread(target=wait_elsewhere)
    thread.start()
    ready.wait(60)
    stacks = dump_threads()
    release.set()
    thread.join()
    assert "in wait_elsewhere" in stacks
    name = "in test_the_stacks_of_all_threads_are_there_and_the_main_thread_is_found"
    assert name in main_thread_of(stacks)
    assert "in wait_elsewhere" not in main_thread_of(stacks)
