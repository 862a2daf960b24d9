"""The gRPC server with its services, grpc.health.v1 and reflection."""

import asyncio
from typing import Any, cast

import structlog
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from ...runtime.errors import ConfigError
from ...runtime.limit_hits import LimitHits
from ...runtime.process import why_cannot_listen
from ...runtime.security import ServerTls
from ...workers.channels import MAX_MESSAGE_BYTES, WINDOW_BYTES
from ...workers.trtllm_proto import SERVICE as TRTLLM_SERVICE
from ..access import Access, GuardedServer
from ..peer_limits import PeerLimits
from .call_limits import CallLimits, LimitedServer
from .connection_share import ConnectionShare, ConnectionWatch
from .connections import plan_connections, share_of
from .router_service import SERVICE as ROUTER_SERVICE
from .router_service import RouterService
from .trtllm_service import TrtllmService

log = structlog.get_logger(__name__)

_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.http2.bdp_probe", 0),  # as towards the workers
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    # A port that is in use is an error, not half of the requests.
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Its own default is a minute, and the longer of the two counts.
    ("grpc.http2.ping_timeout_ms", 10_000),
    # Clients ping every 30 s, also through a long silence; that is no abuse.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)
PENDING_CALLS = 4
"""As many times our limit on calls may wait for our loop to see them before gRPC drops some, which
it does with CANCELLED and without a count. They hold no message yet."""

MORE_METADATA = 2
"""So much more metadata than we take come as far as to be refused by us, and counted."""

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class GrpcServer:
    """Listens from `bind`, answers from `start` until `stop`."""

    def __init__(
        self,
        generate: TrtllmService,
        select: RouterService,
        *,
        access: Access | None = None,
        calls: CallLimits | None = None,
        workers: int = 0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        tls: ServerTls | None = None,
    ) -> None:
        self._tls = tls
        calls = calls or CallLimits(PeerLimits(), LimitHits())
        plan = plan_connections(calls.limits, workers)
        if plan.warning:
            log.warning(plan.warning)
        sizes = (
            ("grpc.max_send_message_length", max_message_bytes),
            ("grpc.max_receive_message_length", max_message_bytes),
        )
        connections = _connection_options(calls.limits, plan.grpc)
        options = (*_OPTIONS, *sizes, *connections, *_call_options(calls))
        self._server = aio.server(options=options)
        self._health = cast(Any, health).aio.HealthServicer()  # its stubs know no asyncio
        self._share: ConnectionShare | None = None
        if calls.limits.max_connection_share < 1:
            most_each = share_of(plan.grpc, calls.limits.max_connection_share)
            self._share = ConnectionShare(most_each, calls.hits)
        self._watch: ConnectionWatch | None = None
        self._serving: bool | None = None
        self._wanted = False
        self._updates: set[asyncio.Task[None]] = set()
        self.port = 0
        # The first handlers are asked first.
        # Callers are known by the time their calls are counted.
        server: Any = LimitedServer(GuardedServer(self._server, access or Access()), calls)
        server.add_generic_rpc_handlers((generate, select))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (TRTLLM_SERVICE, ROUTER_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflected = cast(Any, reflection).aio.ReflectionServicer(names)
        cast(Any, reflection_pb2_grpc).add_ServerReflectionServicer_to_server(reflected, server)

    def bind(self, host: str, port: int) -> None:
        """Take the port; 0 takes a free one. ConfigError if it cannot be had."""
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self._tls is None:
                self.port = self._server.add_insecure_port(where)
            else:
                self.port = self._server.add_secure_port(where, self._tls.grpc_credentials())
        except RuntimeError:
            self.port = 0
        if not self.port:
            key, reason = why_cannot_listen(host, port)
            raise ConfigError(f"{key}: cannot listen on {where}: {reason}", key=key)

    async def start(self) -> None:
        await self._health.set(ROUTER_SERVICE, _SERVING)
        await self._report(False)
        await self._server.start()
        if self._share is not None:
            self._watch = ConnectionWatch(self.port, self._share)
            self._watch.start()

    def set_serving(self, serving: bool) -> None:
        """Tell grpc.health.v1 whether a request can be served now."""
        self._wanted = serving
        if self._serving != serving and not self._updates:
            task = asyncio.create_task(self._update())
            self._updates.add(task)
            task.add_done_callback(self._updates.discard)

    async def stop(self, grace_s: float) -> None:
        """Take no more requests, let those in flight end for `grace_s`, cancel the rest."""
        if self._watch is not None:
            await self._watch.close()
        if self._updates:
            await asyncio.wait(self._updates)
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)

    async def _update(self) -> None:
        while self._serving != self._wanted:
            await self._report(self._wanted)

    async def _report(self, serving: bool) -> None:
        self._serving = serving
        for name in ("", TRTLLM_SERVICE):
            await self._health.set(name, _SERVING if serving else _NOT_SERVING)


def _connection_options(limits: PeerLimits, most: int) -> tuple[tuple[str, Any], ...]:
    """What bounds connections. gRPC closes those beyond the limit at once, without a count."""
    options: tuple[tuple[str, Any], ...] = (
        ("grpc.max_allowed_incoming_connections", most),
        ("grpc.server_handshake_timeout_ms", int(limits.connection_handshake_s * 1e3)),
        ("grpc.max_connection_idle_ms", int(limits.connection_idle_s * 1e3)),
        ("grpc.max_connection_age_grace_ms", int(limits.connection_age_grace_s * 1e3)),
    )
    if limits.connection_age_s is not None:
        options += (("grpc.max_connection_age_ms", int(limits.connection_age_s * 1e3)),)
    return options


def _call_options(calls: CallLimits) -> tuple[tuple[str, Any], ...]:
    """What lets every call come as far as our own limits."""
    most = calls.requests.most + calls.questions.most + calls.health.most
    metadata = MORE_METADATA * calls.max_metadata_bytes
    return (
        ("grpc.max_metadata_size", metadata),
        ("grpc.absolute_max_metadata_size", metadata),
        ("grpc.server.max_pending_requests", PENDING_CALLS * most),
        ("grpc.server.max_pending_requests_hard_limit", 2 * PENDING_CALLS * most),
        # Of one connection. Where it is reached gRPC refuses streams as if we were gone.
        ("grpc.max_concurrent_streams", 2 * PENDING_CALLS * most),
    )
