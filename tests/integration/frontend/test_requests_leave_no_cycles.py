"""What a request was made of goes with it: nothing is left that only the collector would find."""

import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
from support.servers.openai_serving import Served, openai_serving

from dynamo_router.server.mock_process import MockEnginesConfig

REQUESTS = 20
CHAT = {"messages": [{"role": "user", "content": "a prompt of some words"}]}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    engines = MockEnginesConfig(mockers=1, speedup_ratio=1000.0)
    async with openai_serving(mock_engines=engines, model_id="tiny") as serving:
        yield serving


@contextmanager
def kept_garbage() -> Iterator[list[object]]:
    """What only the collector finds of what was made meanwhile."""
    found: list[object] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found.extend(gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", CHAT | STREAM),
        ("/v1/chat/completions", CHAT | STREAM | {"stop": ["never"]}),
        ("/v1/chat/completions", CHAT | STREAM | {"n": 2}),
        ("/v1/chat/completions", CHAT | STREAM | {"logprobs": True}),
        ("/v1/completions", {"prompt": "a prompt", "n": 2}),
    ],
)
async def test_nothing_of_a_request_is_left_to_the_collector(
    served: Served, path: str, body: dict[str, object]
) -> None:
    async def ask() -> None:
        asked = {"model": "tiny", "max_tokens": 4, **body}
        async with served.session.post(served.url + path, json=asked) as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()

    await ask()
    with kept_garbage() as garbage:
        for _ in range(REQUESTS):
            await ask()
    ours = [each for each in garbage if type(each).__module__.startswith("dynamo_router.")]
    names = sorted(type(each).__qualname__ for each in ours)
    assert len(ours) < REQUESTS, names
