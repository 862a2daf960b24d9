"""Embeddings over real sockets: OpenAI's own client, and what is refused."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import openai
import pytest
from support.fake_engine import FakeEngine
from support.polling import until
from support.servers.openai_serving import Served, openai_serving

from dynamo_router.workers.trtllm_proto import pb

MODEL = "tiny"


async def halves(body: bytes, context: Any) -> bytes:
    """The half of each token id, which floats of 32 bits have exactly."""
    request = pb.EmbedRequest.FromString(body)
    ids = list(request.tokenized.input_token_ids)
    response = pb.EmbedResponse(request_id=request.request_id, prompt_tokens=len(ids))
    response.embedding.extend(each / 2 for each in ids)
    answer: bytes = response.SerializeToString()
    return answer


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine(worker_id=7)
    engine.embed = halves
    return engine


@pytest.fixture
async def served(engine: FakeEngine) -> AsyncIterator[Served]:
    async with openai_serving(engine) as made:
        yield made


@pytest.mark.parametrize("form", ["float", "base64", openai.omit])
async def test_vectors_in_order_in_either_form(served: Served, form: Any) -> None:
    found = await served.client.embeddings.create(
        model=MODEL, input=[[1, 2, 3], [5]], encoding_format=form
    )
    vectors = [each.embedding for each in found.data]
    if form == "base64":
        assert all(isinstance(each, str) for each in vectors)
    else:
        assert vectors == [[0.5, 1.0, 1.5], [2.5]]
    assert [each.index for each in found.data] == [0, 1] and found.model == MODEL
    assert found.usage.prompt_tokens == found.usage.total_tokens == 4


async def test_texts_and_lists_of_them(served: Served) -> None:
    create = served.client.embeddings.create
    one = await create(model=MODEL, input="hello world")
    two = await create(model=MODEL, input=["hello world", "another"])
    assert two.data[0].embedding == one.data[0].embedding and len(two.data) == 2
    ids = await create(model=MODEL, input=[1, 2])
    assert ids.data[0].embedding == [0.5, 1.0]


async def test_engines_that_do_not_embed(served: Served, engine: FakeEngine) -> None:
    async def refuse(body: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such method")
        raise AssertionError

    engine.embed = refuse
    with pytest.raises(openai.NotFoundError, match="make no embeddings"):
        await served.client.embeddings.create(model=MODEL, input="a")


async def test_a_client_that_leaves_ends_it(served: Served, engine: FakeEngine) -> None:
    entered, ended = asyncio.Event(), asyncio.Event()

    async def hang(body: bytes, context: Any) -> bytes:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    engine.embed = hang
    asking = asyncio.ensure_future(served.client.embeddings.create(model=MODEL, input="a"))
    await until(entered.is_set)
    asking.cancel()
    await until(ended.is_set)
    await until(lambda: served.server.dispatcher.in_flight == 0)


@pytest.mark.parametrize(
    "fields, status, words",
    [
        ({}, 400, "input"),
        ({"input": 3}, 400, "input must be a text"),
        ({"input": []}, 400, "1 to 128 entries"),
        ({"input": [""]}, 400, "input[0] is empty"),
        ({"input": "a", "dimensions": 5}, 400, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, 400, "encoding_format"),
        ({"input": "a", "model": "other"}, 404, "does not exist; there is: tiny"),
    ],
)
async def test_what_is_refused(served: Served, fields: Any, status: int, words: str) -> None:
    found, told = await served.post("/v1/embeddings", {"model": MODEL, **fields})
    assert found == status and words in told["error"]["message"], told
