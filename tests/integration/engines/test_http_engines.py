"""Engines over HTTP that fail, behind the router: whose fault it is, and who gets the request."""

import asyncio
import json
import ssl
from pathlib import Path

import grpc
import pytest
from support.fake_engine import FakeEngine, prompt
from support.polling import until
from support.security.certificates import Authority
from support.servers.http_engine import (
    MODELS,
    WHOLE,
    Asked,
    HttpEngine,
    Script,
    event,
    part,
    reply,
    stream_head,
)
from support.serving import Ports, serving

from dynamo_router.router.config import KvRouterConfig
from dynamo_router.transport.security import ClientTls, WorkerTlsConfig
from dynamo_router.workers.dialects import OpenAiClient
from dynamo_router.workers.failures import EngineCallError
from dynamo_router.workers.registry import WorkerState

PATH = "/v1/completions"
IN_TURN = KvRouterConfig(mode="round-robin", use_kv_events=False)


async def tokens(ports: Ports, request_id: str) -> list[int]:
    *chunks, last = await ports.answers(prompt(request_id, 8))
    told = [token for answer in chunks for token in answer.chunk.token_ids]
    assert told == list(last.complete.output_token_ids)
    return told


@pytest.mark.parametrize(
    "answer",
    [
        reply(b'{"error": {"message": "full"}}', status=429, more="Retry-After: 1\r\n"),
        reply(b"", status=503),
        reply(b'{"error": {"message": "oh"}}', status=500),
        stream_head("text/html") + b"<html>",
        stream_head() + b"data: {{{\n\n",
        b"",
    ],
)
async def test_another_engine_answers_instead(answer: bytes) -> None:
    async with (
        HttpEngine({PATH: answer}) as bad,
        HttpEngine({PATH: WHOLE}) as good,
        serving(workers=[bad.url, good.url], router=IN_TURN) as ports,
    ):
        for turn in range(4):
            assert await tokens(ports, f"r{turn}") == [11, 12]
        assert bad.generations and good.generations


async def test_a_bad_request_is_the_clients_fault() -> None:
    refusal = reply(b'{"error": {"message": "logprobs is too large"}}', status=400)
    async with HttpEngine({PATH: refusal}) as engine, serving(workers=[engine.url]) as ports:
        for turn in range(10):
            with pytest.raises(grpc.RpcError, match="logprobs is too large") as error:
                await tokens(ports, f"r{turn}")
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        (entry,) = ports.server.router.registry.entries()
        assert entry.state is WorkerState.READY and entry.dialect == "openai"


async def test_a_stream_that_breaks_is_not_begun_again() -> None:
    head = stream_head().replace(b"\r\n\r\n", b"\r\nContent-Length: 999\r\n\r\n")
    broken = head + event(part(11))
    async with HttpEngine({PATH: broken}) as engine, serving(workers=[engine.url]) as ports:
        with pytest.raises(grpc.RpcError, match="in mid-stream after 1 messages"):
            await tokens(ports, "r1")
        assert len(engine.generations) == 1


async def test_engines_of_two_dialects_side_by_side() -> None:
    async with (
        HttpEngine({PATH: WHOLE}) as http,
        FakeEngine() as grpc_engine,
        serving(workers=[http.url, grpc_engine.url], mixed_models=True, router=IN_TURN) as ports,
    ):
        status, body = await ports.http("GET", "/workers")
        assert status == 200
        assert sorted(w["dialect"] for w in body["workers"]) == ["openai", "trtllm"]
        for turn in range(4):
            assert await tokens(ports, f"r{turn}") == [11, 12]
        assert http.generations and grpc_engine.requests


async def test_an_engine_of_another_model_is_refused() -> None:
    other = {"data": [{**MODELS["data"][0], "id": "other"}]}
    async with (
        HttpEngine({PATH: WHOLE}) as one,
        HttpEngine({PATH: WHOLE}) as two,
        HttpEngine({"/v1/models": reply(json.dumps(other).encode())}) as odd,
        serving(workers=[one.url, two.url]) as ports,
    ):
        ports.server.monitor.add(odd.url)
        entries = ports.server.router.registry.entries
        await until(lambda: any(entry.state is WorkerState.REFUSED for entry in entries()))
        assert "'other'" in next(e.reason for e in entries() if e.state is WorkerState.REFUSED)


async def test_a_key_is_shown_to_engines_and_to_nobody_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is read again when its file changes; an engine that repeats it is not quoted."""
    keys = ["key-of-yesterday", "key-of-today"]
    file = tmp_path / "key"
    file.write_text(f"{keys[0]}\n")
    file.chmod(0o600)
    asked_for = keys[0]

    def with_key(answer: bytes) -> Script:
        async def checked(asked: Asked, writer: asyncio.StreamWriter) -> None:
            shown = asked.headers.get("authorization", "")
            said = json.dumps({"error": {"message": f"there is no such key: {shown}"}}).encode()
            right = shown == f"Bearer {asked_for}"
            writer.write(answer if right else reply(said, status=401))

        return checked

    async with HttpEngine({PATH: WHOLE}) as engine:
        for path, answer in list(engine.answers.items()):
            assert isinstance(answer, bytes)
            engine.answers[path] = with_key(answer)
        async with serving(workers=[engine.url], worker_api_key_file=str(file)) as ports:
            assert await tokens(ports, "r1") == [11, 12]
            asked_for = keys[1]
            with pytest.raises(grpc.RpcError, match="there is no such key: Bearer \\*\\*\\*"):
                await tokens(ports, "r2")
            told = [await ports.http("GET", path) for path in ("/workers", "/health")]
            assert not any(key in str(told) for key in keys)
            file.write_text(keys[1])
            await until(lambda: engine.asked[-1].headers["authorization"] == f"Bearer {keys[1]}")
            await until(lambda: ports.server.monitor.any_ready)
            assert await tokens(ports, "r3") == [11, 12]
    said = "".join(capfd.readouterr())
    assert not any(key in said for key in keys)


async def test_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ours")
    cert, key = authority.issue("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    context.set_alpn_protocols(["http/1.1"])
    async with HttpEngine({PATH: WHOLE}, tls=context) as engine:
        worker_tls = WorkerTlsConfig(ca=authority.ca)
        async with serving(workers=[engine.url], worker_tls=worker_tls) as ports:
            assert await tokens(ports, "r1") == [11, 12]
            others = Authority(tmp_path / "others", "others")
            stranger = OpenAiClient(engine.address, tls=ClientTls(WorkerTlsConfig(ca=others.ca)))
            with pytest.raises(EngineCallError, match="certificate"):
                await stranger.check_health(timeout=5)
            await stranger.close()
