"""Mock engines that register in a store, and a server that finds them there."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.fake_engine import prompt
from support.polling import DEADLINE_S, until
from support.servers.child import Child
from support.servers.etcd import EtcdServer
from support.servers.jetstream import JetStreamServer
from support.serving import BLOCK, Ports, serving

from dynamo_router.engines.mocker.config import EngineConfig, MockerConfig
from dynamo_router.engines.mocker.fleet import MockFleet
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.runtime.event_planes import EventPlane, NatsPlane
from dynamo_router.runtime.kv_stores import open_store
from dynamo_router.runtime.request_planes import RequestServer
from dynamo_router.workers.records import DiscoveryConfig

ENGINE = EngineConfig(block_size=BLOCK, num_gpu_blocks=512, vocab_size=1000)


class Backend:
    """A store by its name, with the environment that says where it is, and its server if any."""

    def __init__(self, kind: str, environ: dict[str, str], server: Child | None) -> None:
        self.kind, self.environ, self.server = kind, environ, server

    @property
    def config(self) -> DiscoveryConfig:
        return DiscoveryConfig(discovery=self.kind)


@contextmanager
def backend_of(kind: str, folder: Path) -> Iterator[Backend]:
    with ExitStack() as stack:
        if kind == "file":
            yield Backend(kind, {"DYN_FILE_KV": str(folder / "kv")}, None)
            return
        server: Any = EtcdServer(folder) if kind == "etcd" else JetStreamServer(folder)
        stack.enter_context(server)
        name = "ETCD_ENDPOINTS" if kind == "etcd" else "NATS_SERVER"
        yield Backend(kind, {name: server.url}, server)


@pytest.fixture
def backend(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Backend]:
    """A store, and its address in the environment: files, or what `on_stores` names."""
    with backend_of(getattr(request, "param", "file"), tmp_path / "store") as found:
        for name, value in found.environ.items():
            monkeypatch.setenv(name, value)
        yield found


def on_stores(*kinds: str) -> pytest.MarkDecorator:
    """Run a test that has a `backend` on each of these stores."""
    return pytest.mark.parametrize("backend", kinds, indirect=True)


@asynccontextmanager
async def registered(
    backend: Backend, count: int, *, nats: str | None = None, **config: Any
) -> AsyncIterator[MockFleet]:
    """So many mock engines, registered; unregistered when the block ends."""
    config.setdefault("engine", ENGINE)
    config.setdefault("speedup_ratio", 1000.0)
    settings = MockerConfig(workers=count, port=0, nats=nats, **config)
    store = open_store(backend.kind, backend.environ)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        plane: EventPlane | None = None
        if settings.plane.is_zmq:
            plane = settings.plane.open(backend.config, backend.kind, settings.host)
            stack.push_async_callback(plane.close)
        elif nats is not None:
            plane = NatsPlane(nats)
            stack.push_async_callback(plane.close)
        requests = None
        if settings.dialect == "dynamo":
            requests = RequestServer()
            await requests.start()
            stack.push_async_callback(requests.close)
        fleet = MockFleet(settings, plane=plane, store=store, requests=requests)
        yield await stack.enter_async_context(fleet)


@asynccontextmanager
async def finding(
    backend: Backend, *, nats: str | None = None, **config: Any
) -> AsyncIterator[Ports]:
    """A server that finds its workers in the store."""
    if nats is not None:
        config.setdefault("router", KvRouterConfig(block_size=BLOCK, seed=1))
        config["nats"] = nats
    async with serving(discovery=backend.config, **config) as ports:
        yield ports


async def workers_of(ports: Ports) -> list[dict[str, Any]]:
    _, body = await ports.http("GET", "/workers")
    workers: list[dict[str, Any]] = body["workers"]
    return workers


async def until_ready(ports: Ports, count: int, timeout_s: float = DEADLINE_S) -> None:
    """Wait until so many workers take requests, and no other is known."""

    def ready() -> bool:
        registry = ports.server.router.registry
        return len(registry) == count == len(ports.server.monitor.ready_clients())

    await until(ready, timeout_s)


async def completed(ports: Ports, request_id: str, tokens: int | Sequence[int] = 40) -> list[int]:
    """The tokens that a request's last message has, after those of the others were the same. Its
    prompt has these tokens, or so many."""
    request = prompt(request_id, tokens if isinstance(tokens, int) else 0)
    if not isinstance(tokens, int):
        request.tokenized.input_token_ids.extend(tokens)
    answers = await ports.answers(request)
    streamed = [token for answer in answers[:-1] for token in answer.chunk.token_ids]
    last = answers[-1].complete
    assert last.finish_reason == "length"
    assert streamed == list(last.output_token_ids)
    return streamed


async def complete_one(ports: Ports, name: str, number: int) -> None:
    """One request of a load."""
    await completed(ports, f"{name} {number}", 40 + number % 3)


def all_registered(fleet: MockFleet) -> bool:
    """Whether the store has all that the engines wrote, as far as they know."""
    registrations = [engine.registration for engine in fleet.engines]
    return all(known is not None and known.complete for known in registrations)
