"""The token cache behind the routes of OpenAI's API: who finds what, and what is seen of it."""

from collections.abc import AsyncIterator

import pytest
from support.fake_engine import FakeEngine
from support.observability.exposition import families, values_of
from support.servers.openai_serving import Served, openai_serving

from dynamo_router.frontend.config import FrontendConfig

TEXT = "The same words, again and again. " * 300


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with openai_serving(FakeEngine()) as made:
        yield made


async def encoded(served: Served) -> float:
    """Characters that the tokenizer has seen of long prompts."""
    async with served.session.get(f"http://{served.server.http_address}/metrics") as answer:
        page = families(await answer.text())
    return values_of(page["dynamo_router_token_cache_characters"], "source")["tokenizer"]


async def test_routes_and_callers_share_what_tenants_do_not(served: Served) -> None:
    alice = {"x-tenant-id": "alice"}
    status, first = await served.post("/tokenize", {"prompt": TEXT}, headers=alice)
    assert status == 200 and await encoded(served) == len(TEXT)
    _, again = await served.post("/tokenize", {"prompt": TEXT}, headers=alice)
    assert again == first and await encoded(served) < len(TEXT) + 5000
    before = await encoded(served)
    completion = {"model": "tiny", "prompt": TEXT, "cache_salt": "alice"}
    status, refused = await served.post("/v1/completions", completion)
    assert status == 400 and "context length" in str(refused)  # it was tokenized
    assert await encoded(served) < before + 5000
    for headers in ({"x-tenant-id": "bob"}, {}):
        before = await encoded(served)
        _, other = await served.post("/tokenize", {"prompt": TEXT}, headers=headers)
        assert other == first and await encoded(served) == before + len(TEXT)


async def test_pools_say_whether_it_is_on(served: Served) -> None:
    _, seen = await served.get("/pools")
    assert [pool["token_cache"] for pool in seen["pools"]] == ["on"]
    config = FrontendConfig(http_frontend=0, token_cache_bytes=0)
    async with openai_serving(FakeEngine(), frontend=config) as other:
        _, seen = await other.get("/pools")
        assert [pool["token_cache"] for pool in seen["pools"]] == ["off: token_cache_bytes is 0"]
