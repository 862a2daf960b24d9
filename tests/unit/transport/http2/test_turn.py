"""When what is to be sent at the end of a turn is sent: behind the tasks that were woken in it."""

import asyncio

from dynamo_router.transport.http2.connection import Turn


async def test_who_waits_for_the_turns_end_comes_behind_tasks_that_it_woke() -> None:
    loop, turn, seen = asyncio.get_running_loop(), Turn(), list[str]()
    woken: asyncio.Future[None] = loop.create_future()

    async def wait() -> None:
        await woken
        seen.append("task")

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    turn.depth += 1
    turn.call_after(loop, lambda: seen.append("sent"))
    woken.set_result(None)
    turn.depth -= 1
    turn.end(loop)
    assert not seen
    await task
    await asyncio.sleep(0)
    assert seen == ["task", "sent"]


async def test_outside_of_a_turn_it_is_called_soon_and_once() -> None:
    loop, turn, seen = asyncio.get_running_loop(), Turn(), list[str]()
    turn.call_after(loop, lambda: seen.append("sent"))
    turn.end(loop)
    await asyncio.sleep(0)
    assert seen == ["sent"]
