from __future__ import annotations

import selectors
import socket
import threading

from hpctrain.control.event_loop import EventLoop


def test_callbacks_are_called_in_the_order_in_which_they_become_due():
    loop, called = EventLoop(), []
    for delay_s in (0.02, 0.0, 0.01):
        loop.call_later(delay_s, lambda delay_s=delay_s: called.append(delay_s))
    while len(called) < 3:
        loop.turn(10.0)
    assert called == [0.0, 0.01, 0.02]
    loop.close()


def test_another_thread_wakes_the_loop_and_harms_none_that_is_closed():
    loop, called = EventLoop(), []
    thread = threading.Thread(
        target=lambda: loop.post(lambda: called.append(threading.get_ident()))
    )
    thread.start()
    while not called:
        loop.turn(10.0)
    thread.join()
    assert called == [threading.get_ident()]
    loop.close()
    loop.post(lambda: called.append(0))
    assert len(called) == 1


def test_a_socket_is_watched_for_what_was_asked_for_last():
    loop, called = EventLoop(), []
    mine, others = socket.socketpair()
    with mine, others:
        others.send(b"x")
        loop.watch(mine, selectors.EVENT_READ, called.append)
        loop.turn(10.0)
        loop.watch(mine, selectors.EVENT_READ | selectors.EVENT_WRITE, called.append)
        loop.turn(10.0)
        loop.watch(mine, selectors.EVENT_WRITE, called.append)
        loop.turn(10.0)
        loop.watch(mine, 0, called.append)
        loop.turn(0.0)
        loop.watch(mine, selectors.EVENT_READ, called.append)
        loop.forget(mine)
        loop.forget(mine)
        loop.turn(0.0)
    both = selectors.EVENT_READ | selectors.EVENT_WRITE
    assert called == [selectors.EVENT_READ, both, selectors.EVENT_WRITE]
    loop.close()
