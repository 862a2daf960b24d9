"""Prompts as clients give them, and what they are told of those that are none."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from dynamo_router.base.errors import InvalidRequestError
from dynamo_router.engines.mocker import OWN_MODEL
from dynamo_router.frontend.engine_requests import MOST_PROMPTS, PromptReader
from dynamo_router.frontend.openai import ApiError, ChatRequest, api_error
from dynamo_router.frontend.processor import NO_TENANT, ChatTemplate, ModelText
from dynamo_router.server.dispatch import RequestReader


@pytest.fixture
def reader() -> Iterator[RequestReader]:
    made = RequestReader(16)
    yield made
    made.close()


@pytest.fixture
def text(reader: RequestReader) -> ModelText:
    return ModelText(OWN_MODEL, reader.off_loop)


@pytest.fixture
def prompts(text: ModelText, reader: RequestReader) -> PromptReader:
    return PromptReader(text, reader)


async def read(prompts: PromptReader, given: Any) -> list[list[int]]:
    raw = msgspec.Raw(json.dumps(given).encode())
    return [list(each) for each in await prompts.read(raw, "prompt", NO_TENANT)]


async def test_texts_and_token_ids_may_stand_in_one_list(
    prompts: PromptReader, text: ModelText
) -> None:
    said = list(await text.encode("said", add_special_tokens=True))
    assert await read(prompts, "said") == [said]
    assert await read(prompts, [5, 6]) == [[5, 6]]
    assert await read(prompts, [[5, 6], "said", [7]]) == [[5, 6], said, [7]]


@pytest.mark.parametrize(
    "given, words",
    [
        ([5, "said"], "prompt"),
        (["said", 5], "a list of either"),
        ([[5, "said"]], "a list of either"),
        ([["said"]], "a list of either"),
        (["said", [-1]], "no token id"),
        (["said", None], "a list of either"),
        ([], "1 to"),
        (["said"] * (MOST_PROMPTS + 1), "1 to"),
    ],
)
async def test_lists_that_are_no_prompts(prompts: PromptReader, given: Any, words: str) -> None:
    with pytest.raises(ApiError, match=words) as found:
        await read(prompts, given)
    assert found.value.status == 400 and found.value.param == "prompt"


async def test_a_client_is_told_what_its_template_refuses(
    prompts: PromptReader, text: ModelText
) -> None:
    text.template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    request = ChatRequest(model="m", messages=[{"role": "user", "content": "Hi"}])
    with pytest.raises(InvalidRequestError) as found:
        await prompts.of_chat(request, NO_TENANT)
    told = api_error(found.value)
    error = told.body["error"]
    assert told.status == 400 and error.pop("message").endswith("roles must alternate")
    assert error == {"type": "invalid_request_error", "param": "messages", "code": None}


async def test_fields_that_are_variables_of_the_template_reach_it(
    prompts: PromptReader, text: ModelText
) -> None:
    text.template = ChatTemplate("{{ documents[0].title }}, {{ reasoning_effort }}", {})
    ask = [{"role": "user", "content": "Hi"}]
    request = ChatRequest(
        model="m", messages=ask, documents=[{"title": "Ulm"}], reasoning_effort="low"
    )
    assert text.decode(await prompts.of_chat(request, NO_TENANT)) == "Ulm, low"
    text.template = ChatTemplate("{% if documents is none %}none{% endif %}", {})
    bare = ChatRequest(model="m", messages=ask)
    assert text.decode(await prompts.of_chat(bare, NO_TENANT)) == "none"


async def test_documents_that_the_template_leaves_out_are_refused(
    prompts: PromptReader, text: ModelText
) -> None:
    text.template = ChatTemplate("{{ messages[0].content }}", {})
    ask = [{"role": "user", "content": "Hi"}]
    with pytest.raises(ApiError, match="reads no documents") as caught:
        await prompts.of_chat(ChatRequest(model="m", messages=ask, documents=[{}]), NO_TENANT)
    assert caught.value.status == 400 and caught.value.body["error"]["param"] == "documents"
    for nothing in ([], None):
        request = ChatRequest(model="m", messages=ask, documents=nothing)
        assert text.decode(await prompts.of_chat(request, NO_TENANT)) == "Hi"


LARGE = [{"role": "user", "content": "a"}] * 600


async def test_large_requests_are_read_and_rendered_off_the_loop(
    prompts: PromptReader, reader: RequestReader
) -> None:
    """And the same as small ones."""

    async def steps(messages: list[dict[str, Any]], **more: Any) -> int:
        body = json.dumps({"model": "m", "messages": messages, **more}).encode()
        before = reader.off_loop.runs
        request = await prompts.request(body, ChatRequest)
        assert len(request.messages) == len(messages)
        await prompts.render(request.messages, request, NO_TENANT, len(body))
        return reader.off_loop.runs - before

    assert await steps(LARGE[:3]) == 0
    assert await steps(LARGE) >= 2
    assert await steps(LARGE[:1], chat_template_kwargs={"x": "y" * 20_000}) >= 2


async def test_numbers_are_written_as_any_encoder_does(
    prompts: PromptReader, reader: RequestReader
) -> None:
    lists: list[list[float]] = [[], [1], [0.5, -2.25, 1e-9], list(range(10_000))]
    before = reader.off_loop.runs
    written = await prompts.as_json(lists)
    assert [json.loads(each) for each in written] == lists
    ids = [np.arange(count, dtype=np.uint32) for count in (0, 1, 10_000)]
    assert [json.loads(each) for each in await prompts.as_json(ids)] == [
        each.tolist() for each in ids
    ]
    assert reader.off_loop.runs == before + 2


async def test_a_body_that_costs_a_decoder_much_is_refused_and_text_is_not(
    reader: RequestReader,
) -> None:
    for fine in ({"a": "x, [y] " * 100_000}, {"a": [1] * 200_000}, {"a": ["x"] * 30_000}):
        await reader.check_json(json.dumps(fine).encode())
    for much in ({"a": [1] * 300_000}, {"a": ["x"] * 40_000}, {"a": [{}] * 50_000}):
        with pytest.raises(InvalidRequestError, match="more than"):
            await reader.check_json(json.dumps(much).encode())
    assert reader.hits.counts()["json_parts"] == 3
