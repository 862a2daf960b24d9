"""TranslatedCall: a generation at a service whose messages are translated as they come."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Protocol

from ...base.errors import WorkerError
from ...transport.http2 import ClientCall
from ..dialects import TrtllmAnswer, failure_of
from ..failures import EngineCallError

LONG_BYTES = 8 << 10
"""A longer message has lists of logprobs, mostly: to read it would hold the event loop."""


class Reader(Protocol):
    """Reads one answer, streamed or whole."""

    answer: TrtllmAnswer
    done: bool
    """nothing more is to come"""

    def read(self, data: bytes) -> list[bytes]:
        """The messages that one of the engine's makes. WorkerError if it cannot be read,
        EngineCallError if it says that the request failed."""
        ...

    def end(self) -> list[bytes]:
        """The messages that the end of the engine's makes."""
        ...


class Owner(Protocol):
    def forget(self, call: "TranslatedCall") -> None: ...


class TranslatedCall:
    """See EngineCall. One that was aborted ends well, with what there is of its answer."""

    def __init__(self, name: str, call: ClientCall, reader: Reader, owner: Owner) -> None:
        self.name = name
        """the id of its request"""
        self.aborted = False
        self._call, self._reader, self._owner = call, reader, owner

    def cancel(self) -> bool:
        self._owner.forget(self)
        return self._call.cancel()

    def __aiter__(self) -> AsyncGenerator[bytes, None]:
        return self._messages()

    async def _messages(self) -> AsyncGenerator[bytes, None]:
        reader = self._reader
        try:
            async for data in self._call:
                is_long = len(data) > LONG_BYTES
                found = await asyncio.to_thread(reader.read, data) if is_long else reader.read(data)
                for message in found:
                    yield message
            for message in reader.end():
                yield message
            if not reader.done and not self.aborted:
                raise WorkerError("its answer ended without a reason")
        except WorkerError as error:
            self._call.cancel()
            raise failure_of(error) from None
        except EngineCallError:
            self._call.cancel()
            if not self.aborted:
                raise
        finally:
            if self._call.outcome is not None:  # else it goes on without a reader
                self._owner.forget(self)
        if not reader.done:
            yield reader.answer.complete("cancelled")
