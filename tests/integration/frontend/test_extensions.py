"""What Dynamo adds to OpenAI's requests, over real sockets: nvext, tenants, headers."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.fake_engine import FakeEngine
from support.servers.openai_serving import BLOCK, Served, openai_serving

from dynamo_router.router.admission import AdmissionConfig, TenantConfig
from dynamo_router.router.config import KvRouterConfig

MODEL = "tiny"
FIRST, SECOND = 7, 8


@pytest.fixture
def engines() -> list[FakeEngine]:
    return [FakeEngine(worker_id=FIRST), FakeEngine(worker_id=SECOND)]


@pytest.fixture
async def served(engines: list[FakeEngine]) -> AsyncIterator[Served]:
    async with openai_serving(*engines) as made:
        yield made


async def complete(served: Served, headers: Any = None, **fields: Any) -> tuple[int, Any]:
    body = {"model": MODEL, "prompt": "a prompt", "max_tokens": 2, **fields}
    return await served.post("/v1/completions", body, headers=headers or {})


@pytest.mark.parametrize("field", ["backend_instance_id", "decode_worker_id"])
async def test_a_worker_is_asked_for(served: Served, field: str) -> None:
    for worker_id in (FIRST, SECOND):
        nvext = {field: worker_id, "extra_fields": ["worker_id"]}
        status, told = await complete(served, nvext=nvext)
        assert status == 200
        assert told["nvext"] == {"worker_id": {"decode_worker_id": worker_id, "decode_dp_rank": 0}}


@pytest.mark.parametrize("header", ["x-dynamo-worker-instance-id", "x-worker-instance-id"])
async def test_a_header_goes_before(served: Served, header: str) -> None:
    nvext = {"backend_instance_id": FIRST, "extra_fields": ["worker_id"]}
    _, told = await complete(served, {header: str(SECOND)}, nvext=nvext)
    assert told["nvext"]["worker_id"]["decode_worker_id"] == SECOND


@pytest.mark.parametrize(
    ("names", "value"),
    [
        (("x-worker-instance-id", "x-dynamo-worker-instance-id"), FIRST),
        (("x-data-parallel-rank", "x-dp-rank"), 0),
        (("x-dynamo-request-priority", "x-dynamo-priority"), 1),
    ],
)
async def test_two_names_of_a_header_say_the_same(
    served: Served, names: tuple[str, str], value: int
) -> None:
    worker = {"x-dynamo-worker-instance-id": str(FIRST)}
    same = worker | dict.fromkeys(names, str(value))
    assert (await complete(served, same))[0] == 200
    status, told = await complete(served, same | {names[0]: str(value + 1)})
    assert status == 400
    assert told["error"]["message"] == f"{names[0]} and {names[1]} have different values"


async def test_what_is_asked_for_comes_back_and_nothing_else(served: Served) -> None:
    _, told = await complete(served, nvext={"extra_fields": ["timing", "decision"]})
    nvext = told["nvext"]
    assert nvext.keys() == {"timing", "overlap_blocks", "request_blocks", "cached_tokens"}
    timing = nvext["timing"]
    assert 0 <= timing["ttft_ms"] <= timing["total_time_ms"] and timing["kv_hit_rate"] == 0
    assert "nvext" not in (await complete(served))[1]


async def test_a_stream_has_it_in_a_chunk(served: Served) -> None:
    stream = await served.client.completions.create(
        model=MODEL,
        prompt="a",
        max_tokens=2,
        stream=True,
        extra_body={"nvext": {"extra_fields": ["worker_id"]}},
    )
    chunks = [each.model_dump() async for each in stream]
    (nvext,) = [each["nvext"] for each in chunks if each.get("nvext")]
    assert nvext["worker_id"]["decode_worker_id"] in (FIRST, SECOND)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_token_data_goes_before_the_text(
    served: Served, engines: list[FakeEngine], path: str
) -> None:
    ask = [{"role": "user", "content": "Hello"}]
    body = {"model": MODEL, "prompt": "a", "messages": ask, "nvext": {"token_data": [5, 6, 7]}}
    assert (await served.post(path, body))[0] == 200
    (request,) = [each for engine in engines for each in engine.requests]
    assert list(request.tokenized.input_token_ids) == [5, 6, 7]


async def test_greedy(served: Served, engines: list[FakeEngine]) -> None:
    await complete(served, nvext={"greed_sampling": True}, top_k=5)
    (request,) = [each for engine in engines for each in engine.requests]
    assert request.sampling_config.top_k == 1


async def test_tenants_share_no_cache(served: Served, engines: list[FakeEngine]) -> None:
    async def salt(headers: Any = None, **fields: Any) -> int | None:
        for engine in engines:
            engine.requests.clear()
        assert (await complete(served, headers, **fields))[0] == 200
        (request,) = [each for engine in engines for each in engine.requests]
        return request.cache_salt_id if request.HasField("cache_salt_id") else None

    alice = await salt({"x-tenant-id": "alice"})
    assert alice is not None and alice != await salt({"x-tenant-id": "bob"})
    # Wherever it is said; the header first, then nvext.
    assert alice == await salt(cache_salt="alice")
    assert alice == await salt(cache_salt="bob", nvext={"cache_salt": "alice"})
    assert alice == await salt({"x-tenant-id": "alice"}, nvext={"cache_salt": "bob"})
    assert await salt({"x-tenant-id": ""}) is None


async def test_a_header_names_the_tenant_between_whom_the_queue_is_fair() -> None:
    tenants = AdmissionConfig(tenants=TenantConfig(tenant_key="x-team"))
    router = KvRouterConfig(block_size=BLOCK, use_kv_events=False, admission=tenants)
    async with openai_serving(FakeEngine(), router=router) as served:
        for team in ("red", "blue", "red"):
            assert (await complete(served, {"X-Team": team}))[0] == 200
        shares, now = served.server.router.limits.tenants, served.server.router.clock.now()
        assert len(shares) == 2
        use = shares.recent_use(now)
        assert 0.5 < use.largest < 1.0  # two of three like requests, the last one among them


@pytest.mark.parametrize(
    "nvext, param",
    [
        ({"nonsense": 1}, "nvext"),
        ({"annotations": ["token_ids"]}, "nvext.annotations"),
        ({"use_raw_prompt": True}, "nvext.use_raw_prompt"),
        ({"extra_fields": ["engine_data"]}, "nvext.extra_fields"),
        ({"backend_instance_id": -1}, "nvext.backend_instance_id"),
        ({"token_data": [-1]}, "nvext.token_data"),
        ({"token_data": "abc"}, "nvext.token_data"),
        ({"prefill_worker_id": 7}, "nvext.prefill_worker_id"),
        ({"agent_hints": {"speculative_prefill": True}}, "nvext.agent_hints"),
    ],
)
async def test_what_cannot_be_had_is_refused(served: Served, nvext: Any, param: str) -> None:
    status, told = await complete(served, nvext=nvext)
    assert status == 400 and told["error"]["param"] == param, told


async def test_a_worker_that_is_not_there(served: Served) -> None:
    status, told = await complete(served, nvext={"backend_instance_id": 99})
    assert status == 400 and "99" in told["error"]["message"]
