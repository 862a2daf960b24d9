"""The client of one engine that serves trtllm.TrtllmService.

Generate carries bytes both ways: the router does not decode what it only passes on.
"""

import asyncio
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import grpc
from grpc import aio

from ..runtime.errors import WorkerError
from ..runtime.identity import MAX_WORKER_ID
from ..runtime.security import ClientTls
from ..runtime.settings import bad_setting, option
from .engine_facts import EngineFacts, facts_of
from .failures import Origin, origin_of
from .registry import MAX_RANKS, WorkerEntry
from .trtllm_proto import SERVICE, common_pb, pb

MAX_MESSAGE_BYTES = 32 << 20
WINDOW_BYTES = 256 << 10
"""How much of a stream may be under way unread."""
WORKER_ID_KEY = "x-dynamo-worker-id"
DP_SIZE_KEY = "x-dynamo-dp-size"
PUBLISHER_ID_KEY = "x-dynamo-publisher-id"
"""Under which ids the engine publishes its KV events, with commas: one for each rank."""

RENEWAL_GRACE_S = 3600.0
"""How long calls may go on over a channel whose credentials were renewed."""

Metadata = Sequence[tuple[str, str | bytes]]
EventCall: TypeAlias = "aio.UnaryStreamCall[bytes, bytes]"


@dataclass(frozen=True, kw_only=True)
class ConnectionPolicy:
    """How connections to engines are made and kept. ConfigError, naming the key, on a bad value."""

    connect_timeout_s: float = option(
        10.0, "How long connecting to an engine may take.", "--worker-connect-timeout-s"
    )
    keepalive_s: float = option(
        8.0,
        "An engine that owes an answer and sends nothing for so long is pinged.",
        "--worker-keepalive-s",
    )
    keepalive_timeout_s: float = option(
        5.0,
        "A connection is given up if a ping is not answered in this time.",
        "--worker-keepalive-timeout-s",
    )
    max_message_bytes: int = option(
        MAX_MESSAGE_BYTES,
        "Longest gRPC message, from and to clients and engines.",
        "--max-message-bytes",
    )

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value > 0):
                raise bad_setting(field.name, f"{value!r} must be finite and greater than 0")

    def channel_options(self) -> tuple[tuple[str, Any], ...]:
        """These, and what else a channel to an engine needs, in gRPC's words."""
        timeout_ms = int(self.keepalive_timeout_s * 1e3)
        return (
            *CHANNEL_OPTIONS,
            ("grpc.max_send_message_length", self.max_message_bytes),
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.keepalive_time_ms", int(self.keepalive_s * 1e3)),
            ("grpc.keepalive_timeout_ms", timeout_ms),
            # Its own default is a minute, and the longer of the two counts.
            ("grpc.http2.ping_timeout_ms", timeout_ms),
            # Bounds a whole attempt to connect, whatever its name says.
            ("grpc.min_reconnect_backoff_ms", int(self.connect_timeout_s * 1e3)),
        )


CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    # Probes decide how often to try; the transport's own backoff must not outlast them.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Whether a request is tried again is the dispatcher's decision, and nobody else's.
    ("grpc.enable_retries", 0),
    # A fixed window: probing for the best one costs a ping with nearly every message.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    # Two clients of one address are two connections: closing one leaves the other alone.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True)
class EngineIdentity:
    """Who an engine says it is, in the initial metadata of its answers; None where it is silent."""

    worker_id: int | None = None
    dp_size: int | None = None
    publisher_ids: tuple[int, ...] | None = None

    def fits(self, entry: WorkerEntry) -> bool:
        """Whether nothing of what it says differs from what is known of a worker."""
        return (
            self.worker_id in (None, entry.worker_id)
            and self.dp_size in (None, entry.dp_size)
            and self.publisher_ids in (None, entry.publisher_ids)
        )

    def or_else(self, other: "EngineIdentity") -> "EngineIdentity":
        """This, and what another answer of the engine says where this one is silent."""
        return EngineIdentity(
            other.worker_id if self.worker_id is None else self.worker_id,
            other.dp_size if self.dp_size is None else self.dp_size,
            other.publisher_ids if self.publisher_ids is None else self.publisher_ids,
        )


class TrtllmClient:
    """One channel to one engine. Methods raise grpc.aio.AioRpcError when the engine does.

    `timeout` is in seconds everywhere; a call without an answer by then fails with
    DEADLINE_EXCEEDED. With `tls` the engine is believed, and shown who we are, as that says; its
    certificate must then carry `tls_name`, if given, unless the settings of `tls` name another.
    """

    dialect = "trtllm"

    def __init__(
        self,
        address: str,
        connection: ConnectionPolicy | None = None,
        tls: ClientTls | None = None,
        tls_name: str | None = None,
    ) -> None:
        self.address = address
        self._tls_name = tls_name
        self._options = (connection or ConnectionPolicy()).channel_options()
        self._tls = tls
        self._old: set[asyncio.Task[None]] = set()
        self._closed = False
        if tls is not None:
            tls.files.listeners.append(self._renew)
        self._open()

    def _renew(self, _: object) -> None:
        """Open a new channel, with the credentials of now; calls on the old one go on there."""
        task = asyncio.create_task(self._channel.close(RENEWAL_GRACE_S), name="old channel")
        self._old.add(task)
        task.add_done_callback(self._old.discard)
        self._open()

    def _open(self) -> None:
        if self._tls is None:
            self._channel = aio.insecure_channel(self.address, options=self._options)
        else:
            options = (*self._options, *self._tls.channel_options(self._tls_name))
            self._channel = aio.secure_channel(self.address, self._tls.credentials, options=options)
        # No (de)serializers: bytes go through as they are.
        self._generate: Any = self._channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        self._embed: Any = self._channel.unary_unary(f"/{SERVICE}/Embed", None, None)
        self._get_tokenizer: Any = self._channel.unary_stream(
            f"/{SERVICE}/GetTokenizer", None, None
        )
        self._subscribe_kv_events: Any = self._channel.unary_stream(
            f"/{SERVICE}/SubscribeKvEvents", None, None
        )
        self._health_check = self._unary("HealthCheck", pb.HealthCheckResponse)
        self._abort = self._unary("Abort", pb.AbortResponse)
        self._get_model_info = self._unary("GetModelInfo", pb.GetModelInfoResponse)
        self._get_server_info = self._unary("GetServerInfo", pb.GetServerInfoResponse)

    def generate(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> "aio.UnaryStreamCall[bytes, bytes]":
        """Start a generation; iterate the call for the engine's messages, as bytes.

        The caller ends it: to its last message, or by `call.cancel()`. Cancelling only the task
        that iterates is not enough: in the first milliseconds of a call grpc.aio may forget it.
        """
        call: aio.UnaryStreamCall[bytes, bytes] = self._generate(
            request, timeout=timeout, metadata=metadata
        )
        return call

    def origin_of(self, error: grpc.RpcError) -> Origin:
        """Where the failure of a call over this channel arose; ask right after it failed."""
        connected = self._channel.get_state() is grpc.ChannelConnectivity.READY
        return origin_of(error.code(), error.details() or "", connected=connected)

    async def embed(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> bytes:
        answer: bytes = await self._embed(request, timeout=timeout, metadata=metadata)
        return answer

    def get_tokenizer(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> "aio.UnaryStreamCall[bytes, bytes]":
        """Ask for the tokenizer; iterate the call for its chunks, and end it as a generation."""
        call: aio.UnaryStreamCall[bytes, bytes] = self._get_tokenizer(
            request, timeout=timeout, metadata=metadata
        )
        return call

    def subscribe_kv_events(self, start: int) -> EventCall:
        """Ask for cache events from batch number `start` on, 0: from the state of the cache.

        Iterate the call for the batches, and end it as a generation.
        """
        request = common_pb.SubscribeKvEventsRequest(
            start_sequence_number=start, load_records_before_first_batch=True
        )
        call: EventCall = self._subscribe_kv_events(request.SerializeToString())
        return call

    async def check_health(self, *, timeout: float) -> EngineIdentity:
        """Ask whether the engine is well; WorkerError with its own words if it says it is not."""
        call = self._health_check(pb.HealthCheckRequest(), timeout=timeout)
        identity, answer = await _answer(call)
        if answer.status.strip().upper() != "OK":
            raise WorkerError(f"engine reports {answer.status!r}")
        return identity

    async def describe(self, *, timeout: float) -> tuple[EngineIdentity, EngineFacts]:
        """Ask for everything an engine says of itself. What it does not implement stays unknown."""
        model, server = await asyncio.gather(
            _answer_or_none(self._get_model_info(pb.GetModelInfoRequest(), timeout=timeout)),
            _answer_or_none(self._get_server_info(pb.GetServerInfoRequest(), timeout=timeout)),
        )
        return model[0].or_else(server[0]), facts_of(
            model[1] or pb.GetModelInfoResponse(), server[1] or pb.GetServerInfoResponse()
        )

    async def abort(self, request_id: str, *, timeout: float) -> tuple[bool, str]:
        """Stop a request: (whether it ran there, the engine's words). Unknown ids are no error."""
        if self._closed:
            return False, "its channel was closed, and the request with it"
        answer = await self._abort(pb.AbortRequest(request_id=request_id), timeout=timeout)
        return answer.success, answer.message

    async def close(self) -> None:
        """Close the channel; what still runs over it is cancelled. Idempotent."""
        self._closed = True
        if self._tls is not None and self._renew in self._tls.files.listeners:
            self._tls.files.listeners.remove(self._renew)
        for task in self._old:
            task.cancel()
        if self._old:
            await asyncio.wait(self._old)
        await self._channel.close(None)

    def _unary(self, method: str, response: Any) -> Any:
        return self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=_serialize,
            response_deserializer=response.FromString,
        )


def _serialize(message: Any) -> bytes:
    body: bytes = message.SerializeToString()
    return body


async def _answer(call: Any) -> tuple[EngineIdentity, Any]:
    """A unary call's metadata and answer. The call ends with the task: grpc.aio goes on with one
    whose metadata alone was waited for."""
    try:
        return _identity_of(await call.initial_metadata()), await call
    finally:
        call.cancel()  # nothing, if it has ended


async def _answer_or_none(call: Any) -> tuple[EngineIdentity, Any]:
    try:
        return await _answer(call)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return EngineIdentity(), None
        raise


def _identity_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> EngineIdentity:
    said = {}
    publishers: tuple[int, ...] | None = None
    for key, value in metadata or ():
        if key == PUBLISHER_ID_KEY:
            publishers = _read_publishers(value)
        if key in (WORKER_ID_KEY, DP_SIZE_KEY):
            if not (isinstance(value, str) and value.isdecimal() and int(value) <= MAX_WORKER_ID):
                raise WorkerError(f"engine sends {key}: {value!r}, which is no number")
            said[key] = int(value)
            if key == DP_SIZE_KEY and not 1 <= said[key] <= MAX_RANKS:
                raise WorkerError(f"engine sends {key}: {value!r}, which is not in 1..{MAX_RANKS}")
    return EngineIdentity(said.get(WORKER_ID_KEY), said.get(DP_SIZE_KEY), publishers)


def _read_publishers(value: str | bytes) -> tuple[int, ...]:
    words = str(value).split(",")
    if len(words) > MAX_RANKS or not all(w.isdecimal() and int(w) < 2**64 for w in words):
        raise WorkerError(f"engine sends {PUBLISHER_ID_KEY}: {value!r}, which are no publisher ids")
    return tuple(map(int, words))
