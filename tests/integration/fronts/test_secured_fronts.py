"""Fronts behind TLS, tokens and client certificates, in front of engines that have TLS, too."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.fake_engine import prompt
from support.fronts.processes import serve_fronts
from support.security.certificates import Authority

from dynamo_router.engines.mocker.config import MockerConfig
from dynamo_router.engines.mocker.server import MockServer
from dynamo_router.router.proto import RouterServiceStub, router_pb2
from dynamo_router.transport.security import ServerTls, ServerTlsConfig
from dynamo_router.workers.trtllm_proto import SERVICE

SERVE = ("--no-kv-events", "--policy", "dynamo")
TOKEN = "of-a-caller-0123456789"
CONNECTIONS = 12
"""So many of clients that all but surely (all but 1 in 2048 times) each front has one of them."""


async def test_every_front_asks_who_comes_and_shows_engines_who_it_is(tmp_path: Path) -> None:
    authority, others = Authority(tmp_path / "ours"), Authority(tmp_path / "others", "others")
    cert, key = authority.issue("router")
    alice, stranger = authority.issue("alice"), others.issue("stranger")
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(
        f'[[caller]]\nname = "alice"\ntoken = "{TOKEN}"\nroles = ["client", "selector"]\n'
    )
    tokens.chmod(0o600)
    mutual = ServerTlsConfig(cert=cert, key=key, client_ca=authority.ca)
    mock = MockServer(MockerConfig(port=0, speedup_ratio=1000), 0, tls=ServerTls(mutual))
    await mock.start()
    words = (
        *SERVE,
        *("--worker", mock.url, "--worker-tls-ca", authority.ca),
        *("--worker-tls-cert", cert, "--worker-tls-key", key),
        *("--tls-cert", cert, "--tls-key", key, "--tls-client-ca", authority.ca),
        *("--auth-tokens", str(tokens)),
    )
    bearer = (("authorization", f"Bearer {TOKEN}"),)
    try:
        async with serve_fronts(tmp_path / "router", *words) as served:
            for number in range(CONNECTIONS):
                async with secure_channel(served.grpc, authority.ca, alice, number) as channel:
                    generate: Any = channel.unary_stream(f"/{SERVICE}/Generate", None, None)
                    asked = prompt(f"r{number}", 32).SerializeToString()
                    call = generate(asked, metadata=bearer)
                    assert len([message async for message in call]) >= 2
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await generate(asked).read()
                    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
                    stub = RouterServiceStub(channel)
                    select = router_pb2.SelectWorkerRequest(token_ids=range(1, 129))
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await stub.SelectWorker(select)
                    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
                    assert (await stub.SelectWorker(select, metadata=bearer)).address in mock.url
                async with secure_channel(served.grpc, authority.ca, stranger, number) as channel:
                    check: Any = channel.unary_unary(f"/{SERVICE}/HealthCheck", None, None)
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await check(b"", timeout=10)
                    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            context = ssl.create_default_context(cafile=authority.ca)
            context.load_cert_chain(*alice)
            host, _, port = served.http.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
            writer.write(b"GET /live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            assert (await asyncio.wait_for(reader.readline(), 60)).split()[1] == b"200"
            writer.close()
            await writer.wait_closed()
            assert await served.router.stop() == 0
    finally:
        await mock.stop()


def secure_channel(address: str, ca: str, pair: tuple[str, str], number: int) -> grpc.aio.Channel:
    """A channel with a connection of its own."""
    cert, key = (Path(path).read_bytes() for path in pair)
    credentials = grpc.ssl_channel_credentials(Path(ca).read_bytes(), key, cert)
    own = (("grpc.use_local_subchannel_pool", 1), ("number", number))
    return grpc.aio.secure_channel(address, credentials, options=own)
