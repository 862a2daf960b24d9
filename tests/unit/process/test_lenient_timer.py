"""A time-out that fires late lets what came meanwhile be read first, once."""

import gc
import weakref
from typing import Any, cast

import pytest
from support.adversity.late_loop import LateLoop
from support.polling import until

from dynamo_router.base.clock import STALLED_S
from dynamo_router.process.lenient_timer import LenientTimer


def timer(loop: LateLoop, calls: list[float]) -> LenientTimer:
    return LenientTimer(5.0, lambda: calls.append(loop.now), cast(Any, loop))


def test_in_time_it_calls_at_once() -> None:
    loop, calls = LateLoop(), list[float]()
    timer(loop, calls)
    loop.look(4.9)
    assert not calls
    loop.look(0.1 + STALLED_S / 2)
    assert len(calls) == 1 and not loop.handles


def test_after_a_stall_it_calls_a_look_later() -> None:
    loop, calls = LateLoop(), list[float]()
    timer(loop, calls)
    loop.look(60.0)
    assert not calls
    loop.look(60.0)  # late again
    assert len(calls) == 1 and not loop.handles


def test_what_is_put_off_is_called_then_and_its_lateness_counts_anew() -> None:
    loop, calls = LateLoop(), list[float]()
    made = timer(loop, calls)
    loop.look(60.0)
    made.put_off(30.0)
    loop.look(29.0)
    assert not calls
    loop.look(60.0)
    assert not calls
    loop.look(STALLED_S)
    assert len(calls) == 1 and not loop.handles


def test_an_answer_that_was_there_unread_cancels_it() -> None:
    loop, calls = LateLoop(), list[float]()
    made = timer(loop, calls)
    loop.look(60.0)
    made.cancel()
    made.cancel()
    loop.look(60.0)
    assert not calls


class Owner:
    """Who keeps a timer that calls it."""

    def __init__(self, seconds: float, calls: list[str]) -> None:
        self.calls = calls
        self.timer = LenientTimer(seconds, self.on_due)

    def on_due(self) -> None:
        self.calls.append("due")


@pytest.mark.parametrize("seconds", [0.0, 600.0])
async def test_a_timer_that_is_over_leaves_nothing_to_the_collector(seconds: float) -> None:
    """There is one for each request."""
    calls = list[str]()
    owner = Owner(seconds, calls)
    left = weakref.ref(owner)
    if seconds:
        owner.timer.cancel()
    else:
        await until(lambda: calls)
    gc.disable()
    try:
        del owner
        assert left() is None
    finally:
        gc.enable()
