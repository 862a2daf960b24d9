"""How connections to engines are made and kept: the settings of both kinds of channels."""

import math
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Protocol

import structlog

from ...process.settings import bad_setting, option
from ...transport.http2 import ChannelLimits, load_library

MAX_MESSAGE_BYTES = 32 << 20
WINDOW_BYTES = 256 << 10
"""How much of a stream may be under way unread."""
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.2, 2.0
"""Probes decide how often to try; the transport's own backoff must not outlast them."""
NGHTTP2, GRPC_AIO = DATA_PATHS = ("nghttp2", "grpc.aio")

log = structlog.get_logger(__name__)


def data_path_option(what: str) -> Any:
    """The setting of `what` calls go over."""
    return option(
        NGHTTP2,
        f"What carries {what}: nghttp2, or grpc.aio, which serves too where there is no nghttp2.",
        "--data-path",
        choices=DATA_PATHS,
        env=("DYNAMO_ROUTER_DATA_PATH",),
    )


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
    data_path: str = data_path_option("requests, from clients and to engines")

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "data_path":
                if value not in DATA_PATHS:
                    text = f"{value!r} is not one of {', '.join(DATA_PATHS)}"
                    raise bad_setting(field.name, text)
            elif not (math.isfinite(value) and value > 0):
                raise bad_setting(field.name, f"{value!r} must be finite and greater than 0")

    def channel_options(self) -> tuple[tuple[str, Any], ...]:
        """These, and what else a channel to an engine needs, in gRPC's words."""
        timeout_ms = int(self.keepalive_timeout_s * 1e3)
        return (
            *_CHANNEL_OPTIONS,
            ("grpc.max_send_message_length", self.max_message_bytes),
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.keepalive_time_ms", int(self.keepalive_s * 1e3)),
            ("grpc.keepalive_timeout_ms", timeout_ms),
            # Its own default is a minute, and the longer of the two counts.
            ("grpc.http2.ping_timeout_ms", timeout_ms),
            # Bounds a whole attempt to connect, whatever its name says.
            ("grpc.min_reconnect_backoff_ms", int(self.connect_timeout_s * 1e3)),
        )

    def channel_limits(self) -> ChannelLimits:
        """The same for a channel on nghttp2."""
        return ChannelLimits(
            connect_timeout_s=self.connect_timeout_s,
            keepalive_s=self.keepalive_s,
            keepalive_timeout_s=self.keepalive_timeout_s,
            first_backoff_s=FIRST_BACKOFF_S,
            max_backoff_s=MAX_BACKOFF_S,
            window_bytes=WINDOW_BYTES,
            max_message_bytes=self.max_message_bytes,
        )


_CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.initial_reconnect_backoff_ms", int(FIRST_BACKOFF_S * 1e3)),
    ("grpc.max_reconnect_backoff_ms", int(MAX_BACKOFF_S * 1e3)),
    # Whether a request is tried again is the dispatcher's decision, and nobody else's.
    ("grpc.enable_retries", 0),
    # A fixed window: probing for the best one costs a ping with nearly every message.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    # Two clients of one address are two connections: closing one leaves the other alone.
    ("grpc.use_local_subchannel_pool", 1),
)


class _Settings(Protocol):
    @property
    def data_path(self) -> str: ...


def data_path_of(settings: _Settings) -> str:
    """What carries requests: what is asked for, or grpc.aio if there is no nghttp2."""
    if settings.data_path == GRPC_AIO:
        return GRPC_AIO
    reason = load_library().reason
    if reason:
        _warn_once(reason)
        return GRPC_AIO
    return NGHTTP2


@cache
def _warn_once(reason: str) -> None:
    log.warning("no nghttp2: grpc.aio carries requests", reason=reason)
