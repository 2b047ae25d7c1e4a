from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from hpctrain.checkpoint import Checkpoint
from hpctrain.worker.context import get_context
from hpctrain.worker.failure import RankFailure, describe_exception, sendable


class StubbornError(Exception):
    """Cannot be rebuilt from its message, as many exceptions of libraries."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} {second}")


def describe(error: BaseException) -> RankFailure:
    return describe_exception(error, rank=5, hostname="n3", pid=77, report=14, phase="training")


def raised_by_the_user() -> Exception:
    try:
        raise ValueError("bad learning rate")
    except ValueError as error:
        return error


def test_a_failure_survives_the_journey_as_json():
    failure = describe(raised_by_the_user())
    copy = RankFailure.from_json(json.loads(json.dumps(failure.to_json())))
    assert copy == failure
    assert (copy.rank, copy.hostname, copy.report, copy.phase) == (5, "n3", 14, "training")
    assert (copy.type, copy.message) == ("ValueError", "bad learning rate")


def test_an_error_is_reported_where_what_formats_it_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where no descriptor is left, or the filesystem of Python is away."""
    monkeypatch.setitem(sys.modules, "traceback", None)
    failure = describe(raised_by_the_user())
    assert failure.traceback == "ValueError: bad learning rate"
    assert (failure.type, failure.message) == ("ValueError", "bad learning rate")


def test_the_original_exception_comes_back():
    error = describe(raised_by_the_user()).to_exception()
    assert isinstance(error, ValueError)
    assert str(error) == "bad learning rate"


def test_an_exception_that_cannot_be_pickled_comes_back_as_its_text():
    failure = describe(StubbornError(1, 2))
    assert failure.exception is None
    error = failure.to_exception()
    assert isinstance(error, RuntimeError)
    assert str(error) == "StubbornError: 1 2"


def test_the_traceback_begins_in_the_users_code_and_shows_the_call_of_ours():
    def user_function() -> None:
        get_context()

    try:
        user_function()
    except Exception as error:
        trace = describe(error).traceback
    assert trace.startswith("Traceback (most recent call last):")
    assert "in user_function" in trace
    assert "get_context() was called outside of a training function" in trace
    assert "worker/context.py" not in trace, "the message says it all"


@pytest.mark.parametrize(
    ("call", "shown"), [(get_context, False), (lambda: Checkpoint(1).path, True)]
)
def test_a_failure_without_any_code_of_the_user_keeps_its_traceback_unless_it_explains_itself(
    call: Any, shown: bool
):
    try:
        call()
    except Exception as raised:
        error = raised
    # From here on only frames of hpctrain are left, as in a failure before the training function.
    trace = error.__traceback__
    while trace is not None and "/hpctrain/" not in trace.tb_frame.f_code.co_filename:
        trace = trace.tb_next
    error.__traceback__ = trace
    assert ("/hpctrain/" in describe(error).traceback) is shown


def test_a_huge_exception_is_not_carried_but_its_text_is():
    failure = describe(ValueError("x", b"y" * 2**21))
    assert failure.exception is None


def test_a_very_long_chain_of_exceptions_is_reported():
    error: Exception | None = None
    for number in range(1200):
        try:
            raise ValueError(number) from error
        except ValueError as raised:
            error = raised
    assert error is not None
    failure = describe(error)
    assert (failure.type, failure.message) == ("ValueError", "1199")
    assert failure.traceback.endswith("ValueError: 1199")
    assert failure.traceback.count("raise ValueError(number) from error") == 1200


def test_an_error_is_reported_though_its_traceback_cannot_be_formatted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> str:
        raise RecursionError

    monkeypatch.setattr("hpctrain.worker.failure.format_user_traceback", fail)
    assert describe(raised_by_the_user()).traceback == "ValueError: bad learning rate"


def test_an_error_whose_message_cannot_be_made_is_reported():
    class SilentError(Exception):
        def __str__(self) -> str:
            return self.args[1]

    failure = describe(SilentError("only one"))
    assert failure.type.endswith("SilentError")
    assert failure.message == "(no message: IndexError in its __str__)"


def test_an_exception_of_a_call_is_sent_as_it_is_whatever_its_size():
    error = ValueError("x" * 2_000_000)
    assert sendable(error) is error


def test_an_exception_of_a_call_that_cannot_be_read_again_is_its_class_and_text():
    class TwoError(Exception):
        def __init__(self, first: str, second: str) -> None:
            super().__init__(f"{first} and {second}")

    sent = sendable(TwoError("this", "that"))
    assert type(sent) is RuntimeError
    assert str(sent) == "TwoError: this and that"
