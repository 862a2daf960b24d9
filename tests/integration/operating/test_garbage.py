"""What a request leaves behind is freed at once: none of it waits for the cyclic collector."""

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

from support.fake_engine import FakeEngine, prompt
from support.rig import Rig


@contextlib.contextmanager
def collected() -> Iterator[list[Any]]:
    """Fills a list with what of ours only the collector would have freed."""
    found: list[Any] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += [each for each in gc.garbage if is_ours(each)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def is_ours(found: Any) -> bool:
    code = getattr(found, "cr_code", None) or getattr(found, "__code__", None)
    if code is not None:
        return "dynamo_router" in code.co_filename
    return type(found).__module__.startswith("dynamo_router.")


async def test_requests_leave_nothing_for_the_collector() -> None:
    async with Rig(FakeEngine()) as rig:
        await rig.answers(prompt("first"))
        await rig.settled()
        with collected() as garbage:
            for n in range(20):
                await rig.answers(prompt(f"r{n}"))
            await rig.settled()
    assert not garbage


def test_a_circle_of_ours_is_seen() -> None:
    class Circle:
        __module__ = "dynamo_router.test"

    with collected() as garbage:
        circle = Circle()
        circle.itself = circle  # type: ignore[attr-defined]
        del circle
    assert len(garbage) == 1
