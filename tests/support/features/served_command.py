"""The commands that serve, in the test's own loop, with settings that go together: profiles."""

import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from grpc import aio
from support.calls import messages_of
from support.fake_engine import prompt
from support.free_port import free_port
from support.polling import until
from support.security.certificates import Authority
from support.servers.discovered_fleet import Backend, registered
from support.servers.jetstream import JetStreamServer
from support.servers.model_serving import TINY, ModelServer
from support.serving import ServedRouter

from dynamo_router.frontend.config import ModelFrontendConfig, ServeFrontendConfig
from dynamo_router.process.settings import SettingsSource
from dynamo_router.runtime.event_planes import EmbeddedNats
from dynamo_router.workers.records import EventPlaneConfig
from dynamo_router.workers.trtllm_proto import SERVICE

SERVE, BOTH, FRONTEND = "serve", "serve --http-frontend", "frontend"
COMMANDS: dict[str, type[Any]] = {
    SERVE: ServeFrontendConfig,
    BOTH: ServeFrontendConfig,
    FRONTEND: ModelFrontendConfig,
}
TOKEN = "admin-0123456789abcdef"
PROMPT = list(range(1, 65))


class Served(NamedTuple):
    """A command that serves, seen from outside."""

    server: Any
    file: Path
    """of its settings"""
    seen: str
    """URL of its metrics and admin routes"""
    openai: str
    """URL of OpenAI's API; empty without it"""
    channel: Any
    session: aiohttp.ClientSession

    async def get(self, url: str, **more: Any) -> tuple[int, Any]:
        return await self.call("GET", url, **more)

    async def call(self, method: str, url: str, **more: Any) -> tuple[int, Any]:
        async with self.session.request(method, url, **more) as answer:
            text = await answer.text()
            is_json = answer.content_type == "application/json"
            return answer.status, json.loads(text) if is_json else text

    async def value(self, metric: str) -> float | None:
        """The sum of a metric's samples; None if there is no such sample."""
        _, page = await self.get(f"{self.seen}/metrics")
        lines = (line.rpartition(" ") for line in page.splitlines())
        found = [float(value) for name, _, value in lines if name.partition("{")[0] == metric]
        return sum(found) if found else None

    async def grows(self, metric: str) -> bool:
        """Whether a metric comes to be more than 0."""

        async def grown() -> bool:
            return bool(await self.value(metric))

        await until(grown)
        return True

    async def ask(self, **headers: str) -> None:
        """Have a request answered, at the listener for clients."""
        if self.openai:
            body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 2}
            url = f"{self.openai}/v1/completions"
            status, told = await self.call("POST", url, json=body, headers=headers)
            assert status == 200, told
            return
        request = prompt("r", 0)
        request.tokenized.input_token_ids.extend(PROMPT)
        call = self.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        metadata = tuple(headers.items())
        assert await messages_of(call(request.SerializeToString(), metadata=metadata))


@asynccontextmanager
async def started(
    command: str, folder: Path, given: dict[str, Any], ca: str | None = None
) -> AsyncIterator[Served]:
    """The command with these settings, and a file to read them from again."""
    ports: dict[str, Any] = {"http_port": 0, "router.block_size": TINY.block_size}
    if command != FRONTEND:
        ports["port"] = 0
    more = {"http_frontend": 0} if command == BOTH else {}
    file = folder / "settings.toml"
    file.write_text("")
    source = SettingsSource(COMMANDS[command], {**ports, **more, **given}, str(file))
    config = source.current.config
    async with AsyncExitStack() as stack:
        server: Any
        if command == FRONTEND:
            server = ModelServer(config, source)
        else:
            server = ServedRouter(config, source)
        stack.push_async_callback(server.close)
        await server.start()
        scheme = "https" if config.tls.on else "http"
        seen = server.address if command == FRONTEND else server.http_address
        openai = seen if command == FRONTEND else ""
        if command == BOTH:
            openai = server.openai_address
        channel = None
        if command != FRONTEND:
            channel = await stack.enter_async_context(aio.insecure_channel(server.grpc_address))
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=ca))
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        url = f"{scheme}://{openai}" if openai else ""
        yield Served(server, file, f"{scheme}://{seen}", url, channel, session)


async def until_ready(served: Served) -> None:
    url = f"{served.openai or served.seen}/health"

    async def ready() -> bool:
        return (await served.get(url))[0] == 200

    await until(ready)


# Profiles: what is served, and with which settings.


@asynccontextmanager
async def profile_nats(command: str, folder: Path, backend: Backend) -> AsyncIterator[Served]:
    """Everything that goes together."""
    nats = EmbeddedNats(free_port())
    try:
        await nats.start()
        settings = {
            "discovery": backend.kind,
            "nats": nats.url,
            "router.router_replica_sync": True,
            "router_id": "one",
            "router.session_affinity_ttl_secs": 60.0,
            "router.admission.queue_threshold": 16.0,
            "router.admission.shed": False,
            "router.admission.tenant_weights": "t=2",
            "router.router_prefetch": True,
            "limits.migration_limit": 3,
            "limits.hedge_after_s": 60.0,
            "peers.max_body_bytes": 10_000,
            "access_log": True,
            "otel_endpoint": f"http://127.0.0.1:{free_port()}",
            "metrics_max_workers": 100,
        }
        if command != SERVE:
            settings["tool_call_parser"] = "hermes"
        async with (
            registered(backend, 2, nats=nats.url, model_id="tiny", engine=TINY),
            started(command, folder, settings) as served,
        ):
            yield served
    finally:
        await nats.stop()


@asynccontextmanager
async def profile_grpc(command: str, folder: Path, backend: Backend) -> AsyncIterator[Served]:
    settings = {"discovery": backend.kind, "event_sources": "grpc"}
    async with (
        registered(backend, 1, model_id="tiny", engine=TINY),
        started(command, folder, settings) as served,
    ):
        yield served


@asynccontextmanager
async def profile_zmq(command: str, folder: Path, backend: Backend) -> AsyncIterator[Served]:
    plane = EventPlaneConfig(event_plane="zmq")
    settings = {"discovery": backend.kind, "event_plane": "zmq"}
    async with (
        registered(backend, 1, plane=plane, heartbeat_s=0.2, model_id="tiny", engine=TINY),
        started(command, folder, settings) as served,
    ):
        yield served


@asynccontextmanager
async def profile_jetstream(command: str, folder: Path, backend: Backend) -> AsyncIterator[Served]:
    nats = JetStreamServer(folder / "nats")
    try:
        nats.start()
        settings = {
            "discovery": backend.kind,
            "nats": nats.url,
            "durable_kv_events": True,
            "router_reset_states": True,
        }
        async with (
            registered(backend, 1, nats=nats.url, model_id="tiny", engine=TINY),
            started(command, folder, settings) as served,
        ):
            yield served
    finally:
        nats.kill()


@asynccontextmanager
async def profile_limited(command: str, folder: Path, backend: Backend) -> AsyncIterator[Served]:
    settings = {
        "discovery": backend.kind,
        "router.use_kv_events": False,
        "peers.max_request_bytes": 1,
    }
    async with (
        registered(backend, 1, model_id="tiny", engine=TINY),
        started(command, folder, settings) as served,
    ):
        yield served


@asynccontextmanager
async def profile_secured(command: str, folder: Path, backend: Backend) -> AsyncIterator[Served]:
    authority = Authority(folder / "authority")
    cert, key = authority.issue("router")
    tokens = folder / "tokens.toml"
    tokens.write_text(f'[[caller]]\nname = "a"\ntoken = "{TOKEN}"\nroles = ["admin"]\n')
    tokens.chmod(0o600)
    settings = {
        "discovery": backend.kind,
        "router.use_kv_events": False,
        "tls.cert": cert,
        "tls.key": key,
        "auth_tokens": str(tokens),
        "admin_port": 0,
    }
    async with (
        registered(backend, 1, model_id="tiny", engine=TINY),
        started(command, folder, settings, authority.ca) as served,
    ):
        yield served


@asynccontextmanager
async def profile_given(command: str, folder: Path, backend: Backend) -> AsyncIterator[Served]:
    settings = {
        "discovery": "static",
        "workers": ("grpc://127.0.0.1:1", "grpc://127.0.0.1:2"),
        "mockers": 1,
        "index_snapshot": str(folder / "index"),
        "index_snapshot_interval_s": 0.1,
    }
    async with started(command, folder, settings) as served:
        yield served


@asynccontextmanager
async def profile_models(command: str, folder: Path, backend: Backend) -> AsyncIterator[Served]:
    settings = {"discovery": backend.kind, "router.use_kv_events": False}
    tiny = {"model_id": "tiny", "engine": TINY}
    async with (
        registered(backend, 1, disaggregation_mode="prefill", **tiny),
        registered(backend, 1, disaggregation_mode="decode", **tiny),
        registered(backend, 1, model_id="other", engine=TINY),
        started(command, folder, settings) as served,
    ):
        yield served


Profile = Callable[[str, Path, Backend], AbstractAsyncContextManager[Served]]
PROFILES: dict[str, Profile] = {
    "nats": profile_nats,
    "grpc": profile_grpc,
    "zmq": profile_zmq,
    "jetstream": profile_jetstream,
    "limited": profile_limited,
    "secured": profile_secured,
    "given": profile_given,
    "models": profile_models,
}
