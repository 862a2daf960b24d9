"""TLS of a running router: towards clients, towards engines, and while certificates change."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from grpc import aio
from support.fake_engine import prompt
from support.polling import closed_after, until
from support.processes import command
from support.security.certificates import Authority
from support.serving import ServedRouter

from dynamo_router.engines.mocker.config import MockerConfig
from dynamo_router.engines.mocker.server import MockServer
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.proto import RouterServiceStub
from dynamo_router.router.proto import router_pb2 as rpb
from dynamo_router.server.config import ServeConfig
from dynamo_router.transport.security import ServerTls, ServerTlsConfig, WorkerTlsConfig
from dynamo_router.workers.registry import WorkerState
from dynamo_router.workers.trtllm_proto import SERVICE, pb

NO_EVENTS = KvRouterConfig(use_kv_events=False)


class Pki:
    """Two authorities and what they issued, in a test's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ours = Authority(folder / "ours")
        self.others = Authority(folder / "others", "others")
        self.server = self.ours.issue("server")
        self.client = self.ours.issue("alice")
        self.stranger = self.others.issue("stranger")
        self.ended = self.ours.issue("ended", days=-0.1)

    def serving(self, mutual: bool = False) -> ServerTlsConfig:
        cert, key = self.server
        return ServerTlsConfig(cert=cert, key=key, client_ca=self.ours.ca if mutual else None)


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


async def asks_grpc(address: str, ca: str | None, pair: tuple[str, str] | None = None) -> str:
    """How a client's HealthCheck ends: "OK", or the name of its status."""
    channel = aio.insecure_channel(address)
    if ca is not None:
        cert, key = (_read(pair[0]), _read(pair[1])) if pair else (None, None)
        credentials = grpc.ssl_channel_credentials(_read(ca), key, cert)
        channel = aio.secure_channel(address, credentials)
    async with channel:
        call = channel.unary_unary(f"/{SERVICE}/HealthCheck", None, None)
        try:
            await call(b"", timeout=10)
        except aio.AioRpcError as error:
            return str(error.code().name)
    return "OK"


async def asks_https(address: str, ca: str, pair: tuple[str, str] | None = None) -> str:
    """How a GET of /live ends: "OK", or "refused"."""
    context = ssl.create_default_context(cafile=ca)
    if pair is not None:
        context.load_cert_chain(*pair)
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(f"https://{address}/live", ssl=context) as answer:
                return "OK" if answer.status == 200 else str(answer.status)
        except (aiohttp.ClientError, OSError):
            return "refused"


@asynccontextmanager
async def serving(**config: Any) -> AsyncIterator[ServedRouter]:
    config.setdefault("router", NO_EVENTS)
    async with closed_after(ServedRouter(ServeConfig(port=0, http_port=0, **config))) as server:
        await server.start()
        yield server


# Clients


async def test_clients_believe_the_routers_certificate_or_go(pki: Pki) -> None:
    async with serving(tls=pki.serving()) as server:
        assert await asks_grpc(server.grpc_address, pki.ours.ca) == "OK"
        assert await asks_https(server.http_address, pki.ours.ca) == "OK"
        assert await asks_grpc(server.grpc_address, pki.others.ca) == "UNAVAILABLE"
        assert await asks_https(server.http_address, pki.others.ca) == "refused"
        assert await asks_grpc(server.grpc_address, None) == "UNAVAILABLE"
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"http://{server.http_address}/live")


@pytest.mark.parametrize(
    ("who", "expected"),
    [("client", "OK"), (None, "refused"), ("stranger", "refused"), ("ended", "refused")],
)
async def test_clients_without_a_good_certificate_are_not_let_in(
    pki: Pki, who: str | None, expected: str
) -> None:
    pair = None if who is None else getattr(pki, who)
    async with serving(tls=pki.serving(mutual=True), admin_port=0) as server:
        told = await asks_grpc(server.grpc_address, pki.ours.ca, pair)
        assert told == ("OK" if expected == "OK" else "UNAVAILABLE")
        assert await asks_https(server.http_address, pki.ours.ca, pair) == expected
        admin = server.http.admin
        assert admin is not None
        assert await asks_https(f"127.0.0.1:{admin.port}", pki.ours.ca, pair) == expected


async def test_a_certificate_names_its_caller(pki: Pki, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text('[[caller]]\nname = "al"\ncertificate = "alice"\nroles = ["metrics"]\n')
    tokens.chmod(0o600)
    settings: dict[str, Any] = {"tls": pki.serving(mutual=True), "auth_tokens": str(tokens)}
    other = pki.ours.issue("nobody", hosts=("nobody",))
    async with serving(**settings) as server:
        for pair, workers, generate in (
            (pki.client, 200, "PERMISSION_DENIED: al may not do this: it needs the role client"),
            (other, 401, "UNAUTHENTICATED: a bearer token is needed"),
        ):
            context = ssl.create_default_context(cafile=pki.ours.ca)
            context.load_cert_chain(*pair)
            async with aiohttp.ClientSession() as session:
                url = f"https://{server.http_address}/workers"
                async with session.get(url, ssl=context) as answer:
                    assert answer.status == workers
            credentials = grpc.ssl_channel_credentials(
                _read(pki.ours.ca), _read(pair[1]), _read(pair[0])
            )
            async with aio.secure_channel(server.grpc_address, credentials) as channel:
                call = channel.unary_stream(f"/{SERVICE}/Generate", None, None)
                with pytest.raises(aio.AioRpcError) as caught:
                    await call(prompt().SerializeToString()).read()
                assert f"{caught.value.code().name}: {caught.value.details()}" == generate


async def test_callers_with_certificates_have_their_ids_to_themselves(pki: Pki) -> None:
    """No tokens at all: the authority lets in, the certificate names."""
    bob = pki.ours.issue("bob")
    async with serving(tls=pki.serving(mutual=True)) as server:
        server.router.add_worker(1)
        known = []
        for pair, method in ((pki.client, "SelectWorker"), (bob, "Free"), (pki.client, "Free")):
            credentials = grpc.ssl_channel_credentials(
                _read(pki.ours.ca), _read(pair[1]), _read(pair[0])
            )
            async with aio.secure_channel(server.grpc_address, credentials) as channel:
                stub = RouterServiceStub(channel)
                if method == "SelectWorker":
                    request = rpb.SelectWorkerRequest(token_ids=[1, 2], request_id="x")
                    known.append((await stub.SelectWorker(request)).booked)
                else:
                    known.append((await stub.Free(rpb.BookedRequest(request_id="x"))).known)
        assert known == [True, False, True]


# Engines


@asynccontextmanager
async def engine(tls: ServerTlsConfig) -> AsyncIterator[MockServer]:
    mock = MockServer(MockerConfig(port=0, speedup_ratio=100), 0, tls=ServerTls(tls))
    try:
        await mock.start()
        yield mock
    finally:
        await mock.stop()


@pytest.mark.parametrize(
    ("case", "ready"),
    [
        ("good", True),
        ("wrong authority", False),
        ("no certificate", False),
        ("stranger's certificate", False),
        ("named", True),
        ("another name", False),
        ("plain", False),
    ],
)
async def test_engines_are_believed_by_their_certificate(pki: Pki, case: str, ready: bool) -> None:
    cert, key = pki.stranger if case == "stranger's certificate" else pki.client
    pair = {} if case == "no certificate" else {"cert": cert, "key": key}
    ca = pki.others.ca if case == "wrong authority" else pki.ours.ca
    name = {"named": "engine.example", "another name": "other.example"}.get(case)
    if case in ("named", "another name"):
        pki.server = pki.ours.issue("engine", hosts=("engine.example",), addresses=())
    async with engine(pki.serving(mutual=True)) as mock:
        url = mock.url.replace("grpcs:", "grpc:") if case == "plain" else mock.url
        assert mock.url.startswith("grpcs://")
        tls = WorkerTlsConfig(ca=ca, name=name, **pair)
        async with serving(workers=(url,), worker_tls=tls) as server:
            (entry,) = server.router.registry.entries()
            assert (entry.state is WorkerState.READY) is ready, entry
            if not ready:
                assert "UNAVAILABLE" in entry.reason


async def test_an_engine_whose_certificate_ended_gets_nothing(pki: Pki) -> None:
    credentials = grpc.ssl_server_credentials([(_read(pki.ended[1]), _read(pki.ended[0]))])
    mock = aio.server()
    port = mock.add_secure_port("127.0.0.1:0", credentials)
    await mock.start()
    try:
        tls = WorkerTlsConfig(ca=pki.ours.ca)
        async with serving(workers=(f"grpcs://127.0.0.1:{port}",), worker_tls=tls) as server:
            (entry,) = server.router.registry.entries()
            assert entry.state is not WorkerState.READY and "UNAVAILABLE" in entry.reason
    finally:
        await mock.stop(None)


async def test_a_new_certificate_for_engines_is_shown_without_a_restart(pki: Pki) -> None:
    cert, key = pki.others.issue("router", file="../router")
    async with engine(pki.serving(mutual=True)) as mock:
        tls = WorkerTlsConfig(ca=pki.ours.ca, cert=cert, key=key)
        async with serving(workers=(mock.url,), worker_tls=tls) as server:
            (entry,) = server.router.registry.entries()
            assert entry.state is not WorkerState.READY and "UNAVAILABLE" in entry.reason
            pki.ours.issue("router", file="../router")
            await until(lambda: bool(server.monitor.ready_clients()))


# While it runs


def shown_name(address: str, ca: str) -> str:
    """The common name in the certificate that a new connection is shown."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=ca)
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        shown: Any = secure.getpeercert()
        return str(shown["subject"][0][0][1])


async def test_certificates_change_while_streams_flow(pki: Pki, tmp_path: Path) -> None:
    """Real processes, TLS on both sides of the router."""
    cert, key = pki.ours.issue("first", file="pair")
    tls = ("--tls-cert", cert, "--tls-key", key)
    engines = ("mocker", "--port", "0", "--speedup-ratio", "1", *tls)
    async with command(tmp_path / "mocker", *engines) as mocker:
        url = (await mocker.says("engine 0:")).split()[2]
        assert url.startswith("grpcs://")
        serve = ("serve", "--no-kv-events", "--port", "0", "--http-port", "0", "--worker", url)
        believed = ("--worker-tls-ca", pki.ours.ca)
        async with command(tmp_path / "serve", *serve, *tls, *believed) as router:
            words = (await router.says("dynamo-router ready")).split()
            address, http = words[3], words[5]
            await router.says("worker ready")
            credentials = grpc.ssl_channel_credentials(_read(pki.ours.ca))
            async with aio.secure_channel(address, credentials) as channel:
                request = prompt("long")
                request.max_tokens = 30_000
                generate = channel.unary_stream(f"/{SERVICE}/Generate", None, None)
                call = generate(request.SerializeToString())
                assert await call.read() is not aio.EOF

                async def becomes(name: str) -> None:
                    async with asyncio.timeout(60):
                        for where in (address, http, url.removeprefix("grpcs://")):
                            while await asyncio.to_thread(shown_name, where, pki.ours.ca) != name:
                                assert await call.read() is not aio.EOF

                await becomes("first")
                pki.ours.issue("second", file="pair")
                await becomes("second")
                pki.ours.issue("ended", days=-0.1, file="pair")
                line = await router.says("is not valid, the old one stays in use")
                assert "certificate has expired" in line
                await becomes("second")
                pki.ours.issue("third", file="pair")
                await becomes("third")
                message = pb.GenerateResponse.FromString(await call.read())
                assert message.request_id == "long" and message.chunk.token_ids
                call.cancel()
            assert await router.stop() == 0
