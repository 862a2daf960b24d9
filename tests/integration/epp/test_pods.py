"""A picker whose endpoints are the pods of an InferencePool, with Envoy in front."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.epp.engine import MODEL, Engine
from support.epp.gateway import Gateway
from support.epp.picking import BLOCK, Picking, served_picker, settings
from support.epp.pool import (
    PODS,
    POOLS,
    delete,
    objective_of,
    pod_of,
    pool_of,
    put,
    rewrite_of,
    rule_of,
)
from support.polling import until
from support.servers.kubernetes import KubernetesServer
from support.servers.kubernetes.api_server import NAMESPACE

from dynamo_router.frontend.pods_config import PodsConfig
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.disagg import DisaggConfig
from dynamo_router.server.request_limits import HandoffLimits

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
PREFILLER = "x-prefiller-host-port"


def completion(prompt: Any, **more: Any) -> bytes:
    return json.dumps({"model": MODEL, "prompt": prompt, **more}).encode()


@asynccontextmanager
async def pods_behind_envoy(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    roles: tuple[str, ...] = ("", "", ""),
    ports: int = 1,
    pods: PodsConfig = PodsConfig(pool="qwen"),  # noqa: B008  # it is frozen
    **config: Any,
) -> AsyncIterator[tuple[Picking, KubernetesServer]]:
    """A pod at each of HOSTS, with engines at as many ports, which all pods have the same."""
    pytest.importorskip("envoy")
    async with AsyncExitStack() as stack:
        engines: list[Engine] = []
        numbers: list[int] = []
        for host in HOSTS[: len(roles)]:
            for rank in range(ports):
                engine = Engine(host=host)
                engine.port = numbers[rank] if len(numbers) > rank else 0
                await stack.enter_async_context(engine)
                engines.append(engine)
                if len(numbers) <= rank:
                    numbers.append(engine.port)
        server = await stack.enter_async_context(KubernetesServer())
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(folder, "first")))
        monkeypatch.setenv("POD_NAMESPACE", NAMESPACE)
        await put(server, pool_of("qwen", *numbers))
        for host, role in zip(HOSTS, roles, strict=False):
            labels = {"app": "qwen"} | ({"llm-d.ai/role": role} if role else {})
            await put(server, pod_of(f"pod-{host[-1]}", host, labels=labels))
        found = settings((), workers=(), pods=pods, **config)
        ready = sum(role != "prefill" for role in roles) * ports
        picker = await stack.enter_async_context(served_picker(found, ready))
        pools: Any = picker.pools
        prefill = len(roles) * ports - ready
        await until(lambda: len(pools.prefill.monitor.ready_clients()) >= prefill)
        listener: Any = picker.listeners[0]
        addresses = [engine.address for engine in engines]
        envoy = Gateway(folder / "envoy", listener.address, addresses)
        stack.callback(envoy.kill)
        await envoy.come_back()
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield Picking(engines, picker, pools.workers, envoy, session), server


async def test_requests_go_to_the_pods_of_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pods_behind_envoy(tmp_path, monkeypatch, ports=2) as (served, server):

        async def used(count: int) -> set[str]:
            for engine in served.engines:
                engine.got.clear()
            for number in range(count):
                body = completion([number] * 400)
                assert (await served.post(body, "/v1/completions"))[0] == 200
            return {engine.address for engine in served.engines if engine.prompts}

        every = {engine.address for engine in served.engines}
        assert await used(18) == every, "each port of each pod is an endpoint"
        await put(server, pod_of("pod-1", HOSTS[0], ready=False))
        await delete(server, PODS, "pod-2")
        registry = served.pool.router.registry
        await until(lambda: len(registry.entries()) == 2)
        assert {address.partition(":")[0] for address in await used(6)} == {HOSTS[2]}
        await delete(server, POOLS, "qwen")
        await until(lambda: not registry.entries())
        status, headers, _ = await served.post(completion([1]), "/v1/completions")
        assert status == 503
        assert headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"
        await put(server, pool_of("qwen", served.engines[0].port))
        await until(lambda: len(served.pool.monitor.ready_clients()) == 1)
        assert await used(2) == {served.engines[4].address}
        await served.is_idle()


async def test_a_pod_that_changes_its_address_and_a_pool_without_pods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer on its way goes on from where it began; what comes next goes to the new address."""
    async with pods_behind_envoy(tmp_path, monkeypatch, ("", "")) as (served, server):
        await delete(server, PODS, "pod-2")
        registry = served.pool.router.registry
        await until(lambda: len(registry.entries()) == 1)
        before, after = served.engines
        going = asyncio.Event()
        before.step = going.wait
        body = completion([1] * 400, stream=True)
        asked = asyncio.create_task(served.post(body, "/v1/completions"))
        await until(lambda: len(before.prompts) == 1)
        await put(server, pod_of("pod-1", HOSTS[1]))

        def has_moved() -> bool:
            return served.pool.monitor.ready_clients() != () and [
                entry.address for entry in registry.entries() if entry.state.value == "ready"
            ] == [after.address]

        await until(has_moved)
        assert (await served.post(body, "/v1/completions"))[0] == 200
        assert len(after.prompts) == 1
        going.set()
        status, _, answer = await asked
        assert (status, answer) == (200, b"".join(before.events(body)))
        await served.is_idle()
        await delete(server, PODS, "pod-1")
        await until(lambda: not registry.entries())
        status, headers, _ = await served.post(body, "/v1/completions")
        assert status == 503
        assert headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"


async def test_what_was_cached_of_a_pod_is_forgotten_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another pod gets its address."""
    async with pods_behind_envoy(tmp_path, monkeypatch, ("",)) as (served, server):
        tokens = list(range(100, 100 + 8 * BLOCK))
        assert (await served.post(completion(tokens), "/v1/completions"))[0] == 200
        await until(lambda: served.pool.router.overlaps(tokens))
        await delete(server, PODS, "pod-1")
        await put(server, pod_of("pod-9", HOSTS[0]))
        await until(lambda: not served.pool.router.overlaps(tokens))
        await until(lambda: bool(served.pool.monitor.ready_clients()))
        assert (await served.post(completion([1, 2]), "/v1/completions"))[0] == 200


async def test_events_of_pods_come_from_their_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that publishes none has its cache predicted."""
    from support.kv_events.engine_events import stored
    from support.kv_events.zmq_publisher import ZmqPublisher

    tokens = list(range(100, 100 + 8 * BLOCK))
    router = KvRouterConfig(block_size=BLOCK, seed=1)
    async with ZmqPublisher() as publisher:
        pods = PodsConfig(
            pool="qwen", events_port=publisher.port, events_replay_port=publisher.replay_port
        )
        async with pods_behind_envoy(tmp_path, monkeypatch, ("", ""), pods=pods, router=router) as (
            served,
            _,
        ):
            holder = served.engines[0]
            entries = served.pool.router.registry.entries

            def sources() -> dict[str, str]:
                return {str(entry.address): entry.event_source for entry in entries()}

            wanted = {served.engines[0].address: "zmq", served.engines[1].address: "predicted"}
            await until(lambda: sources() == wanted)
            await publisher.publish(stored([*range(1, 9)], tokens, BLOCK))
            await until(lambda: served.pool.router.overlaps(tokens))
            for number in range(4):
                body = completion([*tokens, number])
                assert (await served.post(body, "/v1/completions"))[0] == 200
            assert len(holder.prompts) == 4


async def test_an_objective_sets_the_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pods_behind_envoy(tmp_path, monkeypatch, ("",)) as (served, server):
        await put(server, objective_of("chat", "llm-d.ai", priority=7))
        picker: Any = served.server.listeners[0]
        seen: list[int] = []
        generate = served.pool.dispatcher.generate

        async def noted(*given: Any, **more: Any) -> Any:
            seen.append(more["urgency"].priority)
            return await generate(*given, **more)

        monkeypatch.setattr(served.pool.dispatcher, "generate", noted)

        async def is_seven() -> bool:
            headers = {"x-llm-d-inference-objective": "chat"}
            assert (await served.post(completion([1]), "/v1/completions", **headers))[0] == 200
            return seen[-1] == 7

        await until(is_seven)
        assert picker is not None
        assert all(
            "x-llm-d-inference-objective" not in got.headers for got in served.engines[0].prompts
        )


async def test_a_rewrite_puts_another_model_into_the_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing else; a header that names the model goes before it."""
    async with pods_behind_envoy(tmp_path, monkeypatch, ("",), model_id="chat") as (served, server):
        (engine,) = served.engines
        body = b'{ "prompt" : [1, 2, 3], "x": 1e5, "model": "canary" , "n": 1}'

        async def status_of(data: bytes, **headers: str) -> int:
            status: int = (await served.post(data, "/v1/completions", **headers))[0]
            return status

        assert await status_of(body) == 404
        await put(server, rewrite_of("canary", "llm-d.ai", rule_of(["canary"], engine.model)))

        async def is_rewritten() -> bool:
            return await status_of(body) == 200

        await until(is_rewritten)
        assert engine.prompts[-1].body == body.replace(b"canary", engine.model.encode())
        name = {"x-llm-d-model-name-rewrite": "none"}
        assert await status_of(body, **name) == 404
        await put(server, rewrite_of("canary", "llm-d.ai", rule_of([], "nothing")))

        async def is_unknown() -> bool:
            status, _, answer = await served.post(body, "/v1/completions")
            return status == 404 and b"nothing" in answer

        await until(is_unknown)


def pairs(disagg: str, **more: Any) -> dict[str, Any]:
    router = KvRouterConfig(block_size=BLOCK, use_kv_events=False, seed=1)
    return {"disagg": DisaggConfig(disagg=disagg), "router": router, **more}


@pytest.mark.parametrize("stream", [False, True])
async def test_the_side_car_of_a_decode_pod_is_given_the_prefill_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """A client's own header is not passed on; both bookings end."""
    roles = ("prefill", "decode", "decode")
    async with pods_behind_envoy(tmp_path, monkeypatch, roles, **pairs("always")) as (served, _):
        prefill, *decode = served.engines
        pools: Any = served.server.pools
        for number in range(6):
            body = completion([number] * 400, stream=stream)
            headers = {PREFILLER: "10.9.9.9:1", "content-type": "application/json"}
            status, _, answer = await served.post(body, "/v1/completions", **headers)
            assert status == 200 and answer
        assert not prefill.prompts, "the side-car asks it, and there is none here"
        got = [each for engine in decode for each in engine.prompts]
        assert [each.headers[PREFILLER] for each in got] == [prefill.address] * 6
        await served.is_idle()
        await until(lambda: pools.prefill.prefills == 0)
        assert not sum(map(pools.prefill.router.requests_of, ids(pools.prefill)))
        decisions = 'dynamo_router_disagg_decisions_total{prefill="remote"'
        assert decisions in await served.metrics()


async def test_a_local_decision_names_no_prefill_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a request that two workers cannot share, nor one to a pod without a side-car."""
    config = DisaggConfig(
        disagg="conditional", disagg_policy="noncached", disagg_noncached_tokens=200
    )
    roles = ("prefill", "decode")
    given = pairs("off") | {"disagg": config}
    async with pods_behind_envoy(tmp_path, monkeypatch, roles, **given) as (served, server):
        _, decode = served.engines

        async def prefiller(body: bytes) -> str | None:
            headers = {PREFILLER: "10.9.9.9:1"}
            assert (await served.post(body, "/v1/completions", **headers))[0] == 200
            return decode.prompts[-1].headers.get(PREFILLER)

        assert await prefiller(completion([1] * 400)) is not None
        assert await prefiller(completion([2] * 100)) is None
        assert await prefiller(completion([3] * 400, n=2)) is None
        assert await prefiller(completion([4] * 400, prompt_logprobs=1)) is None
        assert await prefiller(completion([5] * 400, echo=True, logprobs=1)) is None
        await put(server, pod_of("pod-2", HOSTS[1], labels={"app": "qwen"}))
        pool = served.pool
        await until(lambda: bool(pool.handoffs.rule.aggregated))
        assert await prefiller(completion([6] * 400)) is None
        await put(server, pod_of("pod-1", HOSTS[0], ready=False))
        await put(
            server, pod_of("pod-2", HOSTS[1], labels={"app": "qwen", "llm-d.ai/role": "decode"})
        )
        pools: Any = served.server.pools
        await until(lambda: not pools.prefill.router.registry.entries())
        await until(lambda: not pool.handoffs.rule.aggregated)
        assert await prefiller(completion([7] * 400)) is None
        await served.is_idle()


@pytest.mark.parametrize("how", ["status", "client", "cut"])
async def test_bookings_of_both_legs_end_however_the_request_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    roles = ("prefill", "decode")
    given = pairs("always", handoff=HandoffLimits())
    async with pods_behind_envoy(tmp_path, monkeypatch, roles, **given) as (served, _):
        _, decode = served.engines
        pools: Any = served.server.pools
        body = completion([1] * 400, stream=True)
        if how == "status":
            decode.status = 502
            assert (await served.post(body, "/v1/completions"))[0] == 502
            failures = 'dynamo_router_disagg_failures_total{phase="prefill"'
            assert await served.value(f"{failures}}}") == 1
        elif how == "cut":
            decode.cut_after = 2
            with contextlib.suppress(aiohttp.ClientError):
                await served.post(body, "/v1/completions")
        else:
            with pytest.raises(TimeoutError):
                timeout = aiohttp.ClientTimeout(total=0.3)
                decode.step = until_cancelled
                url = f"{served.url}/v1/completions"
                async with served.session.post(url, data=body, timeout=timeout) as answer:
                    await answer.read()
        await served.is_idle()
        await until(lambda: pools.prefill.prefills == 0)
        assert not sum(map(pools.prefill.router.requests_of, ids(pools.prefill)))


async def test_a_prefill_pool_by_roles_of_endpoints(tmp_path: Path) -> None:
    from support.epp.picking import picking

    claims = ("&role=prefill", "&role=decode")
    async with picking(tmp_path, 2, claims=claims, ready=1, **pairs("always")) as served:
        prefill, decode = served.engines
        pools: Any = served.server.pools
        await until(lambda: bool(pools.prefill.monitor.ready_clients()))
        assert (await served.post(completion([1] * 400), "/v1/completions"))[0] == 200
        assert decode.prompts[0].headers[PREFILLER] == prefill.address
        await served.is_idle()


async def until_cancelled() -> None:
    await asyncio.Event().wait()


def ids(pool: Any) -> list[int]:
    return [entry.worker_id for entry in pool.router.registry.entries()]
