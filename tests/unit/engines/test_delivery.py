"""Messages given to a function as they come: the same as if somebody had iterated the call."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.transport.http2 import CallError, Fault, Outcome, load_library
from dynamo_router.transport.http2._streams import Stream
from dynamo_router.transport.http2.client_call import ClientCall
from dynamo_router.workers.channels import deliver

MESSAGES = st.sampled_from([b"taken", b"written", b"waits", b"refused"])
STEPS = st.lists(st.one_of(MESSAGES, st.sampled_from(["turn", "go on"])), max_size=20)
ENDS = st.sampled_from(["well", "failed", "cancelled"])


class Engine:
    """The channel and the connection of a call."""

    max_message_bytes = 1 << 20
    error = CallError

    def __init__(self) -> None:
        self.taken = 0
        self.dropped = False

    def submit(self, call: ClientCall) -> None: ...
    def forget(self, call: ClientCall) -> None: ...

    def take(self, stream: Stream, size: int) -> None:
        self.taken += size

    def drop(self, stream: Stream) -> None:
        self.dropped = True


class Reader:
    """Notes what it is given. A message that `waits` is written once somebody says `go_on`."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes]] = []
        self._released = asyncio.Event()

    def take(self, message: bytes) -> bytes | None:
        self.seen.append(("take", message))
        if message == b"refused":
            raise ValueError("refused")
        return None if message == b"taken" else message.upper()

    async def write(self, message: bytes) -> None:
        self.seen.append(("write", message))
        if message == b"WAITS":
            self._released.clear()
            await self._released.wait()
        self.seen.append(("written", message))

    def go_on(self) -> None:
        self._released.set()


async def iterated(call: ClientCall) -> AsyncGenerator[bytes, None]:
    async for message in call:
        yield message


async def turns() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


async def run(steps: list[bytes | str], end: str, *, own: bool) -> tuple[object, ...]:
    engine, reader = Engine(), Reader()
    call = ClientCall(engine, (), (), b"", None)
    stream = Stream()
    call.on_begun(engine, stream)
    task = asyncio.create_task(deliver(call if own else iterated(call), reader.take, reader.write))
    for step in steps:
        if isinstance(step, bytes):
            if call.on_message(step):
                engine.take(stream, len(step))
        elif step == "go on":
            await turns()
            reader.go_on()
        else:
            await turns()
    if end == "cancelled":
        await turns()
        call.cancel()
    elif end == "failed":
        call.end(Outcome(Fault.BROKEN, 14, "gone"))
    else:
        call.end(Outcome(None, 0))
    while not task.done():
        await turns()
        reader.go_on()
    failure = asyncio.CancelledError() if task.cancelled() else task.exception()
    waited = call.cancel()
    return reader.seen, engine.taken, engine.dropped, type(failure), str(failure), waited


@pytest.fixture(autouse=True)
def library() -> None:
    if load_library().version is None:
        pytest.skip("there is no nghttp2")


@given(STEPS, ENDS)
async def test_it_is_as_if_somebody_iterated(steps: list[bytes | str], end: str) -> None:
    assert await run(steps, end, own=True) == await run(steps, end, own=False)


async def test_no_task_is_woken_for_what_is_taken() -> None:
    engine, reader = Engine(), Reader()
    call = ClientCall(engine, (), (), b"", None)
    stream = Stream()
    call.on_begun(engine, stream)
    task = asyncio.create_task(deliver(call, reader.take, reader.write))
    await turns()
    call.on_message(b"taken")
    assert reader.seen == [("take", b"taken")]
    call.end(Outcome(None, 0))
    await task


async def test_whoever_is_cancelled_with_a_message_to_write_leaves_it() -> None:
    engine, reader = Engine(), Reader()
    call = ClientCall(engine, (), (), b"", None)
    stream = Stream()
    call.on_begun(engine, stream)
    task = asyncio.create_task(deliver(call, reader.take, reader.write))
    await turns()
    call.on_message(b"written")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reader.seen == [("take", b"written")]
    call.cancel()
    assert engine.dropped
