"""The server over TLS, on both event loops: whom it lets in, and what it shows."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
from grpc import aio
from support.polling import until
from support.security.certificates import Authority
from support.servers.http2_client import listening, raw_client

from dynamo_router.transport.http2 import ServerCall, ServerLimits
from dynamo_router.transport.security import certificate_names

Run = Callable[[Awaitable[Any]], Any]


def showing(authority: Authority, mutual: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server"))
    context.set_alpn_protocols(["h2"])
    if mutual:
        context.load_verify_locations(authority.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def asked(tls: ssl.SSLContext, trusted: Authority, shown: Authority | None = None) -> Any:
    """The names that the server saw, or the status of a grpc.aio client that trusts these."""

    async def names(call: ServerCall) -> None:
        await call.write(await call.read() or b"")
        for name in certificate_names(call.certificate()):
            await call.write(name.encode())

    roots = Path(trusted.ca).read_bytes()
    cert = key = None
    if shown is not None:
        cert, key = (Path(path).read_bytes() for path in shown.issue("client"))
    credentials = grpc.ssl_channel_credentials(roots, key, cert)
    async with listening({"/a.B/names": names}, tls=tls) as (_, port):
        async with aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
            call = channel.unary_stream("/a.B/names", None, None)(bytes(200_000), timeout=10.0)
            try:
                heard = [message async for message in call]
            except aio.AioRpcError as error:
                return error.code()
        assert heard[0] == bytes(200_000)
        return heard[1:]


def test_it_is_believed_and_knows_who_calls(run: Run, ours: Authority) -> None:
    assert run(asked(showing(ours), ours)) == []
    assert b"client" in run(asked(showing(ours, mutual=True), ours, ours))


def test_strangers_get_nothing(run: Run, ours: Authority, others: Authority) -> None:
    unavailable = grpc.StatusCode.UNAVAILABLE
    assert run(asked(showing(ours, mutual=True), ours)) is unavailable
    assert run(asked(showing(ours, mutual=True), ours, others)) is unavailable
    assert run(asked(showing(others), ours)) is unavailable


def test_a_plain_client_and_a_silent_one_are_closed(run: Run, ours: Authority) -> None:
    async def tried() -> None:
        limits = ServerLimits(handshake_s=0.2)
        async with listening(limits=limits, tls=showing(ours)) as (server, port):
            async with raw_client(port) as plain, raw_client(port) as silent:
                plain.greet()
                await plain.until_closed()
                await silent.until_closed()
            await until(lambda: not len(server))

    run(tried())


def test_a_client_that_does_not_ask_for_http2_is_closed(run: Run, ours: Authority) -> None:
    async def tried() -> None:
        context = ssl.create_default_context(cafile=ours.ca)
        context.check_hostname = False
        async with listening(tls=showing(ours)) as (server, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            assert await asyncio.wait_for(reader.read(), 60) == b""
            writer.close()
            await until(lambda: not len(server))

    run(tried())
