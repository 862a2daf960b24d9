"""How much of the router its callers may use: all of them together, and each."""

from dataclasses import dataclass, fields
from typing import ClassVar

from ..process.setting_checks import require_positive, require_share
from ..process.settings import option


@dataclass(frozen=True, kw_only=True)
class CallerLimits:
    """Bounds on what peers can make grow. Each is counted when it is hit, under its name.

    A caller is who shows a token or a certificate; of the others, who comes from one address.
    ConfigError, naming the key, on a bad value.
    """

    GROUP: ClassVar[str] = "Limits of callers"

    max_requests: int = option(
        16_384,
        "Most requests (Generate, Embed, GetTokenizer) in flight; more are RESOURCE_EXHAUSTED.",
    )
    max_questions: int = option(
        2048, "Most other gRPC calls in flight: selections, health, reflection and the like."
    )
    max_share_per_caller: float = option(
        0.5, "Largest share of each limit on calls, bytes and bookings that one caller may have."
    )
    max_request_bytes: int = option(
        1 << 30, "Most bytes of requests in flight, as they came; more are RESOURCE_EXHAUSTED."
    )
    max_answer_bytes: int = option(
        1 << 30,
        "Most bytes of answers that wait for clients to read them; beyond, the request that has "
        "most of them ends.",
    )
    max_computations: int = option(
        1024,
        "Most long computations (a text to tokenize, a prompt to hash) that wait or run beside the "
        "event loop; more are RESOURCE_EXHAUSTED.",
    )
    max_computation_bytes: int = option(
        256 << 20, "Most bytes of those computations; more are RESOURCE_EXHAUSTED."
    )
    max_prompt_tokens: int = option(
        1 << 20, "Longest prompt, in tokens; a longer one is INVALID_ARGUMENT."
    )
    max_id_bytes: int = option(
        256, "Longest request id, adapter name or cache namespace; longer is INVALID_ARGUMENT."
    )
    max_metadata_bytes: int = option(8192, "Most metadata of a gRPC call: RESOURCE_EXHAUSTED.")
    max_connections: int = option(
        8192, "Most gRPC connections of callers; less if there are not enough descriptors."
    )
    max_http_connections: int = option(
        512,
        "Most HTTP connections; a further one ends the one that was silent longest, of the address "
        "that has most.",
    )
    max_connection_share: float = option(
        0.5,
        "Largest share of each of those that one address may have (IPv6: one /64), loopback too; "
        "1 is no bound, as behind a gateway, from whose address all clients come.",
    )
    connection_handshake_s: float = option(
        5.0, "How long a client may take to begin to speak gRPC, TLS included, or TLS of HTTP."
    )
    connection_idle_s: float = option(600.0, "How long a connection without a call may stay open.")
    connection_age_s: float | None = option(
        None, "How old a gRPC connection may get; clients open another one. None: any age."
    )
    connection_age_grace_s: float = option(
        3600.0, "How long calls may go on over a connection that is too old."
    )
    max_body_bytes: int = option(16 << 20, "Longest body of an HTTP request.")
    message_timeout_s: float = option(
        60.0, "How long a client may take to send the message of its call.", "--message-timeout-s"
    )

    def __post_init__(self) -> None:
        for field in fields(self):
            require_positive(self, field.name)
        require_share(self, "max_share_per_caller", "max_connection_share")
