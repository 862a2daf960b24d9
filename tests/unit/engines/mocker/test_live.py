"""The mock engine in real time: pace, hand-over of tokens, aborts, idleness, failure."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.mock_requests import request
from support.polling import until

from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import InvalidRequestError, WorkerError
from dynamo_router.engines.mocker.config import EngineConfig
from dynamo_router.engines.mocker.engine import MockEngine
from dynamo_router.engines.mocker.live import LiveEngine, TokenStream

CONFIG = EngineConfig(block_size=4, num_gpu_blocks=64)


class Timers:
    """A clock, and a sleep that moves it; `may_end` cleared keeps sleepers back."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.slept: list[float] = []
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def sleep(self, seconds: float) -> None:
        await self.may_end.wait()
        self.slept.append(seconds)
        self.clock.advance(seconds)
        await asyncio.sleep(0)


def live_engine(timers: Timers, speedup_ratio: float = 1.0) -> LiveEngine:
    return LiveEngine(
        MockEngine(CONFIG), speedup_ratio=speedup_ratio, clock=timers.clock, sleep=timers.sleep
    )


async def drain(stream: TokenStream) -> None:
    while not stream.done:
        await stream.wait(stream.ready)


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_prompt_is_kept_for_its_reader_unless_that_left_in_its_last_step(
    leaves: bool,
) -> None:
    timers = Timers()
    live = live_engine(timers)
    kept: list[Any] = []
    live.engine.hands_over = True
    live.source = cast(Any, SimpleNamespace(on_kept=lambda number, sequence: kept.append(number)))
    timers.may_end.clear()
    live.start()
    stream = live.submit(request("r1", range(8), 1))
    await until(lambda: live.engine.kept == 1)
    if leaves:
        live.release(stream)
    timers.may_end.set()
    await until(lambda: live.engine.kept == 0 if leaves else stream.done)
    assert (len(kept), live.engine.kept) == ((0, 0) if leaves else (1, 1))
    await live.stop()


@pytest.mark.parametrize("speedup", [1.0, 7.0, 1e6])
async def test_it_takes_the_time_the_steps_say(speedup):
    timers = Timers()
    live = live_engine(timers, speedup)
    live.start()
    streams = [live.submit(request(str(i), range(10 * i, 10 * i + 8), 50)) for i in range(2)]
    await asyncio.gather(*map(drain, streams))
    assert [s.ready for s in streams] == [50, 50]
    twin = MockEngine(CONFIG)
    for i in range(2):
        twin.submit(request(str(i), range(10 * i, 10 * i + 8), 50))
    wanted = 0.0
    while twin.has_work:
        wanted += twin.step().duration_s
    # What is shorter than a timer resolves is made up later, so only the sum is exact.
    assert timers.clock.now() == pytest.approx(wanted / speedup, abs=0.001)
    assert not live.busy
    await live.stop()


async def test_a_token_is_not_handed_out_before_its_step_is_over():
    timers = Timers()
    timers.may_end.clear()
    live = live_engine(timers)
    live.start()
    stream = live.submit(request("a", range(8), 2))
    await until(lambda: stream.sequence.generated == 1)
    assert stream.ready == 0
    timers.may_end.set()
    await drain(stream)
    assert stream.ready == 2 and not stream.aborted
    await live.stop()


@pytest.mark.parametrize(("speedup", "told_at"), [(1.0, 0), (1e9, 1)])
async def test_events_are_told_when_a_step_begins_or_behind_its_tokens_where_it_takes_no_time(
    speedup, told_at
):
    timers, ready = Timers(), []
    live = LiveEngine(
        MockEngine(CONFIG),
        speedup_ratio=speedup,
        clock=timers.clock,
        sleep=timers.sleep,
        on_events=lambda events: ready.append(stream.ready),
    )
    live.start()
    stream = live.submit(request("a", range(8), 1))
    await drain(stream)
    await live.stop()
    assert ready == [told_at]


async def test_nobody_else_has_a_turn_before_a_step_that_takes_no_time_was_told():
    timers, told = Timers(), []
    live = LiveEngine(
        engine := MockEngine(EngineConfig(block_size=1, num_gpu_blocks=256)),
        speedup_ratio=1e9,
        clock=timers.clock,
        sleep=timers.sleep,
        on_events=told.extend,
    )
    live.start()
    stream = live.submit(request("a", range(8), 100))
    turns = 0
    while not stream.done:
        await asyncio.sleep(0)
        turns += 0 < stream.ready < 100
        assert sum(len(event.blocks) for event in told) == len(engine.cached_blocks())
    await live.stop()
    assert turns > 2


async def test_an_abort_while_the_last_step_runs_ends_the_stream_once():
    timers = Timers()
    timers.may_end.clear()
    live = live_engine(timers)
    live.start()
    stream = live.submit(request("a", range(8), 1))
    await until(lambda: stream.sequence.finished)
    with pytest.raises(InvalidRequestError, match="in use"):
        live.submit(request("a", range(8), 1))
    assert live.abort("a") and not live.abort("a")
    assert stream.done and stream.aborted and stream.ready == 0
    again = live.submit(request("a", range(8), 3))
    timers.may_end.set()
    await drain(again)
    assert again.ready == 3 and stream.ready == 0
    await live.stop()


async def test_release_aborts_only_what_is_not_finished():
    live = live_engine(Timers())
    live.start()
    done = live.submit(request("done", range(8), 1))
    await drain(done)
    live.release(done)
    assert not done.aborted
    left = live.submit(request("left", range(8), 200))
    await left.wait(0)
    live.release(left)
    live.release(left)
    assert left.aborted and not live.engine.has_work
    assert live.engine.active_blocks == 0
    await live.stop()


async def test_an_idle_engine_sleeps_without_timers():
    timers = Timers()
    live = live_engine(timers)
    live.start()
    await drain(live.submit(request("a", range(8), 1)))
    slept = len(timers.slept)
    loop = asyncio.get_running_loop()
    handles = []
    call_soon = loop.call_soon
    loop.call_soon = lambda *a, **k: handles.append(a) or call_soon(*a, **k)  # type: ignore
    for _ in range(50):
        await asyncio.sleep(0)
    del loop.call_soon
    assert len(timers.slept) == slept
    # The test's own turns and nothing else.
    assert len(handles) <= 51
    await live.stop()


async def test_stopping_ends_every_stream():
    timers = Timers()
    timers.may_end.clear()
    live = live_engine(timers)
    live.start()
    stream = live.submit(request("a", range(8), 5))
    waiting = asyncio.create_task(drain(stream))
    await asyncio.sleep(0)
    await live.stop()
    await waiting
    assert stream.aborted


async def test_an_engine_that_fails_says_why_and_lets_nobody_wait(monkeypatch, caplog):
    live = live_engine(Timers())
    monkeypatch.setattr(live.engine, "step", lambda idle_s=None: 1 / 0)
    live.start()
    stream = live.submit(request("a", range(8), 5))
    await drain(stream)
    assert stream.aborted
    assert live.failure == "ZeroDivisionError: division by zero"
    assert "a mock engine failed" in caplog.text
    with pytest.raises(WorkerError, match="division by zero"):
        live.submit(request("b", range(8), 5))
    await live.stop()
    with pytest.raises(WorkerError):
        live.submit(request("c", range(8), 5))
