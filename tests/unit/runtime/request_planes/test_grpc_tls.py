"""The gRPC request plane over TLS: whom a caller believes, whom a worker lets in."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from support.polling import until
from support.security.certificates import Authority

from dynamo_router.base.errors import ConfigError, NoWorkersError
from dynamo_router.runtime import DistributedRuntime
from dynamo_router.runtime.kv_stores import FileStore
from dynamo_router.runtime.request_planes import (
    GRPC_TLS,
    Fault,
    GrpcCarrier,
    GrpcListener,
    RequestClient,
    RequestContext,
    RequestError,
    RequestServer,
)
from dynamo_router.transport.security import ClientTls, ServerTls, ServerTlsConfig, WorkerTlsConfig

pytestmark = pytest.mark.usefixtures("leaves_no_task")
PATH = "7f/a/b/c"


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def others(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "others", "others")


async def echo(body: Any, context: RequestContext) -> AsyncIterator[object]:
    yield body
    yield body


class Ended:
    """TLS as somebody has it whose certificate has ended: our own settings take none such."""

    def __init__(self, authority: Authority) -> None:
        cert, key = (Path(path).read_bytes() for path in authority.issue("ended", days=-0.1))
        ca = Path(authority.ca).read_bytes()
        self.credentials = grpc.ssl_channel_credentials(ca, key, cert)
        self.files = SimpleNamespace(listeners=[])
        self._pair = key, cert

    def channel_options(self) -> tuple[tuple[str, Any], ...]:
        return ()

    def grpc_credentials(self) -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials([self._pair])


class Pair:
    """A worker with a certificate, and a caller, who is shown what it says."""

    def __init__(
        self, worker: ServerTlsConfig | Ended | None, caller: WorkerTlsConfig | Ended
    ) -> None:
        self.server_tls: Any = ServerTls(worker) if isinstance(worker, ServerTlsConfig) else worker
        self.client_tls: Any = ClientTls(caller) if isinstance(caller, WorkerTlsConfig) else caller
        self._requests = RequestServer()
        self._requests.add(PATH, echo)
        self._listener = GrpcListener(self._requests, self.server_tls)
        self.client = RequestClient({GRPC_TLS: GrpcCarrier(tls=self.client_tls)})

    async def __aenter__(self) -> "Pair":
        await self._listener.start()
        await self.client.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.client.close()
        await self._listener.close()
        await self._requests.close()

    async def ask(self, body: Any = 1, transport: str = GRPC_TLS) -> list[Any]:
        address = f"127.0.0.1:{self._listener.port}/{PATH}"
        async with asyncio.timeout(60):
            return [part async for part in self.client.stream(address, body, transport=transport)]


def serving(authority: Authority, client_ca: str | None = None, **more: Any) -> ServerTlsConfig:
    cert, key = authority.issue("worker", **more)
    return ServerTlsConfig(cert=cert, key=key, client_ca=client_ca)


def showing(authority: Authority, ca: str, **more: Any) -> WorkerTlsConfig:
    cert, key = authority.issue("caller", **more)
    return WorkerTlsConfig(ca=ca, cert=cert, key=key)


async def test_both_sides_show_who_they_are(ours: Authority) -> None:
    async with Pair(serving(ours, ours.ca), showing(ours, ours.ca)) as pair:
        body = "x" * 500_000
        assert await pair.ask(body) == [body, body]


Configs = Callable[[Authority, Authority], tuple[Any, Any]]
REFUSED: dict[str, Configs] = {
    "a worker of another authority": lambda ours, others: (
        serving(others), WorkerTlsConfig(ca=ours.ca)),
    "a worker whose certificate has ended": lambda ours, others: (
        Ended(ours), WorkerTlsConfig(ca=ours.ca)),
    "a worker at another address": lambda ours, others: (
        serving(ours, hosts=("elsewhere",), addresses=()), WorkerTlsConfig(ca=ours.ca)),
    "a caller that shows nothing": lambda ours, others: (
        serving(ours, ours.ca), WorkerTlsConfig(ca=ours.ca)),
    "a caller of another authority": lambda ours, others: (
        serving(ours, ours.ca), showing(others, ours.ca)),
    "a caller whose certificate has ended": lambda ours, others: (
        serving(ours, ours.ca), Ended(ours)),
    "a worker without TLS": lambda ours, others: (None, WorkerTlsConfig(ca=ours.ca)),
}  # fmt: skip


@pytest.mark.parametrize("who", REFUSED)
async def test_who_is_not_believed_gets_no_request(
    ours: Authority, others: Authority, who: str
) -> None:
    async with Pair(*REFUSED[who](ours, others)) as pair:
        with pytest.raises(RequestError) as caught:
            await pair.ask()
        assert caught.value.fault in (Fault.UNREACHABLE, Fault.BROKEN)
        assert "127.0.0.1:" in str(caught.value)


async def test_a_worker_with_tls_takes_no_call_without(ours: Authority) -> None:
    async with Pair(serving(ours), WorkerTlsConfig(ca=ours.ca)) as pair:
        with pytest.raises(RequestError) as caught:
            await pair.ask(transport="grpc")
        assert caught.value.fault in (Fault.UNREACHABLE, Fault.BROKEN)


async def test_new_files_count_for_the_next_request(ours: Authority, others: Authority) -> None:
    caller = showing(ours, ours.ca)
    replace(caller, others)
    async with Pair(serving(ours, ours.ca), caller) as pair:
        with pytest.raises(RequestError):
            await pair.ask()
        replace(caller, ours)
        assert pair.client_tls.files.poll()
        assert await pair.ask() == [1, 1]
        replace(caller, others)
        assert await pair.ask() == [1, 1]  # a connection that is there goes on
        assert pair.client_tls.files.poll()
        with pytest.raises(RequestError):
            await pair.ask()


def replace(config: WorkerTlsConfig, authority: Authority) -> None:
    """Put a certificate of an authority in the place of the one that a caller shows."""
    for place, path in zip((config.cert, config.key), authority.issue("new"), strict=True):
        assert place is not None
        Path(path).replace(place)


async def test_a_runtime_with_tls_is_found_and_called(tmp_path: Path, ours: Authority) -> None:
    store = tmp_path / "kv"
    worker = DistributedRuntime(FileStore(store), request_plane="grpc", tls=serving(ours, ours.ca))

    @worker.endpoint("a.b.c")
    async def generate(body: Any, context: RequestContext) -> AsyncIterator[object]:
        yield body

    caller = DistributedRuntime(FileStore(store), worker_tls=showing(ours, ours.ca))
    stranger = DistributedRuntime(FileStore(store))
    async with worker, caller, stranger:
        client, other = await caller.client("a.b.c"), await stranger.client("a.b.c")
        await until(lambda: len(client.instances) == 1)
        assert [part async for part in client.random(5)] == [5]
        assert not other.instances  # it does not know whom to believe
        with pytest.raises(NoWorkersError):
            [part async for part in other.random(5)]


def test_our_own_certificates_that_ended_are_refused_at_once(ours: Authority) -> None:
    with pytest.raises(ConfigError, match=r"tls.cert: \S+worker.crt is no good: .* expired"):
        DistributedRuntime(request_plane="grpc", tls=serving(ours, days=-0.1))
    with pytest.raises(ConfigError, match="worker_tls.cert: .* expired"):
        DistributedRuntime(worker_tls=showing(ours, ours.ca, days=-0.1))


async def test_planes_without_tls_say_so(ours: Authority) -> None:
    with pytest.raises(ConfigError, match="the tcp request plane has no TLS"):
        DistributedRuntime(tls=serving(ours))
