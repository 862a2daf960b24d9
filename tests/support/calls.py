"""Calls of a streaming gRPC method: with the task that reads them, and beyond their deadline."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def messages_of(call: Any) -> list[Any]:
    """Every message of a streaming call.

    Cancels the call with the task: grpc.aio by itself forgets to in the first milliseconds of a
    call, and the server would go on with it.
    """
    try:
        return [message async for message in call]
    finally:
        call.cancel()


async def too_late(ask: Callable[[float], Awaitable[T]], reached: Callable[[], object]) -> T:
    """What came of a call whose deadline is to pass while its server has it.

    `ask` calls with a deadline in so many seconds. On a busy machine it may pass before the call
    has `reached` the server: then it is asked again, with more time.
    """
    for seconds in (0.2, 2.0, 20.0):
        result = await ask(seconds)
        if reached():
            return result
    raise AssertionError("no call reached the server")
