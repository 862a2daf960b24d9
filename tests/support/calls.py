"""Calls of a streaming gRPC method that end together with the task that reads them."""

from typing import Any


async def messages_of(call: Any) -> list[Any]:
    """Every message of a streaming call.

    Cancels the call with the task: grpc.aio by itself forgets to in the first milliseconds of a
    call, and the server would go on with it.
    """
    try:
        return [message async for message in call]
    finally:
        call.cancel()
