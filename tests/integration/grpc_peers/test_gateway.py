"""A gateway that takes the router for a TensorRT-LLM server: SMG, on tonic and hyper."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from support.fake_engine import FakeEngine, chunk, complete, fail
from support.polling import until
from support.servers.grpc_peers.smg import smg_before
from support.serving import Ports, serving

from dynamo_router.workers.trtllm_proto import pb

Opener = Callable[..., Any]
Post = Callable[[dict[str, Any]], Any]
MODEL = "fake"


@pytest.fixture
def opened(tmp_path: Path) -> Opener:
    @asynccontextmanager
    async def open_gateway(engine: FakeEngine) -> AsyncIterator[tuple[Ports, Post]]:
        # As many tokens as the gateway's tokenizer has.
        engine.model = pb.GetModelInfoResponse(model_id=MODEL, vocab_size=4096, max_input_len=100)
        async with serving(engine) as ports, aiohttp.ClientSession() as session:
            async with smg_before(ports.server.grpc_address, MODEL, tmp_path) as gateway:
                yield ports, lambda body: session.post(f"{gateway}/v1/completions", json=body)

    return open_gateway


def asked(n: int = 0, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": f"call {n} of the gateway", "max_tokens": 2, **more}


async def test_requests_come_through_a_gateway(opened: Opener) -> None:
    async with opened(engine := FakeEngine()) as (_, post):

        async def ask(n: int) -> Any:
            async with post(asked(n)) as answer:
                assert answer.status == 200, await answer.text()
                return (await answer.json())["usage"]["completion_tokens"]

        assert await asyncio.gather(*(ask(n) for n in range(100))) == [2] * 100
        assert len(engine.finished) == 100


async def go_on(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
    """A token, more of them once `engine.go` is set, and an end when it is told to abort."""
    yield chunk(request, 11)
    await engine.go.wait()
    for _ in range(50):
        yield chunk(request, 12)
    await until(lambda: request.request_id in engine.aborted)
    yield complete(request, 11)


async def test_a_stream_that_is_closed_ends_at_the_engine(opened: Opener) -> None:
    """The gateway sees that its client has gone when it has something to say to it."""
    async with opened(engine := FakeEngine(go_on)) as (ports, post):
        async with post(asked(stream=True)) as answer:
            assert answer.status == 200
            await until(lambda: engine.requests)
        engine.go.set()
        await until(lambda: engine.aborted or engine.cancelled)
        await until(lambda: ports.server.router.slots.own_requests().sum() == 0)


async def test_an_error_of_an_engine_comes_through_a_gateway(opened: Opener) -> None:
    engine = FakeEngine(fail(grpc.StatusCode.INVALID_ARGUMENT, "no such thing"))
    async with opened(engine) as (_, post):
        for _ in range(3):
            async with post(asked()) as answer:
                assert answer.status >= 400
                assert "no such thing" in await answer.text()
