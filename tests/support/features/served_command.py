"""The commands that serve, in the test's own loop, with settings that go together: profiles."""

import itertools
import json
import re
import signal
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from grpc import aio
from structlog.testing import capture_logs
from support.calls import messages_of
from support.fake_engine import prompt
from support.free_port import free_port
from support.observability.collector import collecting
from support.polling import until
from support.processes import BUSY_S
from support.processes import command as process_of
from support.security.certificates import Authority
from support.servers.discovered_fleet import Backend, registered
from support.servers.jetstream import JetStreamServer
from support.servers.model_serving import TINY, ModelServer
from support.serving import ServedRouter

from dynamo_router.engines.mocker.fleet import MockFleet
from dynamo_router.frontend.config import ModelFrontendConfig, ServeFrontendConfig
from dynamo_router.process.settings import SettingsSource, options_of
from dynamo_router.runtime.event_planes import EmbeddedNats
from dynamo_router.workers.records import EventPlaneConfig
from dynamo_router.workers.trtllm_proto import SERVICE, pb

SERVE, BOTH, FRONTEND = "serve", "serve --http-frontend", "frontend"
FRONTS = "serve --http-frontend --fronts"
COMMANDS: dict[str, type[Any]] = {
    SERVE: ServeFrontendConfig,
    BOTH: ServeFrontendConfig,
    FRONTEND: ModelFrontendConfig,
    FRONTS: ServeFrontendConfig,
}
TOKEN = "admin-0123456789abcdef"
PROMPT = list(range(1, 65))
NUMBERS = itertools.count()


class Served(NamedTuple):
    """A command that serves, seen from outside."""

    ready_line: str
    logs: Callable[[str], bool]
    """whether it has logged an event"""
    turn_away: Callable[[], object]
    """have it take no more requests, before it ends"""
    file: Path
    """of its settings"""
    seen: str
    """URL of its metrics and admin routes"""
    openai: str
    """URL of OpenAI's API; empty without it"""
    channel: Any
    session: aiohttp.ClientSession
    picker: str = ""
    """address of Envoy's external processing; empty without it"""
    engines: MockFleet | None = None
    spans: list[Any] | None = None
    """where it sends its traces"""

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

        await until(grown, BUSY_S)
        return True

    async def ask(self, max_tokens: int = 2, *, stream: bool = False, **headers: str) -> int:
        """Have a request answered, at the listener for clients; how many tokens the answer has."""
        if self.openai:
            body: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": max_tokens}
            if stream:
                body |= {"stream": True, "stream_options": {"include_usage": True}}
            url = f"{self.openai}/v1/completions"
            status, told = await self.call("POST", url, json=body, headers=headers)
            assert status == 200, told
            if stream:
                *_, last, _ = (line for line in told.splitlines() if line.startswith("data: "))
                told = json.loads(last.removeprefix("data: "))
            return int(told["usage"]["completion_tokens"])
        request = prompt(f"r-{next(NUMBERS)}", 0)
        request.tokenized.input_token_ids.extend(PROMPT)
        request.max_tokens = max_tokens
        call = self.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        metadata = tuple(headers.items())
        answers = await messages_of(call(request.SerializeToString(), metadata=metadata))
        last = pb.GenerateResponse.FromString(answers[-1]).complete
        return int(last.completion_tokens)


@asynccontextmanager
async def started(
    command: str, folder: Path, given: dict[str, Any], ca: str | None = None, **more: Any
) -> AsyncIterator[Served]:
    """The command with these settings, and a file to read them from again."""
    settings: dict[str, Any] = {"http_port": 0, "router.block_size": TINY.block_size, **given}
    if command != FRONTEND:
        settings["port"] = 0
    if command in (BOTH, FRONTS):
        settings["http_frontend"] = 0
    file = folder / "settings.toml"
    file.write_text("")
    start = several if command == FRONTS else alone
    async with AsyncExitStack() as stack:
        line, logs, turn_away = await stack.enter_async_context(start(command, settings, file))
        found = dict[str, str](re.findall(r" (grpc|http|openai|ext_proc) (\S+)", line))
        channel = None
        if command != FRONTEND:
            channel = await stack.enter_async_context(aio.insecure_channel(found["grpc"]))
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=ca))
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        scheme = "https" if "tls.cert" in given else "http"
        openai = found.get("openai")
        url = f"{scheme}://{openai}" if openai else ""
        seen = f"{scheme}://{found.get('http', openai)}"
        more["picker"] = found.get("ext_proc", "")
        yield Served(line, logs, turn_away, file, seen, url, channel, session, **more)


Running = tuple[str, Callable[[str], bool], Callable[[], object]]
"""Its ready line, whether it has logged an event, and what has it turn requests away."""


@asynccontextmanager
async def alone(command: str, settings: dict[str, Any], file: Path) -> AsyncIterator[Running]:
    """One process: ours."""
    source = SettingsSource(COMMANDS[command], settings, str(file))
    config = source.current.config
    server: Any = (ModelServer if command == FRONTEND else ServedRouter)(config, source)
    try:
        await server.start()
        with capture_logs() as logs:
            yield (
                server.ready_line,
                lambda event: any(entry["event"] == event for entry in logs),
                server.parts.turn_away,
            )
    finally:
        await server.close()


@asynccontextmanager
async def several(command: str, settings: dict[str, Any], file: Path) -> AsyncIterator[Running]:
    """Two processes."""
    environ = {"DYNAMO_ROUTER_LAME_DUCK_S": "60"}
    for spec in options_of(COMMANDS[command]):
        if spec.key in settings:
            value = settings[spec.key]
            environ[spec.env[0]] = ",".join(value) if isinstance(value, tuple) else str(value)
    words = ("serve", "--fronts", "2", "--config", str(file))
    async with process_of(file.parent / "fronts", *words, environ=environ) as running:
        line = await running.says("dynamo-router ready")
        yield line, lambda event: event in running.text, lambda: running.send(signal.SIGTERM)


async def until_ready(served: Served) -> None:
    url = f"{served.openai or served.seen}/health"

    async def ready() -> bool:
        return (await served.get(url))[0] == 200

    await until(ready, BUSY_S)


# Profiles: what is served, and with which settings.


@asynccontextmanager
async def profile_nats(command: str, folder: Path, backend: Backend) -> AsyncIterator[Served]:
    """Everything that goes together."""
    async with EmbeddedNats(free_port()) as nats:
        settings = {
            "discovery": backend.kind,
            "nats": nats.url,
            "router.router_replica_sync": True,
            "router_id": "one",
            "router.session_affinity_ttl_secs": 60.0,
            "router.admission.queue_threshold": 16.0,
            "router.admission.tenant_weights": "t=2",
            "router.router_prefetch": True,
            "limits.hedge_after_s": 60.0,
            "peers.max_body_bytes": 10_000,
            "access_log": True,
            "record": str(folder / "record.jsonl.gz"),
            "record_max_mb": 1.0,
            "metrics_max_workers": 100,
            "ext_proc_port": 0,
            "secure_serving": False,
            "endpoint_port": 9100,
        }
        if command != SERVE:
            settings["tool_call_parser"] = "hermes"
            settings["allowed_origins"] = ("https://chat.example",)
        async with (
            registered(backend, 2, nats=nats.url, model_id="tiny", engine=TINY),
            collecting() as (collector, settings["otel_endpoint"]),
            started(command, folder, settings, spans=collector.spans) as served,
        ):
            yield served


@asynccontextmanager
async def profile_failing(command: str, folder: Path, backend: Backend) -> AsyncIterator[Served]:
    """Engines that take their time, and can be made to fail."""
    settings = {
        "discovery": backend.kind,
        "router.use_kv_events": False,
        "limits.migration_limit": 3,
        "health.probe_interval_s": 0.2,
    }
    slow = {"model_id": "tiny", "engine": TINY, "speedup_ratio": 4.0}
    async with (
        registered(backend, 2, **slow) as engines,
        started(command, folder, settings, engines=engines) as served,
    ):
        yield served


@asynccontextmanager
async def profile_shedding(command: str, folder: Path, backend: Backend) -> AsyncIterator[Served]:
    """With an objective that no engine can meet."""
    settings = {
        "discovery": backend.kind,
        "router.use_kv_events": False,
        "router.admission.shed": True,
        "router.admission.slo_itl_ms": 1e-6,
    }
    async with (
        registered(backend, 1, model_id="tiny", engine=TINY, speedup_ratio=2.0),
        started(command, folder, settings) as served,
    ):
        yield served


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
    with JetStreamServer(folder / "nats") as nats:
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
    "failing": profile_failing,
    "shedding": profile_shedding,
    "grpc": profile_grpc,
    "zmq": profile_zmq,
    "jetstream": profile_jetstream,
    "limited": profile_limited,
    "secured": profile_secured,
    "given": profile_given,
    "models": profile_models,
}
