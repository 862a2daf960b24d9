"""TranslatedCall: a generation at a service whose messages are translated as they come."""

from collections.abc import AsyncGenerator
from typing import Protocol

from ...base.errors import WorkerError
from ...transport.http2 import ClientCall
from ..dialects import failure_of
from ..failures import EngineCallError
from .answers import AnswerReader


class Owner(Protocol):
    def forget(self, call: "TranslatedCall") -> None: ...


class TranslatedCall:
    """See EngineCall. One that was aborted ends well, with what there is of its answer."""

    def __init__(self, name: str, call: ClientCall, reader: AnswerReader, owner: Owner) -> None:
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
                for message in reader.read(data):
                    yield message
            if not reader.done:
                raise WorkerError("its answer ended without a reason")
        except WorkerError as error:
            self._call.cancel()
            raise failure_of(error) from None
        except EngineCallError:
            if not self.aborted:
                raise
            if not reader.done:
                yield reader.answer.complete("cancelled")
        finally:
            if self._call.outcome is not None:  # else it goes on without a reader
                self._owner.forget(self)
