"""HttpEvents: drains /kv_cache_events of TensorRT-LLM's OpenAI server.

The engine tells each event once, to whoever asks: two readers steal from each other, which shows as
holes in the numbers.
"""

import asyncio
from collections import deque
from typing import Any

import aiohttp
import msgspec

from .pulled_call import NO_EVENTS, EventsEnded, EventsLost, EventsRefused, PulledCall
from .trtllm_events import TrtllmEvents

PATH = "/kv_cache_events"
FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.1
"""Between two questions: doubled while there is nothing new."""
TIMEOUT_S = 5.0
MAX_BYTES = 256 << 20

_decode = msgspec.json.Decoder(list[dict[str, Any]]).decode


class HttpEvents:
    """A Subscriber, with one connection from the first call to `close`."""

    event_source = "http"

    def __init__(self, url: str) -> None:
        """`url` is http://HOST:PORT or https://HOST:PORT."""
        self._url = url.rstrip("/") + PATH
        self._events = TrtllmEvents()
        self._session: aiohttp.ClientSession | None = None
        self._held: deque[bytes] = deque()  # batches that were drained, and not told yet

    def subscribe_kv_events(self, start: int) -> PulledCall:
        """What is drained from now on; nothing can be had again."""

        async def open() -> None:
            if self._session is None:
                self._session = aiohttp.ClientSession(
                    timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)
                )
            await self._drain()

        async def pull() -> bytes:
            pause_s = FIRST_PAUSE_S
            while not self._held:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                await self._drain()
            return self._held.popleft()

        return PulledCall(open, pull)

    async def close(self) -> None:
        """Let go of the connection. Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _drain(self) -> None:
        """Hold what is new. EventsEnded if the engine did not hear the question, EventsLost if it
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
                if back_to == 0:  # else they are old ones, or nobody knows what goes before them
                    self._held.extend(self._events.batches(events))
                raise lost
            self._held.extend(self._events.batches(events))
        except aiohttp.ClientConnectorError as error:
            raise EventsEnded(f"{PATH}: {error}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._lose(f"{PATH}: {error or type(error).__name__}") from error
        except (msgspec.DecodeError, *NO_EVENTS) as error:
            raise self._lose(f"{PATH} cannot be read: {error}") from error

    def _lose(self, reason: str) -> EventsLost:
        """Begin anew: what the engine told last is lost, or another one answers."""
        self._events.forget()
        self._held.clear()
        return EventsLost(reason)
