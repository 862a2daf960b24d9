"""How connections to engines are made and kept: the settings of channels."""

from dataclasses import dataclass, fields
from typing import ClassVar

from ...process.setting_checks import require_positive
from ...process.settings import option
from ...transport.http2 import ChannelLimits

MAX_MESSAGE_BYTES = 32 << 20
WINDOW_BYTES = 256 << 10
"""How much of a stream may be under way unread, if its reader keeps up."""
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.2, 2.0
"""Probes decide how often to try; the transport's own backoff must not outlast them."""


@dataclass(frozen=True, kw_only=True)
class ConnectionPolicy:
    """How connections to engines are made and kept. ConfigError, naming the key, on a bad value."""

    GROUP: ClassVar[str] = "Connections to engines"

    connect_timeout_s: float = option(
        10.0, "How long connecting to an engine may take.", "--worker-connect-timeout-s"
    )
    keepalive_s: float = option(
        8.0,
        "Seconds without a message of a pending answer after which the engine is pinged.",
        "--worker-keepalive-s",
    )
    keepalive_timeout_s: float = option(
        5.0,
        "Seconds without an answer to a ping after which the connection is closed.",
        "--worker-keepalive-timeout-s",
    )
    max_message_bytes: int = option(
        MAX_MESSAGE_BYTES,
        "Longest gRPC message, from and to clients and engines.",
        "--max-message-bytes",
    )

    def __post_init__(self) -> None:
        for field in fields(self):
            require_positive(self, field.name)

    def channel_limits(self) -> ChannelLimits:
        """These, and what else a channel to an engine needs."""
        return ChannelLimits(
            connect_timeout_s=self.connect_timeout_s,
            keepalive_s=self.keepalive_s,
            keepalive_timeout_s=self.keepalive_timeout_s,
            first_backoff_s=FIRST_BACKOFF_S,
            max_backoff_s=MAX_BACKOFF_S,
            window_bytes=WINDOW_BYTES,
            max_message_bytes=self.max_message_bytes,
        )
