"""What a router's log says of hostile clients and engines: one line for each thing that happened,
no line of theirs, no stack of ours, no secret. Real processes, in each format, at the lowest level.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from support.adversity.log_hygiene import FORGED, SECRET, check_log
from support.calls import messages_of
from support.fake_engine import FakeEngine, fail
from support.fake_engine import prompt as grpc_prompt
from support.free_port import free_port
from support.polling import until
from support.processes import Command, command, http_json, http_text
from support.servers.http_engine import HttpEngine, Script, event, reply, stream, stream_head

from dynamo_router.workers.trtllm_proto import SERVICE

ENGINE_ANSWERS: list[bytes | Script] = [
    reply(json.dumps({"error": {"message": FORGED}}).encode(), status=500),
    reply(json.dumps({"error": {"message": FORGED}}, ensure_ascii=False).encode(), status=400),
    reply(json.dumps({"message": FORGED, "code": FORGED}).encode(), status=503),
    reply(FORGED.encode(), status=500, kind="text/plain"),
    reply(b"\xff\xfe\x00", status=502),
    reply(b"", status=500, more=f"X-Key: {SECRET}\x01\r\n"),
    stream({"error": {"message": FORGED}}),
    stream({"error": FORGED}, b"[DONE]"),
    stream(FORGED.replace("\n", " ").encode()),
    stream(b"[" * 10_000),
    stream({"choices": 5}),
    stream({"choices": [{"token_ids": [-1, 1 << 70], "text": "x"}]}),
    stream({"choices": [{"token_ids": ["a"], "text": FORGED, "finish_reason": FORGED}]}),
    stream({"choices": [{"token_ids": [999_999_999], "text": "x"}]}),
    stream_head("text/html") + event({"choices": []}),
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\nSet-Cookie: a=" + SECRET.encode() + b"\x01\r\n\r\n",
    b"HTTP/1.1 307 X\r\nLocation: http://127.0.0.1:1/" + SECRET.encode() + b"\r\n\r\n",
    FORGED.encode(),
    b"",
]
CLIENT_HEADS = [
    f"authorization: Bearer {SECRET}\x01",
    f"cookie: session={SECRET}\x7f",
    f"x-api-key: {SECRET}\r\n\tfolded",
    f"authorization: Basic {SECRET}\r\nauthorization: Bearer {SECRET}",
    f"x-request-id: {SECRET}\x1b[2J",
    f"proxy-authorization {SECRET}",
    f"x-dynamo-session-id: {SECRET}\r\nx-dynamo-dp-rank: {SECRET}",
    f"content-type: {SECRET}\r\ntransfer-encoding: {SECRET}",
    f"upgrade: h2c\r\nconnection: upgrade\r\nhttp2-settings: {SECRET}",
    f"{SECRET}: a\x00b",
    f"accept-encoding: {SECRET}\r\naccept: {SECRET}",
]
TARGETS = (
    f"/v1/models?token={SECRET}",
    f"/v1/models/x?api_key={SECRET}&x=%0a[info]",
    f"/nothing?key={SECRET}",
    f"http://user:{SECRET}@localhost/v1/models",
    "/v1/models/%0a2026-01-01T00:00:00%20[info]%1b[2J%e2%80%a8",
)


class Routed:
    """A router's process, and what is asked of it."""

    def __init__(self, process: Command, openai: str, http: str, grpc_address: str) -> None:
        self.process, self.openai, self.http, self.grpc = process, openai, http, grpc_address

    async def send(self, address: str, data: bytes) -> bytes:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(data)
            async with asyncio.timeout(30):
                return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def complete(self, **more: object) -> bytes:
        body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 2, **more}).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
            f"authorization: Bearer {SECRET}\r\ncookie: a={SECRET}\r\nx-api-key: {SECRET}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        return await self.send(self.openai, head.encode() + body)


@asynccontextmanager
async def routed(folder: Path, log_format: str, *workers: str) -> AsyncIterator[Routed]:
    ports = [free_port() for _ in range(3)]
    words = ["serve", "--no-kv-events", "--log-level", "debug", "--log-format", log_format]
    words += ["--access-log", "--model-id", "tiny", "--http-frontend", str(ports[0])]
    words += ["--http-port", str(ports[1]), "--port", str(ports[2])]
    words += [word for worker in workers for word in ("--worker", worker)]
    async with command(folder, *words) as process:
        await process.says("dynamo-router ready")
        made = Routed(process, *(f"127.0.0.1:{port}" for port in ports))

        async def ready() -> bool:
            shown = await http_json(made.http, "/workers")
            return all(worker["state"] == "ready" for worker in shown["workers"])

        while not await ready():
            await asyncio.sleep(0.05)
        yield made


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_engines_over_http_say_nothing_of_their_own_in_the_log(
    log_format: str, tmp_path: Path
) -> None:
    async with HttpEngine() as engine, routed(tmp_path, log_format, engine.url) as router:
        for answer in ENGINE_ANSWERS:
            engine.answers["/v1/completions"] = answer
            for streamed in (False, True):
                head, _, told = (await router.complete(stream=streamed)).partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 "), (answer, head)
                assert b"\x1b" not in told and b"\n2026" not in told, (answer, told)
        page = await http_text(router.http, "/metrics")
        assert "\x1b" not in page and "boom" not in page and SECRET not in page
        check_log(router.process.text, log_format)


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_engines_over_grpc_say_nothing_of_their_own_in_the_log(
    log_format: str, tmp_path: Path
) -> None:
    codes = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
    async with FakeEngine(worker_id=7) as engine:
        async with routed(tmp_path, log_format, engine.url) as router:
            for code in codes:
                engine.script = fail(code, FORGED.replace("\x00", ""))
                for streamed in (False, True):
                    told = await router.complete(stream=streamed)
                    assert told.startswith(b"HTTP/1.1 "), (code, told)
                    assert b"\x1b" not in told and b"\n2026" not in told, (code, told)
                async with grpc.aio.insecure_channel(router.grpc) as channel:
                    call = channel.unary_stream(f"/{SERVICE}/Generate", None, None)
                    with pytest.raises(grpc.aio.AioRpcError):
                        await messages_of(call(grpc_prompt(code.name).SerializeToString()))
            check_log(router.process.text, log_format)


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_clients_leave_no_secret_and_no_stack_in_the_log(
    log_format: str, tmp_path: Path
) -> None:
    async with HttpEngine() as engine, routed(tmp_path, log_format, engine.url) as router:
        body = b'{"model": "tiny", "prompt": "a"}'
        for address in (router.openai, router.http):
            for target in TARGETS:
                for head in ("", *CLIENT_HEADS):
                    lines = [f"GET {target} HTTP/1.1", "host: localhost", "connection: close"]
                    sent = "\r\n".join([*lines, *filter(None, [head]), "", ""])
                    await router.send(address, sent.encode("latin-1"))
            for head in CLIENT_HEADS:
                lines = ["POST /v1/completions HTTP/1.1", "host: localhost", "connection: close"]
                lines += [f"content-length: {len(body)}", head]
                sent = "\r\n".join([*lines, "", ""])
                await router.send(address, sent.encode("latin-1") + body)
            for junk in (
                b"\x16\x03\x01\x02\x00",
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                b"\x00" * 99,
            ):
                await router.send(address, junk)
            host, _, port = address.rpartition(":")
            for _ in range(20):  # that leave in the middle
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(
                    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"
                )
                writer.transport.abort()
        assert (await router.send(router.grpc, SECRET.encode() * 9)) is not None
        async with grpc.aio.insecure_channel(router.grpc) as channel:
            call = channel.unary_stream(f"/{SERVICE}/Generate", None, None)
            for sent_bytes in (b"\xff" * 50, SECRET.encode(), b""):
                told = call(sent_bytes, metadata=(("authorization", f"Bearer {SECRET}"),))
                with pytest.raises(grpc.aio.AioRpcError):
                    await messages_of(told)
        check_log(router.process.text, log_format)


TAKEN = [
    ("--port", "PORT", "--http-port", "0"),
    ("--port", "0", "--http-port", "PORT"),
    ("--port", "0", "--http-port", "0", "--admin-port", "PORT"),
    ("--port", "0", "--http-port", "0", "--http-frontend", "PORT"),
    ("--port", "0", "--http-port", "0", "--tls-cert", "/dev/null", "--tls-key", "/dev/null"),
    ("--port", "0", "--http-port", "0", "--auth-tokens", "/dev/null/no"),
]


@pytest.mark.parametrize("flags", TAKEN)
async def test_a_start_that_fails_is_one_line(flags: tuple[str, ...], tmp_path: Path) -> None:
    """Whichever part of the server has begun by then; with engines that are being asked."""

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    holder = await asyncio.start_server(hold, "127.0.0.1", 0)
    port = str(holder.sockets[0].getsockname()[1])
    async with holder, FakeEngine(worker_id=7) as engine:
        given = [
            "serve",
            "--no-kv-events",
            "--worker",
            engine.url,
            "--worker",
            "grpc://127.0.0.1:1",
        ]
        given += [port if word == "PORT" else word for word in flags]
        async with command(tmp_path, *given, environ={"PYTHONWARNINGS": "error"}) as process:
            assert await process.ended() == 1
            (line,) = process.text.splitlines()
            assert line.startswith("dynamo-router: "), line
    await until(lambda: not holder.is_serving())
