"""A client's channel over TLS, on both event loops: whom it believes, and what it shows."""

import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
from grpc import aio
from support.security.certificates import Authority

from dynamo_router.transport.http2 import (
    CallError,
    ChannelLimits,
    ClientChannel,
    Fault,
    Outcome,
    Tls,
)

LIMITS = ChannelLimits(connect_timeout_s=1.0)


def trust(authority: Authority, client: tuple[str, str] | None = None, alpn: str = "h2") -> Any:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority.ca)
    context.set_alpn_protocols([alpn])
    if client is not None:
        context.load_cert_chain(*client)
    return lambda: context


class Echo(grpc.GenericRpcHandler):
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def serve(body: bytes, context: Any) -> None:
            for _ in range(2):
                await context.write(body)

        return grpc.unary_stream_rpc_method_handler(serve)


async def asked(
    credentials: grpc.ServerCredentials | None, tls: Tls | None, ask: int = 200_000
) -> int | Outcome:
    """How many bytes come back from a server with these credentials, or how it failed."""
    server = aio.server()
    server.add_generic_rpc_handlers((Echo(),))
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    channel = ClientChannel(f"127.0.0.1:{port}", LIMITS, tls)
    try:
        call = channel.call("/a/B", bytes(ask), timeout=20.0)
        return sum([len(message) async for message in call])
    except CallError as error:
        return error.outcome
    finally:
        await channel.close()
        await server.stop(None)


def serving(authority: Authority, mutual: Authority | None = None) -> grpc.ServerCredentials:
    cert, key = (Path(path).read_bytes() for path in authority.issue("server"))
    roots = Path(mutual.ca).read_bytes() if mutual else None
    return grpc.ssl_server_credentials([(key, cert)], roots, mutual is not None)


def refused(outcome: int | Outcome) -> bool:
    return isinstance(outcome, Outcome) and outcome.fault is Fault.CONNECT


Run = Callable[[Awaitable[Any]], Any]


def test_both_sides_show_who_they_are(run: Run, ours: Authority) -> None:
    tls = Tls(trust(ours, ours.issue("router")))
    assert run(asked(serving(ours, mutual=ours), tls)) == 400_000


def test_a_client_without_a_certificate_gets_nothing(run: Run, ours: Authority) -> None:
    assert refused(run(asked(serving(ours, mutual=ours), Tls(trust(ours)))))


def test_a_server_of_others_is_not_believed(run: Run, ours: Authority, others: Authority) -> None:
    assert refused(run(asked(serving(others), Tls(trust(ours)))))


def test_a_server_must_have_the_name_that_is_asked_for(run: Run, ours: Authority) -> None:
    assert run(asked(serving(ours), Tls(trust(ours), "localhost"))) == 400_000
    assert refused(run(asked(serving(ours), Tls(trust(ours), "elsewhere"))))


def test_tls_to_a_plain_port_and_the_other_way(run: Run, ours: Authority) -> None:
    assert refused(run(asked(None, Tls(trust(ours)))))
    assert refused(run(asked(serving(ours), None)))


def test_a_server_that_speaks_something_else_is_left(run: Run, ours: Authority) -> None:
    assert refused(run(asked(serving(ours), Tls(trust(ours, alpn="http/1.1")))))
