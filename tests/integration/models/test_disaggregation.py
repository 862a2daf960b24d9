"""Models whose prompts prefill workers compute, and whose answers come from decode workers."""

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from support.polling import until
from support.servers.discovered_fleet import Backend, on_stores, registered
from support.servers.model_serving import TINY, ModelClient, model_serving

from dynamo_router.router.admission.limits import AdmissionConfig
from dynamo_router.router.admission.tenants import TenantConfig
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.disagg import DisaggConfig
from dynamo_router.workers.records import DECODE

KINDS = ("prefill", "decode")
ALWAYS = DisaggConfig(disagg="always")


def serving(backend: Backend, kind: str, model: str, count: int = 2, **more: Any) -> Any:
    """Mock engines of one kind."""
    config = {"model_id": model, "engine": TINY, "disaggregation_mode": kind, **more}
    return registered(backend, count, **config)


async def ready(client: ModelClient, **models: int) -> None:
    """Wait until each model has so many workers that can answer."""

    def there() -> bool:
        pools = [pool for pool in client.server.models.pools if pool.answers]
        shares = Counter[str]()
        for pool in pools:
            shares[pool.name.model] += int(pool.share)
        return all(shares[model] == count for model, count in models.items())

    await until(there)


async def ways(client: ModelClient, model: str, count: int, **more: Any) -> set[tuple[int, int]]:
    """(prefill worker, decode worker) of so many requests that were answered whole."""
    found = set()
    for number in range(count):
        status, body = await client.complete(model, f"request {number}", **more)
        assert status == 200, body
        assert body["usage"]["completion_tokens"] == 4, body
        told = body["nvext"]["worker_id"]
        found.add((told.get("prefill_worker_id"), told["decode_worker_id"]))
    return found


def needing_nobody(backend: Backend, kind: str) -> None:
    """Let the cards of this kind say that their workers can do without others."""
    for path in (Path(backend.environ["DYN_FILE_KV"]) / "v1" / "mdc").iterdir():
        told = json.loads(path.read_text())
        if told["card_json"].get("worker_type") == kind:
            told["card_json"]["needs"] = []
            path.write_text(json.dumps(told))


@on_stores("file", "etcd")
@pytest.mark.parametrize("dialect", ["trtllm", "dynamo"])
async def test_two_models_go_from_prefill_to_decode_workers_of_their_own(
    backend: Backend, dialect: str
) -> None:
    more = {"dialect": dialect}
    async with (
        serving(backend, "prefill", "a", **more) as prefill_a,
        serving(backend, "decode", "a", **more) as decode_a,
        serving(backend, "prefill", "b", **more) as prefill_b,
        serving(backend, "decode", "b", **more) as decode_b,
        model_serving(backend, disagg=ALWAYS) as client,
    ):
        await ready(client, a=2, b=2)
        _, listed = await client.get("/v1/models")
        assert [model["id"] for model in listed["data"]] == ["a", "b"]
        for model, first, then in (("a", prefill_a, decode_a), ("b", prefill_b, decode_b)):
            found = await ways(client, model, 12)
            assert {each for each, _ in found} == set(first.worker_ids)
            assert {each for _, each in found} == set(then.worker_ids)
        _, body = await client.get("/pools")
        assert body["refused"] == []
        partners = {
            (pool["model"], pool["worker_type"]): len(pool["prefill_pools"])
            for pool in body["pools"]
        }
        assert partners == {(m, k): int(k == "decode") for m in "ab" for k in KINDS}


@pytest.mark.parametrize("dialect", ["trtllm", "dynamo"])
async def test_an_answer_is_that_of_workers_that_do_both(backend: Backend, dialect: str) -> None:
    """Its tokens, whole or streamed, and the usage; the prompt's cache is that of its prefill."""
    prompt = list(range(100, 180))
    asked = {"seed": 3, "max_tokens": 9}
    async with (
        registered(backend, 1, model_id="both", engine=TINY, dialect=dialect),
        serving(backend, "prefill", "a", 1, dialect=dialect),
        serving(backend, "decode", "a", 1, dialect=dialect),
        model_serving(backend, disagg=ALWAYS) as client,
    ):
        await ready(client, a=1, both=1)
        _, plain = await client.complete("both", prompt, **asked)
        status, split = await client.complete("a", prompt, **asked)
        assert status == 200, split
        assert split["choices"] == plain["choices"]
        assert split["usage"] == plain["usage"]
        again = (await client.complete("a", prompt, **asked))[1]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 64
        body = {"model": "a", "prompt": prompt, "stream": True, **asked}
        async with client.session.post(f"{client.url}/v1/completions", json=body) as answer:
            lines = (await answer.text()).splitlines()
        events = [json.loads(line[6:]) for line in lines if line[:7] == "data: {"]
        text = "".join(each["choices"][0]["text"] for each in events)
        assert text == plain["choices"][0]["text"]
        pools = client.server.models.pools
        await until(lambda: not any(pool.in_flight for pool in pools))


async def test_decode_workers_that_need_prefill_workers_wait_for_them(backend: Backend) -> None:
    async with serving(backend, "decode", "a"), model_serving(backend, disagg=ALWAYS) as client:
        await until(
            lambda: any(pool.states.get("ready") == 2 for pool in client.server.models.pools)
        )
        assert (await client.get("/health"))[0] == 503
        status, body = await client.complete("a")
        assert status == 503 and "prefill" in body["error"]["message"]
        async with serving(backend, "prefill", "a", 1) as prefill:
            await ready(client, a=2)
            assert {first for first, _ in await ways(client, "a", 4)} == set(prefill.worker_ids)
        await ready(client, a=0)
        assert (await client.complete("a"))[0] == 503


async def test_decode_workers_that_need_nobody_go_on_alone(backend: Backend) -> None:
    async with (
        serving(backend, "decode", "a", 1) as decode,
        model_serving(backend, disagg=ALWAYS) as client,
    ):
        needing_nobody(backend, DECODE)
        await ready(client, a=1)
        assert await ways(client, "a", 2) == {(None, decode.worker_ids[0])}
        async with serving(backend, "prefill", "a", 1) as prefill:
            await until(
                lambda: any(p.partners and p.partners[0].share for p in client.server.models.pools)
            )
            assert await ways(client, "a", 2) == {(prefill.worker_ids[0], decode.worker_ids[0])}


async def test_a_rolling_update_keeps_partners_together(backend: Backend) -> None:
    """Workers of one generation never go on with what one of the other computed: mock engines
    refuse that, and would fail the request."""
    wider = replace(TINY, block_size=32)
    async with model_serving(
        backend, disagg=ALWAYS, router=KvRouterConfig(use_kv_events=False)
    ) as client:
        async with (
            serving(backend, "prefill", "a") as prefill_old,
            serving(backend, "decode", "a") as decode_old,
        ):
            await ready(client, a=2)
            async with (
                serving(backend, "prefill", "a", 1, engine=wider) as prefill_new,
                serving(backend, "decode", "a", 1, engine=wider) as decode_new,
            ):
                await ready(client, a=3)
                old = {(p, d) for p in prefill_old.worker_ids for d in decode_old.worker_ids}
                new = {(p, d) for p in prefill_new.worker_ids for d in decode_new.worker_ids}
                seen: set[tuple[int, int]] = set()
                async with asyncio.timeout(60):
                    while not (seen & old and seen & new):
                        seen |= await ways(client, "a", 4)
                assert seen <= old | new


async def test_a_prefill_that_fails_is_computed_by_the_decode_worker(backend: Backend) -> None:
    async with (
        serving(backend, "prefill", "a", 1) as prefill,
        serving(backend, "decode", "a", 1) as decode,
        model_serving(backend, disagg=ALWAYS) as client,
    ):
        needing_nobody(backend, DECODE)
        await ready(client, a=1)
        await until(
            lambda: any(p.partners and p.partners[0].share for p in client.server.models.pools)
        )
        for engine in prefill.engines:
            await engine.kill()
        status, body = await client.complete("a")
        assert status == 200, body
        assert body["nvext"]["worker_id"] == {
            "decode_worker_id": decode.worker_ids[0],
            "decode_dp_rank": 0,
        }
        assert body["usage"]["completion_tokens"] == 4
        pools = client.server.models.pools
        await until(lambda: not any(pool.in_flight for pool in pools))


async def test_a_decision_is_made_for_each_prompt(backend: Backend) -> None:
    """By its length: a prompt of 8 tokens is computed where its answer is decoded."""
    by_length = DisaggConfig(disagg_policy="noncached", disagg_noncached_tokens=256)
    async with (
        serving(backend, "prefill", "a", 1) as prefill,
        serving(backend, "decode", "a", 1) as decode,
        model_serving(backend, disagg=by_length) as client,
    ):
        await ready(client, a=1)
        (first,), (then,) = prefill.worker_ids, decode.worker_ids
        for prompt, computed_by, reason in (
            (list(range(8)), None, "cached"),
            (list(range(1000, 1300)), first, "noncached"),
        ):
            status, body = await client.complete("a", prompt)
            assert status == 200, body
            told = body["nvext"]
            assert told["worker_id"].get("prefill_worker_id") == computed_by
            assert told["worker_id"]["decode_worker_id"] == then
            where = "local" if computed_by is None else "remote"
            assert told["disagg"]["prefill"] == where
            assert told["disagg"]["reason"] == reason


async def test_a_short_prompt_is_computed_where_its_answer_is_decoded(backend: Backend) -> None:
    """By the default settings, from the first request on."""
    async with (
        serving(backend, "prefill", "a", 2),
        serving(backend, "decode", "a", 2) as decode,
        model_serving(backend) as client,
    ):
        await ready(client, a=2)
        for number in range(6):
            status, body = await client.complete("a", [number] * 8)
            assert status == 200, body
            told = body["nvext"]
            assert "prefill_worker_id" not in told["worker_id"]
            assert told["worker_id"]["decode_worker_id"] in decode.worker_ids
            assert told["disagg"]["reason"] == "not_faster", told
            assert told["disagg"]["local_s"] < told["disagg"]["remote_s"]


async def test_without_disaggregation_decode_workers_compute_all(backend: Backend) -> None:
    async with (
        serving(backend, "decode", "a", 1) as decode,
        model_serving(backend, disagg=DisaggConfig(disagg="off")) as client,
    ):
        await ready(client, a=1)
        assert await ways(client, "a", 2) == {(None, decode.worker_ids[0])}


async def test_a_prompt_that_a_prefill_worker_computes_counts_for_its_tenant(
    backend: Backend,
) -> None:
    tenants = AdmissionConfig(tenants=TenantConfig(tenant_key="x-team"))
    router = KvRouterConfig(use_kv_events=False, seed=1, admission=tenants)
    async with (
        serving(backend, "prefill", "a", 1),
        serving(backend, "decode", "a", 1),
        model_serving(backend, disagg=ALWAYS, router=router) as client,
    ):
        await ready(client, a=1)
        body = {"model": "a", "prompt": list(range(64)), "max_tokens": 4}
        url = f"{client.url}/v1/completions"
        for team in ("red", "blue"):
            async with client.session.post(url, json=body, headers={"x-team": team}) as answer:
                assert answer.status == 200, await answer.text()
        known = []
        for pool in client.server.models.pools:
            assert pool.workers is not None
            page = pool.workers.metrics.page
            families = [each for each in page.families() if isinstance(each, Metric)]
            known += [f.samples[0].value for f in families if f.name == "dynamo_router_tenants"]
        assert sorted(known) == [0, 2]


@pytest.mark.parametrize(
    "field", ["kv_transfer_params", "bootstrap_room", "disaggregated_params", "transfer_id"]
)
async def test_what_a_client_says_of_a_handoff_is_refused(backend: Backend, field: str) -> None:
    async with serving(backend, "decode", "a", 1), model_serving(backend) as client:
        needing_nobody(backend, DECODE)
        await ready(client, a=1)
        for value in ({}, {"remote_host": "10.0.0.1"}, 0, "x"):
            status, body = await client.complete("a", **{field: value})
            assert (status, body["error"]["param"]) == (400, field), value
        body = {"model": "a", "prompt": "Hello", "max_tokens": 4}
        headers = {"x-prefiller-host-port": "10.0.0.1:80"}
        url = f"{client.url}/v1/completions"
        async with client.session.post(url, json=body, headers=headers) as answer:
            told = await answer.json()
        assert (answer.status, told["error"]["param"]) == (400, "x-prefiller-host-port")
