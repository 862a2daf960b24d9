"""Requests while something befalls the processes behind them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from support.polling import DEADLINE_S, until

ONE_OF_MANY_S = 4 * DEADLINE_S


class RequestLoad:
    """Requests one after the other; the first that fails ends it."""

    def __init__(self, ask: Callable[[int], Awaitable[object]]) -> None:
        """`ask` sends one request, by its number, and raises if it fails."""
        self._ask = ask
        self.done = 0
        self.task = asyncio.create_task(self._run())

    async def more(self, count: int = 10) -> None:
        """Return once so many further requests were answered."""
        wanted = self.done + count
        await until(lambda: self.task.done() or self.done >= wanted, ONE_OF_MANY_S)
        if self.task.done():
            await self.task

    async def _run(self) -> None:
        while True:
            await self._ask(self.done)
            self.done += 1


@asynccontextmanager
async def request_load(ask: Callable[[int], Awaitable[object]]) -> AsyncIterator[RequestLoad]:
    """Requests from the block's beginning to its end, none of which may fail."""
    load = RequestLoad(ask)
    try:
        await load.more()
        yield load
        await load.more()
    finally:
        load.task.cancel()
        await asyncio.wait([load.task])
