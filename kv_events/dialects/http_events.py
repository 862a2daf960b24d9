"""HttpEvents: drains /kv_cache_events of TensorRT-LLM's OpenAI server.

The engine gives each event once, to the first reader that asks: two readers steal from each other,
which shows as holes in the numbers.
"""

import asyncio
from collections import deque
from itertools import pairwise
from typing import Any

import aiohttp
import msgspec

from ...indexer.wire import EngineBatch, EngineEvents
from .pulled_call import EventsEnded, EventsLost, EventsRefused, PulledCall
from .trtllm_events import RankEvents, TrtllmEvents

PATH = "/kv_cache_events"
FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.1
"""Between two questions: doubled while there is nothing new."""
TIMEOUT_S = 5.0
MAX_BYTES = 256 << 20

_DAMAGED = (
    AttributeError, KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError,
)  # fmt: skip
"""What reading something else than events raises, or events that nest too deep."""
_decode = msgspec.json.Decoder(list[dict[str, Any]]).decode


class HttpEvents:
    """A Subscriber, with one connection from the first call to `close`."""

    def __init__(self, url: str, block_size: int) -> None:
        """`url` is http://HOST:PORT or https://HOST:PORT."""
        self._url = url.rstrip("/") + PATH
        self._events = TrtllmEvents(block_size)
        self._batches = EngineEvents(block_size)
        self._sequence = 0  # of the last batch: they are numbered here, from 1
        self._session: aiohttp.ClientSession | None = None
        self._held: deque[EngineBatch] = deque()  # drained, and not read yet

    def subscribe_kv_events(self, start: int) -> "HttpSubscription":
        """What is drained from now on; nothing can be had again."""
        return HttpSubscription(self)

    async def open(self) -> None:
        """Connect, and drain what is there."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S))
        await self._drain()

    async def next(self) -> EngineBatch:
        """The next batch; the engine is asked until it has one."""
        pause_s = FIRST_PAUSE_S
        while not self._held:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            await self._drain()
        return self._held.popleft()

    async def close(self) -> None:
        """Let go of the connection. Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _drain(self) -> None:
        """Hold what is new. EventsEnded if the question did not reach the engine, EventsLost if it
        may have answered, or begins anew."""
        assert self._session is not None
        try:
            async with self._session.get(self._url) as answer:
                if answer.status in (404, 405, 501):
                    raise EventsRefused(f"it has no {PATH}: {answer.status}")
                if answer.status in (429, 503):  # before it looked
                    raise EventsEnded(f"{PATH} answered {answer.status}")
                if answer.status != 200:
                    raise self._lose(f"{PATH} answered {answer.status}")
                body = bytearray()
                async for part in answer.content.iter_chunked(1 << 16):
                    body += part
                    if len(body) > MAX_BYTES:
                        raise ValueError(f"more than {MAX_BYTES} bytes")
            events = _decode(body)
            back_to = self._events.back_to(events)
            if back_to is not None:
                lost = self._lose("the engine was started anew")
                if back_to == 0:  # else they are old ones, or what goes before them is unknown
                    self._hold(events)
                raise lost
            self._hold(events)
        except aiohttp.ClientConnectorError as error:
            raise EventsEnded(f"{PATH}: {error}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._lose(f"{PATH}: {error or type(error).__name__}") from error
        except (msgspec.DecodeError, *_DAMAGED) as error:
            raise self._lose(f"{PATH} cannot be read: {error}") from error

    def _hold(self, events: list[dict[str, Any]]) -> None:
        for run in self._events.translate(events):
            self._sequence += 1
            self._held.append(self._batch(run))

    def _batch(self, run: RankEvents) -> EngineBatch:
        batch = self._batches.read(msgspec.msgpack.encode([0, run.events]), self._sequence)
        if batch is None:
            raise ValueError("events of another form")
        numbers = run.numbers
        head = batch.head._replace(
            dp_rank=run.rank,
            first_id=numbers[0] + 1,
            last_id=numbers[-1] + 1,
            hole=any(after > before + 1 for before, after in pairwise(numbers)),
        )
        return batch._replace(head=head)

    def _lose(self, reason: str) -> EventsLost:
        """Begin anew: the engine's last answer is lost, or another engine answers."""
        self._events.forget()
        self._batches.forget()
        self._sequence = 0
        self._held.clear()
        return EventsLost(reason)


class HttpSubscription(PulledCall[EngineBatch]):
    """Reads what an HttpEvents drains."""

    def __init__(self, events: HttpEvents) -> None:
        super().__init__()
        self._events = events

    async def initial_metadata(self) -> None:
        await self._events.open()

    async def _pull(self) -> EngineBatch:
        return await self._events.next()
