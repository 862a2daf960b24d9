"""Calls to an etcd cluster: one channel per member, the next one tried when one fails."""

import asyncio
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import grpc
from aetcd import rpc  # type: ignore[import-untyped]
from structlog import get_logger

from ...base.backoff import Backoff
from .etcd_config import EtcdConfig, pem
from .store import StoreError

MAX_MESSAGE_BYTES = 64 << 20
_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 5000),
    ("grpc.min_reconnect_backoff_ms", 3000),  # how long one attempt to connect may take
    # A server that stands still is noticed within 9 s. etcd allows a ping every 5 s.
    ("grpc.keepalive_time_ms", 6000),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.http2.ping_timeout_ms", 3000),  # of pings of gRPC's own, which keep back the others
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),  # else two clients share a connection and its backoff
)
ATTEMPT_S = 2.5
"""How long a member is given to answer."""
_TRANSIENT = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.ABORTED,
)
# What etcd says of a token that it issued and no longer takes.
_STALE_TOKEN = ("invalid auth token", "revision of auth store is old", "user name is empty")

log = get_logger(__name__)


class EtcdConnection:
    """Stubs, credentials and retries. Calls raise StoreError."""

    def __init__(self, config: EtcdConfig) -> None:
        """ConfigError if a certificate cannot be read."""
        self.config = config
        self._channels = [self._open(endpoint) for endpoint in config.endpoints]
        self._current = 0
        self._token: str | None = None
        self._authenticating = asyncio.Lock()
        self._closed = False
        self._streams: WeakSet[Any] = WeakSet()

    @property
    def closed(self) -> bool:
        return self._closed

    async def call(
        self, method: str, request: Any, *, again: bool = False, timeout_s: float | None = None
    ) -> Any:
        """Call "KV/Range" or another method. After a failure that may have left a trace it is
        tried `again` only on request; if the server was not reached, always, up to the time limit.
        """
        end = time.monotonic() + (timeout_s or self.config.timeout_s)
        backoff = Backoff()
        while True:
            member = self._current
            left = end - time.monotonic()
            try:
                metadata = await self.metadata()
                stub = self._stub(member, method)
                return await stub(
                    request, timeout=max(0.05, min(left, ATTEMPT_S)), metadata=metadata
                )
            except grpc.aio.AioRpcError as error:
                failure = self.judge(error, member)
                delay = backoff.next()
                late = time.monotonic() + delay >= end
                if late or not failure.transient or not (again or _was_not_sent(error)):
                    raise failure from None
            await asyncio.sleep(delay)

    async def stream(self, method: str, timeout_s: float | None = None) -> tuple[Any, int]:
        """Open a stream of "Watch/Watch" or another method: the call, and who answers it.

        It ends when its member has no leader any more, as one that is cut off has none.
        """
        member = self._current
        try:
            metadata = (*await self.metadata(), ("hasleader", "true"))
        except grpc.aio.AioRpcError as error:
            raise self.judge(error, member) from None
        call = self._stub(member, method)(metadata=metadata, timeout=timeout_s)
        self._streams.add(call)
        return call, member

    def judge(self, error: grpc.aio.AioRpcError, member: int) -> StoreError:
        """What an error means; a member that failed is not asked first any more."""
        return self.refused(error.details() or error.code().name, member, error.code())

    def refused(
        self, details: str, member: int, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    ) -> StoreError:
        """As `judge`, of etcd's own answer."""
        if self._token and any(words in details for words in _STALE_TOKEN):
            self._token = None
            return StoreError(f"etcd asks for a new authentication: {details}")
        transient = code in _TRANSIENT
        if transient and self._current == member:
            self._current = (member + 1) % len(self._channels)
        endpoint = self.config.endpoints[member]
        return StoreError(f"etcd at {endpoint}: {details}", transient=transient)

    async def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with each call: the token, if we have a name."""
        if self._closed:
            raise StoreError("the connection to etcd is closed", transient=False)
        if self.config.username is None:
            return ()
        async with self._authenticating:
            if self._token is None:
                request = rpc.AuthenticateRequest(
                    name=self.config.username, password=self.config.password
                )
                try:
                    stub = self._stub(self._current, "Auth/Authenticate")
                    answer = await stub(request, timeout=ATTEMPT_S)
                    self._token = answer.token
                except grpc.aio.AioRpcError as error:
                    if "authentication is not enabled" not in (error.details() or ""):
                        raise
                    log.warning("etcd has authentication disabled", endpoints=self.config.endpoints)
                    self._token = ""
        return (("token", self._token),) if self._token else ()

    async def close(self) -> None:
        """Close the channels. Calls under way are cancelled. Idempotent."""
        if not self._closed:
            self._closed = True
            for call in list(self._streams):
                call.cancel()  # a read of it may not notice that its channel is closed
            for channel in self._channels:
                await channel.close()

    def _open(self, endpoint: str) -> grpc.aio.Channel:
        secure, address = self.config.address(endpoint)
        if not secure:
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        credentials = grpc.ssl_channel_credentials(
            pem(self.config.ca, "ETCD_AUTH_CA"),
            pem(self.config.key, "ETCD_AUTH_CLIENT_KEY"),
            pem(self.config.cert, "ETCD_AUTH_CLIENT_CERT"),
        )
        return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)

    def _stub(self, member: int, method: str) -> Callable[..., Any]:
        service, _, name = method.partition("/")
        stubs = {
            "KV": rpc.KVStub,
            "Lease": rpc.LeaseStub,
            "Watch": rpc.WatchStub,
            "Auth": rpc.AuthStub,
        }
        stub: Callable[..., Any] = getattr(stubs[service](self._channels[member]), name)
        return stub


def _was_not_sent(error: grpc.aio.AioRpcError) -> bool:
    """Whether the call certainly had no effect."""
    details = error.details() or ""
    return "failed to connect" in details or any(words in details for words in _STALE_TOKEN)
