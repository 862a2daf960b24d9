"""Engines and clients of a router of several processes."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from support.fake_engine import FakeEngine, prompt
from support.fronts.processes import Client, Fronts
from support.processes import BUSY_S

from dynamo_router.workers.trtllm_proto import pb


async def eventually(what: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Wait until something that is asked for is true."""
    async with asyncio.timeout(BUSY_S):
        while True:
            try:
                if await what():
                    return
            except (OSError, ValueError, KeyError):  # nobody answers just now
                pass
            await asyncio.sleep(0.02)


def engine(script: Any = None) -> FakeEngine:
    """One that takes long prompts."""
    made = FakeEngine() if script is None else FakeEngine(script)
    made.model = pb.GetModelInfoResponse(model_id="fake", vocab_size=100_000, max_input_len=10_000)
    return made


def urls(*engines: FakeEngine) -> list[str]:
    return [word for each in engines for word in ("--worker", each.url)]


async def clients_of_all(served: Fronts, stack: Any) -> dict[int, Client]:
    """A client of each front, by the front's number."""
    found: dict[int, Client] = {}
    for number in range(64):
        before = {f["front"]: f["requests"] for f in await served.fronts()}
        client = await stack.enter_async_context(served.client())
        await client.answers(prompt(f"look-{number}", tokens=32))
        after = {f["front"]: f["requests"] for f in await served.fronts()}
        (front,) = [n for n in after if after[n] > before[n]]
        found.setdefault(front, client)
        if len(found) == len(after):
            return found
    raise AssertionError("the connections are all those of one front")
