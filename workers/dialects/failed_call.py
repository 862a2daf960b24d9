"""Failures of calls in gRPC's words, whatever the dialect.

Over gRPC an engine says them itself; elsewhere they are made here, so that dispatch judges all by
one table.
"""

from collections.abc import AsyncGenerator

from ...base.errors import InvalidRequestError, StatusCode, WorkerError
from ..failures import EngineCallError, Origin


class FailedCall:
    """A call that failed before it began; see EngineCall."""

    def __init__(self, failure: Exception) -> None:
        self._failure = failure

    def cancel(self) -> bool:
        return False

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        raise self._failure
        yield b""


def unimplemented(text: str) -> EngineCallError:
    """What an engine is asked for that its dialect has no word for."""
    return EngineCallError(Origin.ENGINE, StatusCode.UNIMPLEMENTED, text)


def failure_of(error: BaseException) -> BaseException:
    """What the reader of a call gets for an error that is none of gRPC's."""
    if isinstance(error, InvalidRequestError):
        return EngineCallError(Origin.ENGINE, StatusCode.INVALID_ARGUMENT, str(error))
    if isinstance(error, WorkerError):
        return EngineCallError(Origin.ENGINE, StatusCode.INTERNAL, str(error))
    if isinstance(error, TimeoutError):
        text = "no answer by the deadline"
        return EngineCallError(Origin.DEADLINE, StatusCode.DEADLINE_EXCEEDED, text)
    return error
