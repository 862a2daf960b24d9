"""Checks of a deployment before, or while, it serves: what is wrong, and what to do about it.

Workers and their events are looked at through the pool that `serve` would have.
"""

import asyncio
import json
import platform
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from importlib import metadata
from time import time
from typing import Any

from ..base.errors import ConfigError
from ..base.package_version import package_version
from ..base.urls import DEFAULT_NATS_URL, joined, redact_url, split_nats_url
from ..indexer.source import SourceState
from ..process.settings import with_value
from ..process.system import addresses_to_listen, allow_open_files
from ..router.views import WorkerView
from ..runtime.event_planes import probe
from ..runtime.kv_stores import EtcdConfig
from ..workers.records import STATIC
from ..workers.registry import PREDICTED, WorkerState
from ..workers.worker_url import WorkerUrl
from .config import FrontsConfig, ServeConfig
from .pool import ConfiguredPool
from .server_parts import ServerParts

OK, WARNING, FAILED = "ok", "warning", "failed"
SHORTEST_LOOK_S, LOOK_S = 1.5, 0.1
OPEN_FILES_BESIDE = 256
"""Open files of a server beside those of its connections."""
ASK_S = 2.0
MOST_SKEW_S = 5.0
_PACKAGES = ("grpcio", "pycurl", "aiohttp", "msgspec", "numpy", "pyzmq", "tokenizers", "jinja2")
_BAD_STATES = (SourceState.DEGRADED.value, SourceState.REBUILDING.value)


@dataclass(frozen=True)
class Finding:
    """The result of one check; `advice` is what to do where it is not ok."""

    check: str
    state: str
    text: str
    advice: str = ""


def check_machine(config: ServeConfig) -> Iterator[Finding]:
    """Versions of packages, and the limit of open files."""
    versions = [f"Python {platform.python_version()}", f"dynamo-router {package_version()}"]
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions.append(f"{name} {metadata.version(name)}")
    yield Finding("versions", OK, ", ".join(versions))
    peers = config.peers
    wanted = peers.max_connections + peers.max_http_connections + 2 * len(config.workers)
    wanted += OPEN_FILES_BESIDE
    allowed = allow_open_files(wanted)
    text = f"{allowed} allowed, up to {wanted} in use with these settings"
    advice = f"raise the hard limit: ulimit -Hn {wanted}, or LimitNOFILE={wanted} of the service"
    yield Finding("open files", WARNING if allowed < wanted else OK, text, advice)


async def check_ports(config: ServeConfig, more: dict[str, int | None]) -> list[Finding]:
    """Whether the ports are free, or a router of ours has them. `more`: ports by their keys."""
    ports = {"port": config.port, "http_port": config.http_port, "admin_port": config.admin_port}
    ours = await _health(config.host, config.http_port) is not None
    findings = []
    for key, port in {**ports, **more}.items():
        if not port:
            continue
        host = config.host if key != "admin_port" else config.admin_host or "127.0.0.1"
        why = _why_taken(host, port)
        name, at = f"port {key}", joined(host, port)
        if why is None:
            findings.append(Finding(name, OK, f"{at} is free"))
        elif ours:
            findings.append(Finding(name, OK, f"{at} is in use, by a dynamo-router that runs here"))
        else:
            advice = f"end what listens there (ss -ltnp 'sport = :{port}'), or set {key}"
            findings.append(Finding(name, FAILED, f"{at}: {why}", advice))
    return findings


async def check_servers(config: ServeConfig) -> list[Finding]:
    """NATS and etcd, where the configuration has a use for them."""
    findings = []
    url = config.nats
    if url is not None:
        try:
            reached = await probe(url, ASK_S)
        except ConfigError:
            reached = False
        text = redact_url(url) + (" answers" if reached else " does not answer as NATS does")
        advice = "start the server, or correct nats; routing goes on without its events"
        findings.append(Finding("NATS", OK if reached else FAILED, text, advice))
    elif config.router.use_kv_events and not config.plane.is_zmq:
        found = await probe(DEFAULT_NATS_URL, ASK_S)
        text = f"not configured, and {'a' if found else 'no'} server at {DEFAULT_NATS_URL}"
        needed = config.durable_kv_events and not found
        advice = "durable_kv_events needs a server with JetStream: set nats"
        findings.append(Finding("NATS", FAILED if needed else OK, text, advice))
    if config.backend == "etcd":
        for endpoint in EtcdConfig.from_environment().endpoints:
            address = endpoint.rpartition("//")[2]
            host, port = split_nats_url(f"nats://{address}")
            why = await _why_unreached(host, port)
            text = f"{redact_url(endpoint)} {why or 'takes connections'}"
            advice = "start etcd, or correct ETCD_ENDPOINTS"
            findings.append(Finding("etcd", FAILED if why else OK, text, advice))
    return findings


async def check_workers(config: ServeConfig, wait_s: float) -> list[Finding]:
    """Every worker: whether it answers, fits, and publishes events. Waits at most `wait_s`."""
    mocks = config.mock_engines.mockers
    if config.event_sources == "jetstream":
        config = replace(config, event_sources="nats")
    settings = {
        # Nothing is started, kept, changed or shared.
        **{"mockers": 0, "durable_kv_events": False, "router_reset_states": False},
        **{"index_snapshot": None, "router.router_replica_sync": False},
        "otel_endpoint": None,
    }
    for key, value in settings.items():
        config = with_value(config, key, value)
    config = replace(config, fronts=FrontsConfig())
    if not config.workers and config.backend == STATIC:
        text = f"{mocks} mock engines, which serve starts" if mocks else "none are configured"
        advice = "give --worker URL, or --discovery"
        return [Finding("workers", OK if mocks else WARNING, text, advice)]
    parts = ServerParts(config)
    pool = ConfiguredPool(parts)
    try:
        parts.start()
        async with asyncio.timeout(wait_s + ASK_S):
            await pool.start()
        views = await _settled(pool, wait_s)
        findings = [_worker_finding(view, config) for view in views]
        if config.router.use_kv_events:
            urls = {view.worker: pool.workers.monitor.url(view.worker.worker_id) for view in views}
            ready = [view for view in views if view.state == WorkerState.READY.value]
            findings += [_event_finding(view, urls[view.worker]) for view in ready]
        for view in views:
            if view.dialect == "openai" and view.address is not None:
                findings += await _check_clock(view.address)
        if not views:
            text = f"none found in {config.backend} at {config.namespace}.{config.component}"
            advice = "start workers with the same --discovery, --namespace, --component"
            findings.append(Finding("workers", FAILED, text, advice))
        return findings
    except TimeoutError:
        text = f"the store ({config.backend}) does not answer"
        return [Finding("workers", FAILED, text, "see the checks of NATS and etcd")]
    finally:
        await pool.close()
        await parts.close()


async def _settled(pool: ConfiguredPool, wait_s: float) -> Sequence[WorkerView]:
    """The workers once all have answered and published, or it took too long."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    while True:
        views = [view for view in pool.workers.router.workers() if view.state != "unregistered"]
        waited = loop.time() - begin
        connecting = any(view.state == WorkerState.CONNECTING.value for view in views)
        silent = pool.workers.events is not None and any(
            view.event_source in ("", PREDICTED) and not view.event_error
            for view in views
            if view.state == WorkerState.READY.value
        )
        done = bool(views) and not connecting and not silent and waited >= SHORTEST_LOOK_S
        if done or waited >= wait_s:
            return views
        await asyncio.sleep(LOOK_S)


def _worker_finding(view: WorkerView, config: ServeConfig) -> Finding:
    name = f"worker {view.address or view.worker.worker_id}"
    size = config.router.block_size
    if view.state in (WorkerState.READY.value, WorkerState.DRAINING.value):
        return Finding(name, OK, f"{view.state}, speaks {view.dialect}, block size {size} fits")
    text = f"{view.state}: {view.reason or 'no answer yet'}"
    if view.state == WorkerState.REFUSED.value:
        advice = "start the engine with the router's block size and model, or set block_size"
        return Finding(name, FAILED, text, advice)
    schemes = "grpc:// for gRPC servers, openai+http:// for those of OpenAI's HTTP"
    advice = f"is the engine up, the port open to this host, and the scheme right ({schemes})?"
    return Finding(name, FAILED, text, advice)


def _event_finding(view: WorkerView, url: WorkerUrl | None) -> Finding:
    name = f"events of {view.address or view.worker.worker_id}"
    wanted = url is not None and url.events is not None
    if view.event_source in ("", PREDICTED):
        why = view.event_error or "none received"
        advice = "see docs/events.md; until then its cache is predicted"
        return Finding(name, FAILED if wanted else WARNING, why, advice)
    text = f"{view.event_source}, {view.event_source_state}, {view.indexed_blocks} blocks"
    if view.event_source_state == SourceState.SILENT.value:
        advice = "connected, and nothing was published yet: send a request, and look again"
        return Finding(name, WARNING, text, advice)
    bad = view.event_source_state in _BAD_STATES
    advice = "give the engine's replay endpoint (&replay=), or restart the engine: some were missed"
    return Finding(name, WARNING if bad else OK, text, advice)


async def _check_clock(address: str) -> list[Finding]:
    """The wall clock of an engine beside ours, by the Date of its answer; nothing without one."""
    head, _ = await _get(address, "/health")
    for line in head.split("\r\n"):
        key, _, value = line.partition(":")
        if key.lower() == "date":
            with suppress(ValueError):
                skew = parsedate_to_datetime(value.strip()).timestamp() - time()
                text = f"{skew:+.0f} s off the clock of this host"
                advice = "synchronise both clocks (NTP): tokens, certificates and traces need it"
                bad = abs(skew) > MOST_SKEW_S
                return [Finding(f"clock of {address}", WARNING if bad else OK, text, advice)]
    return []


async def _health(host: str, port: int) -> dict[str, Any] | None:
    """What a router of ours says of itself at its HTTP port; None if there is none."""
    if not port:
        return None
    local = "127.0.0.1" if host in ("0.0.0.0", "::", "") else host
    _, body = await _get(joined(local, port), "/health")
    try:
        answer = json.loads(body)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) and "event_plane" in answer else None


async def _get(address: str, path: str) -> tuple[str, str]:
    """Head and body of a plain HTTP answer; empty if there is none."""
    host, _, port = address.rpartition(":")
    request = f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    writer = None
    try:
        async with asyncio.timeout(ASK_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            writer.write(request.encode())
            text = (await reader.read(1 << 16)).decode("latin-1")
            head, _, body = text.partition("\r\n\r\n")
            while more := await reader.read(1 << 16):
                body += more.decode("latin-1")
                if len(body) > 1 << 20:
                    break
            return head, body
    except (OSError, TimeoutError, ValueError):
        return "", ""
    finally:
        if writer is not None:
            writer.transport.abort()


async def _why_unreached(host: str, port: int) -> str | None:
    try:
        async with asyncio.timeout(ASK_S):
            _, writer = await asyncio.open_connection(host, port)
        writer.transport.abort()
    except TimeoutError:
        return "does not answer"
    except OSError as error:
        return f"cannot be reached: {error.strerror or error}"
    return None


def _why_taken(host: str, port: int) -> str | None:
    """Why a server cannot listen there; None: it can."""
    try:
        found = addresses_to_listen(host, port)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            attempt.bind(address)
    except OSError as error:
        return error.strerror or str(error)
    return None
