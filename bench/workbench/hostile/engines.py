"""The engines of the hostile benchmark, as a process: each answers at a steady pace, however many
it serves, until a signal makes it misbehave.

Run with BEHAVIOUR COUNT. Prints the addresses of COUNT engines. SIGUSR1 has them misbehave from now
on, SIGUSR2 no longer.
"""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import uvloop

from ....workers.channels import MAX_MESSAGE_BYTES
from ....workers.trtllm_proto import pb
from ...load import engine_methods, serve_until_killed

ON, OFF = signal.SIGUSR1, signal.SIGUSR2
"""make a process misbehave, and stop that"""

STEADY = "steady"
WORD = 300
"""The token that they answer: it has a text, so that the OpenAI port shows each as it comes."""
TOKENS = 8
"""of an answer, unless it is asked for more than SHORT"""
TOKEN_S = 0.01
"""between messages of such an answer; those of a longer one come as fast as they are read"""
LONG_CHUNK_TOKENS = 16_000
"""in each message of that: a few fill all buffers on the way to a client that reads none"""
SHORT = 1000
LONG_REQUEST_BYTES = 64 << 10
"""A longer request is not read: it is answered like any other."""
DETAILS_BYTES = 20_000

Misbehaviour = Callable[[Any], Awaitable[None]]


class Switch:
    """Off until ON arrives, and again from OFF on. Made on the running loop."""

    def __init__(self) -> None:
        self._on = asyncio.Event()
        self._off = asyncio.Event()
        self._off.set()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(ON, self._set, True)
        loop.add_signal_handler(OFF, self._set, False)

    @property
    def on(self) -> bool:
        return self._on.is_set()

    async def wait(self, on: bool) -> None:
        """Until it is on, or off."""
        await (self._on if on else self._off).wait()

    def _set(self, on: bool) -> None:
        first, second = (self._off, self._on) if on else (self._on, self._off)
        first.clear()
        second.set()


async def _fail(context: Any) -> None:
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not ready")


async def _empty(context: Any) -> None:
    """OK, and an empty answer."""


async def _hang(context: Any) -> None:
    await asyncio.Event().wait()


async def _details(context: Any) -> None:
    await context.abort(grpc.StatusCode.INTERNAL, "x" * DETAILS_BYTES)


async def _large(context: Any) -> None:
    await context.write(bytes(MAX_MESSAGE_BYTES + 1))


MISBEHAVIOURS: dict[str, Misbehaviour] = {
    "fail": _fail,
    "empty": _empty,
    "hang": _hang,
    "details": _details,
    "large": _large,
}


def _methods(switch: Switch, misbehave: Misbehaviour | None) -> dict[str, Any]:
    first, long, last = (pb.GenerateResponse() for _ in range(3))
    first.chunk.token_ids.append(WORD)
    long.chunk.token_ids.extend([WORD] * LONG_CHUNK_TOKENS)
    last.complete.output_token_ids.extend([WORD] * TOKENS)
    chunk, long_chunk, complete = (m.SerializeToString() for m in (first, long, last))

    async def generate(request: bytes, context: Any) -> None:
        if switch.on and misbehave is not None:
            await misbehave(context)
            return
        asked = TOKENS
        if len(request) < LONG_REQUEST_BYTES:
            asked = pb.GenerateRequest.FromString(request).max_tokens
        if asked > SHORT:
            for _ in range(asked):
                await context.write(long_chunk)
        else:
            for _ in range(TOKENS):
                await context.write(chunk)
                await asyncio.sleep(TOKEN_S)
        await context.write(complete)

    return engine_methods(generate)


async def main(behaviour: str, count: str) -> None:
    """Serve until the process is ended."""
    switch = Switch()
    options = (
        ("grpc.so_reuseport", 0),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.server.max_pending_requests", 1 << 16),
        ("grpc.server.max_pending_requests_hard_limit", 1 << 16),
    )
    methods = _methods(switch, MISBEHAVIOURS.get(behaviour))
    await serve_until_killed(methods, int(count), options)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
