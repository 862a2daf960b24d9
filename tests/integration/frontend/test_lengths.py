"""How long an answer may be: what its prompt leaves of the context, and what is refused."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from support.fake_engine import FakeEngine, complete
from support.servers.openai_serving import Served, openai_serving

from dynamo_router.frontend.config import FrontendConfig
from dynamo_router.server.caller_limits import CallerLimits
from dynamo_router.workers.trtllm_proto import pb

CONTEXT = 3000
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
IDS = {"model": "tiny", "prompt": [5] * 100}


async def whole(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
    yield complete(request, 64)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(whole)


@pytest.fixture
async def served(engine: FakeEngine) -> AsyncIterator[Served]:
    async with openai_serving(engine, context=CONTEXT) as made:
        yield made


@pytest.mark.parametrize("path, body", [(CHAT, HELLO), (COMPLETIONS, IDS)])
@pytest.mark.parametrize("more", [{}, {"max_tokens": None}, {"max_completion_tokens": None}])
async def test_an_answer_may_have_all_that_is_left(
    served: Served, engine: FakeEngine, path: str, body: Any, more: Any
) -> None:
    status, told = await served.post(path, {**body, **more})
    assert status == 200, told
    (asked,) = engine.requests
    assert asked.max_tokens == CONTEXT - len(asked.tokenized.input_token_ids) > 1024


async def test_a_list_has_what_is_left_to_each(served: Served, engine: FakeEngine) -> None:
    await served.post(COMPLETIONS, {**IDS, "prompt": [[5] * 10, [6] * 2000], "n": 2})
    assert sorted(each.max_tokens for each in engine.requests) == [1000, 1000, 2990, 2990]


async def test_a_setting_bounds_what_is_left(engine: FakeEngine) -> None:
    config = FrontendConfig(http_frontend=0, default_max_tokens=50)
    async with openai_serving(engine, context=CONTEXT, frontend=config) as served:
        for length in (100, CONTEXT - 3):
            await served.post(COMPLETIONS, {**IDS, "prompt": [5] * length})
        await served.post(COMPLETIONS, {**IDS, "max_tokens": 70})
    assert [each.max_tokens for each in engine.requests] == [50, 3, 70]


async def test_an_engine_that_says_no_context(engine: FakeEngine) -> None:
    async with openai_serving(engine, context=0) as served:
        for more in ({}, {"max_tokens": 90_000}):
            assert (await served.post(COMPLETIONS, {**IDS, **more}))[0] == 200
    assert [each.max_tokens for each in engine.requests] == [1024, 90_000]


async def test_of_engines_that_differ_each_takes_what_is_left(engine: FakeEngine) -> None:
    """The longest answer fits into the shortest context that its prompt fits into."""
    short = FakeEngine(whole, worker_id=2)
    async with openai_serving(short, context=300) as _, openai_serving(engine, context=CONTEXT):
        async with openai_serving(workers=(short.url, engine.url)) as served:
            for length in (100, 299, 300, 2000):
                status, told = await served.post(COMPLETIONS, {**IDS, "prompt": [5] * length})
                assert status == 200, told
        asked = {
            len(each.tokenized.input_token_ids): each.max_tokens
            for each in (*short.requests, *engine.requests)
        }
    assert asked == {100: 200, 299: 1, 300: 2700, 2000: 1000}


@pytest.mark.parametrize("path, field, body", [
    (COMPLETIONS, "max_tokens", IDS),
    (CHAT, "max_completion_tokens", {**HELLO, "nvext": {"token_data": [5] * 100}}),
    ("/v1/responses", "max_output_tokens", {"model": "tiny", "input": "a " * 100}),
    ("/v1/messages", "max_tokens", {**HELLO, "system": "a " * 100}),
])  # fmt: skip
async def test_of_engines_that_differ_an_answer_goes_where_it_fits(
    engine: FakeEngine, path: str, field: str, body: Any
) -> None:
    """With a length that the client gives: only the longer context has room for 500 tokens."""
    short = FakeEngine(whole, worker_id=2)
    async with openai_serving(short, context=300) as _, openai_serving(engine, context=CONTEXT):
        async with openai_serving(workers=(short.url, engine.url)) as served:
            for length in (500, 2500, 500, 20, 20, 20, 20):
                status, told = await served.post(path, {**body, field: length})
                assert status == 200, told
            status, told = await served.post(path, {**body, field: CONTEXT})
            assert status == 400 and str(CONTEXT) in str(told), told
        for each, context in ((short, 300), (engine, CONTEXT)):
            needs = [len(r.tokenized.input_token_ids) + r.max_tokens for r in each.requests]
            assert max(needs, default=0) <= context
    assert len(short.requests) + len(engine.requests) == 7
    assert [r.max_tokens for r in engine.requests][:3] == [500, 2500, 500]


@pytest.mark.parametrize("path, body, param", [
    (COMPLETIONS, {**IDS, "prompt": [5] * CONTEXT}, "prompt"),
    (COMPLETIONS, {**IDS, "prompt": [5] * (CONTEXT + 7)}, "prompt"),
    (COMPLETIONS, {**IDS, "prompt": [[5], [5] * (CONTEXT + 7)]}, "prompt"),
    (COMPLETIONS, {**IDS, "prompt": "word " * 2 * CONTEXT, "max_tokens": 5}, "prompt"),
    (CHAT, {**HELLO, "messages": [{"role": "user", "content": "a b " * CONTEXT}]}, "messages"),
    (CHAT, {**HELLO, "nvext": {"token_data": [5] * CONTEXT}}, "messages"),
])  # fmt: skip
async def test_a_prompt_that_leaves_nothing(
    served: Served, engine: FakeEngine, path: str, body: Any, param: str
) -> None:
    for more in ({}, {"stream": True}):
        status, told = await served.post(path, {**body, **more})
        error = told["error"]
        assert (status, error["code"]) == (400, "context_length_exceeded")
        assert error["type"] == "invalid_request_error" and error["param"] == param
        assert error["message"].startswith(f"This model's maximum context length is {CONTEXT} ")
    assert not engine.requests


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_an_answer_that_is_longer_than_what_is_left(
    served: Served, engine: FakeEngine, field: str
) -> None:
    assert (await served.post(COMPLETIONS, {**IDS, field: CONTEXT - 100}))[0] == 200
    with pytest.raises(openai.BadRequestError) as caught:
        await served.client.completions.create(**IDS, extra_body={field: CONTEXT - 99})
    assert caught.value.code == "context_length_exceeded" and caught.value.param == field
    for number in (CONTEXT, 100, CONTEXT - 99, CONTEXT - 100):
        assert str(number) in caught.value.message


async def test_more_tokens_at_least_than_at_most(served: Served) -> None:
    for more in ({"max_tokens": 5}, {}):
        status, told = await served.post(COMPLETIONS, {**IDS, "min_tokens": 2901, **more})
        assert (status, told["error"]["param"]) == (400, "min_tokens")


async def test_an_engine_whose_prompts_are_shorter_than_its_context(engine: FakeEngine) -> None:
    async with openai_serving(engine, context=CONTEXT) as served:
        engine.model = pb.GetModelInfoResponse(
            model_id="tiny", vocab_size=4096, max_seq_len=CONTEXT, max_input_len=1000
        )
        async with openai_serving(workers=(engine.url,)) as other:
            status, told = await other.post(COMPLETIONS, {**IDS, "prompt": [5] * 1001})
            assert (status, told["error"]["code"]) == (400, "context_length_exceeded")
            assert "1000" in told["error"]["message"] and "1001" in told["error"]["message"]
        assert (await served.post(COMPLETIONS, {**IDS, "prompt": [5] * 1001}))[0] == 200


async def test_the_limit_of_the_router_has_the_same_code(engine: FakeEngine) -> None:
    peers = CallerLimits(max_prompt_tokens=500)
    async with openai_serving(engine, context=CONTEXT, peers=peers) as served:
        for prompt in ([5] * 501, "word " * 600, ["a", "word " * 600]):
            status, told = await served.post(COMPLETIONS, {**IDS, "prompt": prompt})
            assert (status, told["error"]["code"]) == (400, "context_length_exceeded"), told
            assert "500" in told["error"]["message"]
