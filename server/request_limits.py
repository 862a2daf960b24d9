"""How long a request may take at each stage, and how many may be tried again."""

from dataclasses import dataclass, field, fields
from typing import ClassVar

from ..process.setting_checks import require_at_least, require_finite
from ..process.settings import SHORTEST_S, bad_setting, option


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """Bounds on requests in flight, in seconds where not stated; None: none.

    Each is counted when it is hit, under its name. ConfigError, naming the key, on a bad value.
    """

    GROUP: ClassVar[str] = "Requests"

    queue_timeout_s: float | None = option(
        300.0,
        "How long a request may wait in the router for a worker; then RESOURCE_EXHAUSTED.",
        "--queue-timeout-s",
    )
    attempt_timeout_s: float | None = option(
        300.0,
        "How long a worker may take to begin a stream; then another one is tried.",
        "--attempt-timeout-s",
    )
    write_timeout_s: float | None = option(
        60.0,
        "How long a client may leave a message unread; then its request is ended.",
        "--write-timeout-s",
    )
    total_timeout_s: float | None = option(
        3600.0, "How long a request may take in all; then DEADLINE_EXCEEDED.", "--total-timeout-s"
    )
    stuck_timeout_s: float | None = option(
        30.0,
        "A worker that begins no answer for so long while others do is ejected.",
        "--stuck-timeout-s",
    )
    hedge_after_s: float | None = option(
        None,
        "A request without a first message after so long is also sent to a second worker, and "
        "whichever answers first serves it. Not given: never.",
        "--hedge-after-s",
    )
    retry_budget: float = option(
        0.2,
        "Most requests on a further attempt at a time, as a share of those in flight. Requests "
        "whose worker is gone do not count.",
        "--retry-budget",
    )
    retry_budget_least: int = option(
        16, "Requests on a further attempt that are allowed in any case.", "--retry-budget-least"
    )

    migration_limit: int = option(
        0,
        "How often a stream whose worker is lost in mid-stream goes on at another one, with the "
        "tokens so far; 0: it ends with an error.",
        "--migration-limit",
        env=("DYN_MIGRATION_LIMIT",),
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            require_finite(self, SHORTEST_S if each.name.endswith("_s") else 0, each.name)


HANDOFFS = ("relay", "queue")


@dataclass(frozen=True, kw_only=True)
class HandoffLimits:
    """How long each leg of a request on two workers may take, and what clients may say of it.

    ConfigError, naming the key, on a bad value.
    """

    GROUP: ClassVar[str] = "Prefill and decode workers"

    disagg_handoff: str = option(
        "relay",
        "Who has a prompt computed that goes to a prefill worker: the router, as the engines'"
        " connector wants it (relay), or the decode worker through the prefill queue (queue), of"
        " mock engines with --prefill-queue.",
        "--disagg-handoff",
        choices=HANDOFFS,
    )
    max_local_prefill_length: int | None = option(
        None,
        "queue: the decode worker computes a prompt itself of which it has at most this many tokens"
        " to compute. A key in the store counts more.",
        "--max-local-prefill-length",
    )
    max_prefill_queue_size: int | None = option(
        None,
        "queue: and any prompt while the queue has this many. A key in the store counts more.",
        "--max-prefill-queue-size",
    )
    disagg_prefill_timeout_s: float = option(
        30.0,
        "How long a prefill worker may take for a prompt, or ten times the forecast if that is"
        " longer; then another pair of workers is tried.",
    )
    disagg_handoff_timeout_s: float = option(
        30.0,
        "How long the decode worker may take from the end of the prefill to its first token; then"
        " another pair of workers is tried.",
    )
    max_unread_prompts: int = option(
        16_384,
        "Of engines that keep a prompt until it was read: prompts at a time that are computed or"
        " were not read yet, also those of clients that left. Further requests are refused.",
        "--max-unread-prompts",
    )
    trust_handoff_fields: bool = option(
        False,
        "Pass on the fields of a hand-off that clients send (disaggregated_params,"
        " kv_transfer_params, bootstrap_*): they name hosts that engines connect to. Off: such"
        " requests are refused.",
        "--trust-handoff-fields",
    )

    def __post_init__(self) -> None:
        if self.disagg_handoff not in HANDOFFS:
            known = ", ".join(HANDOFFS)
            raise bad_setting("disagg_handoff", f"{self.disagg_handoff!r} is not one of {known}")
        require_at_least(self, 0, "max_local_prefill_length", "max_prefill_queue_size")
        require_at_least(self, 1, "max_unread_prompts")
        require_finite(self, SHORTEST_S, "disagg_prefill_timeout_s", "disagg_handoff_timeout_s")


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """All that a dispatcher holds requests to.

    At most `max_attempts` workers are tried, as long as none has answered. `silence_s` is how long
    a worker may be silent before it is given up; None: as long as its connection lives.
    """

    requests: RequestLimits = field(default_factory=RequestLimits)
    max_attempts: int = 3
    silence_s: float | None = None
