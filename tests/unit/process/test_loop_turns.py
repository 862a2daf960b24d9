"""Turns of the event loop: what one turn begins, whose turn it is, and what leaves nothing."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from support.polling import until

from dynamo_router.base.account import set_account
from dynamo_router.process.loop_turns import (
    CALLS_EACH,
    END_S,
    MOST_S,
    LoopTurns,
    NextTurn,
    end_in_turn,
)

AT_A_TIME = 4


class Watch:
    """Counts what began in each turn of the loop."""

    def __init__(self) -> None:
        self.turns = LoopTurns(AT_A_TIME)
        self.turn = 0
        self.begun: list[tuple[int, str]] = []

    def count_turns(self) -> Callable[[], None]:
        loop = asyncio.get_running_loop()

        def count() -> None:
            nonlocal handle
            self.turn += 1
            handle = loop.call_soon(count)

        handle = loop.call_soon(count)
        return lambda: handle.cancel()

    async def begin(self, caller: str, times: int = 1, cost: float = 1.0) -> None:
        set_account(caller)
        for _ in range(times):
            await self.turns.take(cost)
            self.begun.append((self.turn, caller))

    async def run(self, *works: Coroutine[Any, Any, None]) -> None:
        stop = self.count_turns()
        await asyncio.gather(*works)
        stop()

    @property
    def most_in_a_turn(self) -> int:
        return max(Counter(turn for turn, _ in self.begun).values())


@pytest.fixture
def watch() -> Watch:
    return Watch()


async def test_all_requests_together_begin_a_few_in_a_turn(watch: Watch) -> None:
    await watch.run(*(watch.begin(f"c{n % 10}") for n in range(100)), watch.begin("long", 30))
    assert len(watch.begun) == 130
    assert watch.most_in_a_turn <= AT_A_TIME
    assert not watch.turns.waiting


async def test_a_piece_that_costs_more_counts_for_more(watch: Watch) -> None:
    await watch.run(*(watch.begin("a", cost=AT_A_TIME) for _ in range(10)))
    assert watch.most_in_a_turn == 1
    await watch.run(*(watch.begin("a", cost=100 * AT_A_TIME) for _ in range(2)))
    assert watch.most_in_a_turn == 1


async def test_one_that_comes_alone_begins_at_once(watch: Watch) -> None:
    for _ in range(3 * AT_A_TIME):
        taken = watch.turns.take(AT_A_TIME)
        with pytest.raises(StopIteration):
            taken.send(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_callers_take_turns(watch: Watch) -> None:
    many = [asyncio.create_task(watch.begin("many")) for _ in range(100)]
    await asyncio.sleep(0)
    await asyncio.gather(*(watch.begin("few") for _ in range(5)))
    await asyncio.gather(*many)
    callers = [caller for _, caller in watch.begun]
    last = len(callers) - callers[::-1].index("few")
    assert last <= 2 * 5 + 2 * AT_A_TIME
    assert len(watch.begun) == 105


async def test_one_that_is_cancelled_while_it_waits_leaves_nothing(watch: Watch) -> None:
    tasks = [asyncio.create_task(watch.begin(f"c{n % 3}")) for n in range(100)]
    await asyncio.sleep(0)
    assert watch.turns.waiting == 100 - AT_A_TIME
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert not watch.turns.waiting
    assert len(watch.begun) <= 2 * AT_A_TIME
    await watch.run(watch.begin("c1"))
    assert watch.begun[-1][1] == "c1"


async def test_a_turn_that_was_given_to_one_that_left_is_not_waited_for(watch: Watch) -> None:
    tasks = [asyncio.create_task(watch.begin("a")) for _ in range(3 * AT_A_TIME)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the next ones have their turn, and have not run
    for task in tasks[AT_A_TIME : 2 * AT_A_TIME]:
        task.cancel()
    await asyncio.wait(tasks)
    assert len(watch.begun) >= 2 * AT_A_TIME
    assert not watch.turns.waiting


async def test_calls_wait_for_their_turn_too(watch: Watch) -> None:
    stop = watch.count_turns()
    for number in range(20):
        watch.turns.call(1.0, lambda: watch.begun.append((watch.turn, "called")))
        assert len(watch.begun) == min(number + 1, AT_A_TIME)
    await watch.begin("a")  # behind them: it is another's turn within two
    while watch.turns.waiting:
        await asyncio.sleep(0)
    stop()
    assert len(watch.begun) == 21
    assert watch.most_in_a_turn <= AT_A_TIME + 1  # a task that was given its turn runs in the next
    assert [who for _, who in watch.begun].index("a") < 3 * AT_A_TIME


def test_what_ends_is_counted_for_each_loop_anew() -> None:
    """A loop may be closed while some wait."""
    ended: list[int] = []

    async def end_many() -> int:
        for number in range(1000):
            end_in_turn(partial(ended.append, number))
        return len(ended)

    for _ in range(2):
        del ended[:]
        assert 0 < asyncio.run(end_many()) <= MOST_S / END_S + 1
        assert len(ended) < 1000


async def test_what_fails_as_it_begins_keeps_nothing_else_from_beginning(watch: Watch) -> None:
    errors: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: errors.append(repr(context["exception"])))
    begun: list[int] = []

    def fail() -> None:
        raise ValueError("this one")

    watch.turns.call(AT_A_TIME, partial(begun.append, 0))
    watch.turns.call(1.0, fail)
    for number in range(1, 3 * AT_A_TIME):
        watch.turns.call(1.0, partial(begun.append, number))
    await until(lambda: len(begun) == 3 * AT_A_TIME)
    assert errors == ["ValueError('this one')"]


async def test_what_is_for_the_next_turn_is_called_then_in_its_order() -> None:
    """All by one callback of the loop; what a call gives is for the turn behind that."""
    loop, turn = asyncio.get_running_loop(), NextTurn()
    seen: list[str] = []
    errors: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda loop, context: errors.append(context))

    def again() -> None:
        seen.append("again")
        turn.call(lambda: seen.append("behind"))

    def fails() -> None:
        raise ValueError("one of them")

    for call in again, fails, lambda: seen.append("last"):
        turn.call(call)
    assert not seen
    await asyncio.sleep(0)
    assert seen == ["again", "last"]
    assert [str(each["exception"]) for each in errors] == ["one of them"]
    await asyncio.sleep(0)
    assert seen == ["again", "last", "behind"]


async def test_a_cancellation_that_a_call_raises_is_its_own() -> None:
    """As a future's that the call looks at: others of the same turn are called."""
    loop, turn, turns = asyncio.get_running_loop(), NextTurn(), LoopTurns(AT_A_TIME)
    loop.set_exception_handler(lambda loop, context: None)
    seen: list[str] = []

    def fails() -> None:
        raise asyncio.CancelledError

    turns.call(AT_A_TIME, lambda: None)
    for put in turn.call, partial(turns.call, 1.0):
        for call in fails, partial(seen.append, "next"):
            put(call)
    await until(lambda: seen == ["next", "next"])


async def test_what_waits_is_called_though_a_turn_could_not_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop calls what fails itself, as for want of memory."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: None)
    seen: list[int] = []

    def fails(*_: object) -> None:
        raise MemoryError

    turn, turns = NextTurn(), LoopTurns(AT_A_TIME)
    with monkeypatch.context() as patch:
        patch.setattr(NextTurn, "_call_all", fails)
        patch.setattr(LoopTurns, "_begin_next", fails)
        turns.call(AT_A_TIME, lambda: None)
        turns.call(1.0, partial(seen.append, -1))
        turn.call(partial(seen.append, 0))
        await asyncio.sleep(0)
    await until(lambda: seen == [-1])
    for number in range(1, CALLS_EACH + 1):
        turn.call(partial(seen.append, number))
    await until(lambda: len(seen) > CALLS_EACH)
    assert seen == list(range(-1, CALLS_EACH + 1))


async def test_what_begins_in_its_turn_and_has_more_begun_makes_no_second_turn() -> None:
    turns = LoopTurns(AT_A_TIME)
    begun: list[int] = []

    def begin() -> None:
        begun.append(watch.turn)
        if turns.begins_now(1.0):
            begun.append(watch.turn)

    watch = Watch()
    turns.call(AT_A_TIME, lambda: None)
    for _ in range(40):
        turns.call(1.0, partial(begin))
    stop = watch.count_turns()
    await until(lambda: not turns.waiting)
    stop()
    assert max(Counter(begun).values()) <= AT_A_TIME + 1
