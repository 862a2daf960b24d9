"""The gRPC server with its services, grpc.health.v1 and reflection."""

import math
import ssl
from collections.abc import Callable, Collection, Mapping

import structlog
from grpc_health.v1 import health

from ...base.errors import ConfigError
from ...base.limit_hits import LimitHits
from ...base.urls import joined
from ...process.logs import UNLIMITED
from ...process.system import why_cannot_listen
from ...transport.grpc_methods import Method, Methods
from ...transport.http2 import Http2Server, ServerLimits
from ...workers.channels import MAX_MESSAGE_BYTES, WINDOW_BYTES
from ..access import Access, GrpcGuard
from ..call_limits import CallLimits
from ..caller_limits import CallerLimits
from .checked_calls import CheckedCalls
from .connection_share import ConnectionShare
from .connections import plan_connections, share_of
from .standard_services import HealthService, reflection_methods

log = structlog.get_logger(__name__)

REFUSALS = 64
"""Calls of one connection beyond what its caller may have, that may be refused at a time."""
MORE_METADATA = 2
"""Metadata up to this many times our limit arrive, to be refused by us, and counted."""


class GrpcServer:
    """Takes its port in `listen`, answers from `start` until `drain` or `close`."""

    def __init__(
        self,
        services: Mapping[str, Methods],
        *,
        host: str,
        port: int,
        is_ready: Callable[[], bool],
        ready: Collection[str],
        name: str = "grpc",
        key: str = "port",
        access: Access | None = None,
        calls: CallLimits | None = None,
        workers: int = 0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        tls: ssl.SSLContext | None = None,
        reuse_port: bool = False,
        access_log: bool = False,
    ) -> None:
        """`services`: their methods, by their names. Those in `ready`, and the empty name, are
        healthy while `is_ready`, whether a request can be served now; `update` says that it may
        have changed. `name` is that of the ready line, `key` the setting of the port; 0 takes a
        free one. `reuse_port`: other processes of ours listen there too. `access_log`: a line for
        each call that is refused before its method has it, as requests have one that get further.
        """
        self._host, self._wanted_port, self._is_ready = host, port, is_ready
        calls = calls or CallLimits(CallerLimits(), LimitHits())
        limits = calls.limits
        plan = plan_connections(limits, workers)
        if plan.warning:
            log.warning(plan.warning)
        share: ConnectionShare | None = None
        if limits.max_connection_share < 1:
            most_each = share_of(plan.grpc, limits.max_connection_share)
            share = ConnectionShare(most_each, calls.hits)
        self._listener = Http2Server(
            _server_limits(calls, plan.grpc, max_message_bytes),
            tls,
            share=share,
            on_limit=calls.hits.hit,
            input_bound=calls.bytes,
            output_bound=calls.answer_bytes,
            on_refused=self._on_refused,
        )
        self._logs = access_log
        self._health = HealthService()
        self._serving: bool | None = None
        self.port = 0
        self._reuse_port = reuse_port
        checked = CheckedCalls(GrpcGuard(access or Access()), calls, self._on_refused)
        self._name, self._key = name, key
        self._follow = ("", *ready)
        self._always = [each for each in services if each not in ready]
        methods: dict[str, Method] = {
            **self._health.methods,
            **reflection_methods((*services, health.SERVICE_NAME)),
        }
        for each in services.values():
            methods.update(each)
        self._methods = {path: checked.serving(path, method) for path, method in methods.items()}
        self._at_once = {
            path: checked.serving_at_once(path, method.at_once)
            for path, method in methods.items()
            if method.at_once is not None
        }

    @property
    def address(self) -> str:
        return joined(self._host, self.port)

    @property
    def description(self) -> str:
        """Its part of the ready line."""
        return f"{self._name} {self.address}"

    async def listen(self) -> None:
        """Take the port. ConfigError if it cannot be had."""
        host, port = self._host, self._wanted_port
        try:
            self.port = self._listener.bind(host, port, shared=self._reuse_port)
        except OSError:
            key, reason = why_cannot_listen(host, port)
            key = self._key if key == "port" else key
            text = f"{key}: cannot listen on {joined(host, port)}: {reason}"
            raise ConfigError(text, key=key) from None

    async def start(self) -> None:
        for name in self._always:
            self._health.set(name, serving=True)
        self._report(False)
        await self._listener.start(self._methods, self._at_once)
        self.update()

    def update(self) -> None:
        """Set grpc.health.v1 to whether a request can be served now."""
        if self._serving is not None and self._serving != (ready := self._is_ready()):
            self._report(ready)

    async def drain(self, grace_s: float) -> None:
        """Take no more requests, let those in flight end for `grace_s`, cancel the rest."""
        self._health.shut_down()
        await self._listener.stop(grace_s)

    async def close(self) -> None:
        """End what is left. Idempotent."""
        await self.drain(0.0)

    def _on_refused(self, path: str, who: str, status: str, why: str) -> None:
        if self._logs:
            fields = {"status": status, "route": path, "client": who, "error": why}
            log.info("request ended", **fields, **{UNLIMITED: True})

    def _report(self, serving: bool) -> None:
        self._serving = serving
        for name in self._follow:
            self._health.set(name, serving=serving)


def _server_limits(calls: CallLimits, connections: int, max_message_bytes: int) -> ServerLimits:
    """What bounds connections, and lets every call come as far as our own limits."""
    limits = calls.limits
    most = calls.requests.most + calls.questions.most + calls.health.most
    return ServerLimits(
        max_connections=connections,
        handshake_s=limits.connection_handshake_s,
        idle_s=limits.connection_idle_s,
        age_s=math.inf if limits.connection_age_s is None else limits.connection_age_s,
        age_grace_s=limits.connection_age_grace_s,
        max_streams=max(1, int(limits.max_share_per_caller * most)) + REFUSALS,
        header_s=limits.message_timeout_s,
        window_bytes=WINDOW_BYTES,
        max_message_bytes=max_message_bytes,
        max_header_bytes=MORE_METADATA * calls.max_metadata_bytes,
        linger_s=limits.message_timeout_s,
    )
