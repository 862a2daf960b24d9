"""What a request leaves behind is freed at once: none of it waits for the cyclic collector."""

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import pytest
from support.fake_engine import FakeEngine, prompt
from support.rig import Rig
from support.servers.openai_serving import openai_serving

from dynamo_router.server.mock_process import MockEnginesConfig

CHAT = {"messages": [{"role": "user", "content": "a prompt of some words"}]}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


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


@pytest.mark.parametrize(
    "body",
    [
        CHAT,
        CHAT | STREAM,
        CHAT | STREAM | {"stop": ["never"]},
        CHAT | STREAM | {"n": 2},
        CHAT | STREAM | {"logprobs": True},
        {"prompt": "a prompt", "n": 2},
    ],
)
async def test_nor_do_requests_at_openais_door(body: dict[str, Any]) -> None:
    engines = MockEnginesConfig(mockers=1, speedup_ratio=1000.0)
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    async with openai_serving(mock_engines=engines, model_id="tiny") as served:

        async def ask() -> None:
            asked = {"model": "tiny", "max_tokens": 4, **body}
            async with served.session.post(served.url + path, json=asked) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()

        await ask()
        with collected() as garbage:
            for _ in range(20):
                await ask()
    assert not garbage


def test_a_circle_of_ours_is_seen() -> None:
    class Circle:
        __module__ = "dynamo_router.test"

    with collected() as garbage:
        circle = Circle()
        circle.itself = circle  # type: ignore[attr-defined]
        del circle
    assert len(garbage) == 1
