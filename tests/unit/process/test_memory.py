"""FreedMemory: trims once long requests have ended, not for each one, and leaves nothing behind."""

import asyncio
import threading

import pytest
from support.polling import until

from dynamo_router.process import memory
from dynamo_router.process.memory import LEAST_BYTES, FreedMemory, trim_memory
from dynamo_router.process.off_loop import OffLoop


async def test_memory_is_trimmed_beside_the_loop_once_long_requests_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "PAUSE_S", 0.001)
    off_loop, threads = OffLoop(), list[threading.Thread]()
    freed = FreedMemory(off_loop, lambda: threads.append(threading.current_thread()))
    freed.on_freed(LEAST_BYTES - 1)
    assert freed._timer is None
    for _ in range(3):
        freed.on_freed(LEAST_BYTES)
    await until(lambda: threads)
    assert len(threads) == 1 and threads[0] is not threading.current_thread()
    freed.on_freed(LEAST_BYTES)
    await until(lambda: len(threads) == 2)
    freed.on_freed(LEAST_BYTES)
    freed.close()
    off_loop.close()
    await asyncio.sleep(0)
    assert len(threads) == 2


def test_the_library_is_asked() -> None:
    trim_memory()
