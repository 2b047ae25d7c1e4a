"""Work that is done ahead, and memory that is used again."""

import gc
import threading
from functools import partial

import numpy as np
import pytest

from hpctrain.data.prefetch import MOST_BYTES, Buffers, clock_stopped, prefetch
from hpctrain.errors import HpctrainError


def prefetch_threads():
    return [t for t in threading.enumerate() if t.name.startswith("hpctrain-prefetch")]


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    for thread in prefetch_threads():
        thread.join(timeout=10)
        assert not thread.is_alive()


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_results_come_in_the_order_of_the_tasks(threads):
    tasks = (partial(pow, number, 2) for number in range(50))

    assert list(prefetch(tasks, threads=threads)) == [number**2 for number in range(50)]


def test_nothing_comes_of_nothing():
    assert list(prefetch([], threads=2)) == []


def test_work_goes_on_while_the_caller_is_busy():
    third = threading.Event()
    tasks = [int, int, third.set, int, int]

    results = prefetch(tasks, threads=1, ahead=3)
    next(results)

    assert third.wait(timeout=10)
    results.close()


def test_no_more_than_was_asked_for_is_done_ahead():
    started = []
    results = prefetch((partial(started.append, n) for n in range(100)), threads=2, ahead=4)

    for _ in range(10):
        next(results)
    results.close()

    assert len(started) <= 10 + 4


@pytest.mark.parametrize(("share", "most"), [(1.5, 1), (1, 1), (0.5, 2), (0.01, 4)])
def test_no_more_is_begun_ahead_than_memory_allows(share, most):
    begun = []

    def tasks():
        for number in range(20):
            begun.append(number)
            yield int

    results = prefetch(tasks(), threads=2, bytes_each=int(share * MOST_BYTES))
    for number in range(10):
        next(results)
        assert len(begun) == number + 1 + most
    results.close()


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_an_error_comes_at_the_place_of_its_task(threads):
    def fail():
        raise OSError("disk is gone")

    results = prefetch([int, int, fail, int], threads=threads)

    assert [next(results), next(results)] == [0, 0]
    with pytest.raises(OSError, match="disk is gone"):
        next(results)


def test_a_task_that_hangs_is_given_up_with_a_message():
    release = threading.Event()
    started = threading.Event()

    def hang():
        started.set()
        release.wait(60)

    results = prefetch([int, hang], threads=1, ahead=2, timeout_s=0.2)
    next(results)
    assert started.wait(timeout=10)

    with pytest.raises(HpctrainError, match=r"not read within 0\.2 s"):
        next(results)
    release.set()


@pytest.mark.parametrize("nested", [False, True])
def test_a_step_that_takes_longer_than_a_read_may_is_waited_for(nested):
    timeout_s = 0.5
    release = threading.Event()
    started = threading.Event()

    def read_and_compute():
        with clock_stopped():
            if nested:
                # What the step reads ahead does not start the clock of the step again.
                assert list(prefetch([int, int], threads=1)) == [0, 0]
            started.set()
            assert release.wait(60)
        return 1

    results = prefetch([int, read_and_compute, int], threads=1, ahead=3, timeout_s=timeout_s)
    next(results)
    assert started.wait(timeout=10)
    timer = threading.Timer(3 * timeout_s, release.set)
    timer.start()

    assert list(results) == [1, 0]
    timer.join()


def test_a_task_that_hangs_after_its_step_is_given_up():
    release = threading.Event()
    started = threading.Event()

    def hang():
        with clock_stopped():
            started.set()
        release.wait(60)

    results = prefetch([int, hang], threads=1, ahead=2, timeout_s=0.2)
    next(results)
    assert started.wait(timeout=10)

    with pytest.raises(HpctrainError, match=r"not read within 0\.2 s"):
        next(results)
    release.set()


def test_threads_end_with_an_iterator_that_is_left_in_the_middle():
    results = prefetch((int for _ in range(1000)), threads=3)
    next(results)

    del results
    gc.collect()

    for thread in prefetch_threads():
        thread.join(timeout=10)
    assert prefetch_threads() == []


def test_memory_is_used_again_once_nobody_has_a_part_of_it():
    buffers = Buffers(partial(np.empty, 100))
    array = buffers.get()
    address = array.ctypes.data
    part = array[10:20].reshape(2, 5)
    del array

    assert buffers.get().ctypes.data != address
    del part
    assert address in [buffers.get().ctypes.data for _ in range(2)]


def test_memory_that_somebody_keeps_is_not_written_over():
    buffers = Buffers(partial(np.empty, 1, np.int64), at_most=3)
    kept = []
    for number in range(20):
        array = buffers.get()
        array[0] = number
        kept.append(array[:1])

    assert [int(part[0]) for part in kept] == list(range(20))


def test_a_tensor_keeps_its_memory():
    torch = pytest.importorskip("torch")
    buffers = Buffers(partial(np.zeros, 4))
    tensor = torch.from_numpy(buffers.get()[1:3])

    buffers.get()[:] = 7

    assert tensor.tolist() == [0, 0]


def test_results_are_not_held_by_what_made_them():
    buffers = Buffers(partial(np.empty, 10))
    seen = set()
    for array in prefetch((buffers.get for _ in range(200)), threads=2, ahead=3):
        seen.add(array.ctypes.data)
        del array

    # One each for those ahead, those being worked on, and the caller.
    assert len(seen) <= 8
