"""A real Envoy asks the picker: what clients get is what engines send, byte by byte."""

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.epp.engine import MODEL, read_chunks
from support.epp.gateway import BUFFERED
from support.epp.picking import BLOCK, Picking, picking
from support.observability.metric_tables import documented, generated
from support.polling import until

from dynamo_router.frontend.epp.exchange import DESTINATION
from dynamo_router.router.admission import AdmissionConfig
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.server.caller_limits import CallerLimits
from dynamo_router.server.request_limits import RequestLimits

COMPLETIONS = "/v1/completions"


def chat(text: str = "hello", **more: Any) -> bytes:
    messages = [{"role": "user", "content": text}]
    return json.dumps({"model": MODEL, "messages": messages, **more}).encode()


def completion(prompt: Any, **more: Any) -> bytes:
    return json.dumps({"model": MODEL, "prompt": prompt, **more}).encode()


async def check_whole(served: Picking, body: bytes, path: str = "/v1/chat/completions") -> str:
    """Have it answered; the address of the engine that did."""
    status, _, answer = await served.post(body, path)
    assert status == 200, answer
    (engine,) = [e for e in served.engines if e.prompts and e.prompts[-1].body == body]
    whole = b"".join(engine.events(body)) if b'"stream": true' in body else engine.whole(body)
    assert answer == whole
    await served.is_idle()
    return engine.address


async def test_answers_are_the_engines_and_prefixes_find_their_engine(tmp_path: Path) -> None:
    async with picking(tmp_path, 3) as served:
        first = await check_whole(served, chat("a" * 4000))
        again = await check_whole(served, chat("a" * 4000, stream=True))
        assert first == again  # its cache was predicted
        longer = await check_whole(served, completion(list(range(64)), stream=True), COMPLETIONS)
        more = await check_whole(served, completion(list(range(80))), COMPLETIONS)
        assert longer == more
        # The other prompts went where fewer were.
        assert longer != first


async def test_its_own_metrics_are_documented_and_there_from_the_start(tmp_path: Path) -> None:
    async with picking(tmp_path) as served:
        tables = generated(await served.metrics("application/openmetrics-text"))
    assert documented()["Endpoint pickers"] == tables["Endpoint pickers"]


@pytest.mark.parametrize("size", [300_000, 10_000_000])
async def test_large_bodies_pass_whole(tmp_path: Path, size: int) -> None:
    async with picking(tmp_path) as served:
        # One word of a kind that its tokenizer reads at once would be tokenized for long.
        body = chat("hello", padding="x" * size, stream=True)
        await check_whole(served, body)
        await check_whole(served, completion([7] * 50, padding="é" * (size // 4)), COMPLETIONS)
        assert await served.value("dynamo_router_epp_body_bytes") == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_buffered_bodies_pass_too(tmp_path: Path, stream: bool) -> None:
    modes = {"request_mode": BUFFERED, "answer_mode": BUFFERED}
    async with picking(tmp_path, gateway=modes, model_id="renamed") as served:
        for body in (chat(stream=stream), chat("x" * 3000, stream=stream)):
            await check_whole(served, body)
        status, _, _ = await served.post(chat().replace(b'"tiny"', b'"renamed"'))
        assert status == 200
        assert chat() in [got.body for engine in served.engines for got in engine.prompts]


async def test_the_models_name_is_rewritten_and_nothing_else(tmp_path: Path) -> None:
    async with picking(tmp_path, 1, model_id="public") as served:
        (engine,) = served.engines
        body = b'{ "model" :"public","x":1.00,"prompt":[1,2,3]}'
        status, _, _ = await served.post(body, COMPLETIONS)
        assert status == 200 and engine.prompts[-1].body == body.replace(b"public", b"tiny")
        status, _, answer = await served.post(body.replace(b"public", b"other"), COMPLETIONS)
        assert status == 404 and json.loads(answer)["error"]["code"] == "model_not_found"
        rewritten = {"x-gateway-model-name-rewrite": "public"}
        status, _, _ = await served.post(
            body.replace(b"public", b"other"), COMPLETIONS, **rewritten
        )
        assert status == 200 and engine.prompts[-1].body == body.replace(b"public", b"tiny")
        await served.is_idle()


async def test_control_headers_of_clients_reach_neither_envoy_nor_engines(tmp_path: Path) -> None:
    async with picking(tmp_path, 2) as served:
        first = await check_whole(served, chat("a" * 4000))
        (other,) = {engine.address for engine in served.engines} - {first}
        spoofed = {
            DESTINATION: other,
            f"{DESTINATION}-subset": other,
            "x-prefiller-host-port": "10.6.6.6:80",
            "x-dynamo-prefill-instance-id": "7",
            "x-dynamo-prefill-dp-rank": "0",
            "x-dynamo-routing-mode": "disaggregated",
            "x-gateway-inference-objective": "vip",
            "x-gateway-inference-fairness-id": "team",
        }
        await served.post(chat("a" * 4000), **spoofed)
        got = served.engine_at(first).prompts[-1]
        assert len(served.engine_at(first).prompts) == 2
        assert got.headers[DESTINATION] == first or got.headers[DESTINATION].startswith(first)
        assert not (set(spoofed) - {DESTINATION}) & set(got.headers)


@pytest.mark.parametrize(
    "path, body, status, text",
    [
        ("/v1/chat/completions", b"no", 400, "the body is not what it must be"),
        ("/v1/chat/completions", b'{"model":"tiny","mess', 400, "the body is not what it must be"),
        ("/v1/chat/completions", b'{"messages":[{"role":"user","content":"x"}]}', 400, "`model`"),
        (COMPLETIONS, b'{"model":"tiny","prompt":""}', 400, "the prompt is empty"),
        (COMPLETIONS, b'{"model":"tiny","prompt":[]}', 400, "prompt"),
        (COMPLETIONS, b'{"model":"tiny","prompt":{"a":1}}', 400, "prompt must be a text"),
        (COMPLETIONS, b"", 400, "the body is not what it must be"),
    ],
)
async def test_what_cannot_be_read_is_refused_in_openais_words(
    tmp_path: Path, path: str, body: bytes, status: int, text: str
) -> None:
    async with picking(tmp_path, 1) as served:
        found, headers, answer = await served.post(body, path)
        error = json.loads(answer)["error"]
        assert (found, error["type"]) == (status, "invalid_request_error")
        assert text in error["message"] and headers["content-type"] == "application/json"
        assert not served.engines[0].prompts
        await served.is_idle()


async def test_what_has_no_prompt_goes_to_any_endpoint(tmp_path: Path) -> None:
    async with picking(tmp_path) as served:
        async with served.session.get(f"{served.url}/v1/models") as answer:
            assert (await answer.json())["data"][0]["id"] == MODEL
        for _ in range(2):
            status, _, answer = await served.post(b"no JSON", "/v1/audio/speech")
            assert status == 200 and answer == served.engines[0].whole(b"no JSON")
        assert [len(engine.prompts) for engine in served.engines] == [1, 1]
        await served.is_idle()


async def test_a_subset_is_kept_to(tmp_path: Path) -> None:
    async with picking(tmp_path / "one", 2) as served:
        first = await check_whole(served, chat("a" * 4000))
        (other,) = [engine for engine in served.engines if engine.address != first]
    hint = {"subset": other.address}
    async with picking(tmp_path / "two", 2, gateway=hint) as served:
        status, headers, answer = await served.post(chat())
        assert status == 503  # it names an engine that is gone
        assert headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"
        assert "none of the endpoints" in json.loads(answer)["error"]["message"]


async def test_an_engine_that_cannot_be_reached_gives_way_to_the_next(tmp_path: Path) -> None:
    """Before a probe finds it dead: Envoy takes the second one, which has the booking then."""
    async with picking(tmp_path, 2) as served:
        body = chat("a" * 4000, stream=True)
        first = await check_whole(served, body)
        dead = served.engine_at(first)
        (alive,) = [engine for engine in served.engines if engine is not dead]
        going = asyncio.Event()
        alive.step = going.wait
        await dead.stop()
        dead.got.clear()
        asked = asyncio.create_task(served.post(body))
        await until(lambda: bool(alive.prompts))
        router = served.pool.router
        by_address = {each.address: each.worker_id for each in router.registry.entries()}

        def moved() -> bool:
            on_alive = router.requests_of(by_address[alive.address])
            return (on_alive, router.requests_of(by_address[dead.address])) == (1, 0)

        await until(moved)
        going.set()
        status, _, answer = await asked
        assert await served.value("dynamo_router_epp_destinations_moved_total") == 1
        assert status == 200 and answer == b"".join(alive.events(body))
        await served.is_idle()


async def test_a_destination_that_envoy_does_not_know_is_counted(tmp_path: Path) -> None:
    async with picking(tmp_path, 2, in_cluster=1, fallbacks=0) as served:
        for letter in "abcdef":
            assert (await served.post(chat(letter * 4000)))[0] == 200
        known, unknown = served.engines
        assert len(known.prompts) == 6 and not unknown.prompts
        await served.is_idle()
        assert 1 <= await served.value("dynamo_router_epp_destinations_ignored_total") < 6


async def test_no_room_in_the_queue_is_said_at_once(tmp_path: Path) -> None:
    admission = AdmissionConfig(max_requests_per_worker="1", queue_limit=1)
    router = KvRouterConfig(block_size=BLOCK, use_kv_events=False, seed=1, admission=admission)
    async with picking(tmp_path, 1, router=router, pick_timeout_s=1.0) as served:
        (engine,) = served.engines
        going = asyncio.Event()
        engine.step = going.wait
        first = asyncio.create_task(served.post(chat(stream=True)))
        await until(lambda: bool(engine.prompts))
        second = asyncio.create_task(served.post(chat(stream=True)))
        queue = served.pool.decider.queue
        assert queue is not None
        await until(lambda: len(queue) == 1)
        status, headers, _ = await served.post(chat(stream=True))
        assert (status, headers["retry-after"]) == (429, "1")
        status, headers, answer = await second  # it waited in vain
        assert (status, json.loads(answer)["error"]["message"]) == (
            504,
            "no endpoint was picked in time",
        )
        assert headers["x-llm-d-request-dropped-reason"] == "rejected-ttl-expired"
        going.set()
        assert (await first)[0] == 200
        await served.is_idle()


async def test_bounds_on_bodies_and_on_slow_ones(tmp_path: Path) -> None:
    peers = CallerLimits(max_body_bytes=1000, message_timeout_s=0.3)
    async with picking(tmp_path, 1, peers=peers) as served:
        status, _, answer = await served.post(chat("x" * 2000))
        assert status == 413 and "longer than 1000 bytes" in answer.decode()

        async def never_whole() -> Any:
            yield b"{"
            await asyncio.Event().wait()

        url = f"{served.url}/v1/chat/completions"
        async with served.session.post(url, data=never_whole()) as slow:
            assert slow.status == 408
        hits = served.pool.hits
        assert hits["max_body_bytes"] == 1 and hits["message_timeout_s"] == 1
        for status in (408, 413):
            labels = f'{{model="",route="/v1/chat/completions",status="{status}"}}'
            assert await served.value(f"dynamo_router_http_requests_total{labels}") == 1
        await served.is_idle()


async def test_engines_own_refusals_pass_and_are_held_against_them(tmp_path: Path) -> None:
    async with picking(tmp_path, 1) as served:
        (engine,) = served.engines
        for status in (400, 429, 503):
            engine.status = status
            found, _, answer = await served.post(chat())
            assert (found, answer) == (status, b'{"error": {"message": "no"}}')
            await served.is_idle()


async def test_silence_of_an_engine_ends_the_request(tmp_path: Path) -> None:
    """With a status, as long as the head of the answer has not passed."""
    limits = RequestLimits(attempt_timeout_s=0.3)
    async with picking(tmp_path, 1, limits=limits, request_timeout_s=0.3) as served:
        served.engines[0].step = asyncio.Event().wait
        with pytest.raises(aiohttp.ClientPayloadError):
            await served.post(chat(stream=True))
        status, _, answer = await served.post(chat())
        assert status == 503 and "it was silent for too long" in answer.decode()
        await served.is_idle()


async def test_a_stream_that_breaks_frees_its_booking(tmp_path: Path) -> None:
    async with picking(tmp_path, 1) as served:
        (engine,) = served.engines
        seen, count = asyncio.Event(), itertools.count()

        async def step() -> None:
            if next(count) == 2:
                await seen.wait()

        engine.step, engine.cut_after = step, 2
        url = f"{served.url}/v1/chat/completions"
        with pytest.raises(aiohttp.ClientPayloadError):
            async with served.session.post(url, data=chat(stream=True)) as answer:
                await answer.content.readuntil(b"\n\n")
                assert served.booked
                seen.set()
                await answer.read()
        await served.is_idle()


async def test_trailers_of_both_sides_pass(tmp_path: Path) -> None:
    async with picking(tmp_path, 1, gateway={"trailers": True}) as served:
        (engine,) = served.engines
        engine.trailers = "x-checksum: 7\r\n"
        body = chat(stream=True)
        reader, writer = await asyncio.open_connection("127.0.0.1", served.gateway.port)
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
        ended = b"%x\r\n%b\r\n0\r\nx-mine: 3\r\n\r\n" % (len(body), body)
        writer.write(head.encode() + ended)
        assert b"HTTP/1.1 200" in await reader.readuntil(b"\r\n\r\n")
        answer, found = await read_chunks(reader)
        writer.close()
        assert answer == b"".join(engine.events(body)) and found == {"trailer x-checksum": "7"}
        assert engine.prompts[-1].body == body
        assert engine.prompts[-1].headers["trailer x-mine"] == "3"
        await served.is_idle()
