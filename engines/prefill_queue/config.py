"""PrefillQueueConfig: whether an engine takes part in a prefill queue, and how."""

from dataclasses import dataclass
from typing import ClassVar

from ...process.setting_checks import require_at_least, require_positive
from ...process.settings import bad_setting, option

SCOPES = ("pool", "namespace")
STORAGES = ("memory", "file")


@dataclass(frozen=True, kw_only=True)
class PrefillQueueConfig:
    """ConfigError, naming the key, if a value is out of range."""

    GROUP: ClassVar[str] = "Prefill queue"

    prefill_queue: bool = option(
        False,
        "Take part in the prefill queue of the namespace, in JetStream (--nats, --transfer):"
        " prefill engines pull prompts from it, decode engines put them there.",
        "--prefill-queue",
        short=True,
    )
    prefill_queue_scope: str = option(
        "pool",
        "Which engines share a queue: those of one model (pool), or all of the namespace, as the"
        " design documents have it.",
        choices=SCOPES,
    )
    prefill_queue_storage: str = option(
        "memory", "Where NATS keeps the queue; decode engines outlive its loss.", choices=STORAGES
    )
    prefill_queue_max_messages: int = option(
        1024, "Prompts in the queue; beyond, decode engines compute them themselves."
    )
    prefill_queue_max_age_s: float = option(600.0, "How long a prompt may be in the queue.")
    prefill_queue_ack_wait_s: float = option(
        5.0, "Without a sign of its prefill engine for so long, a prompt goes to another one."
    )
    prefill_queue_max_deliver: int = option(
        3, "How many prefill engines may be given a prompt, before it is a dead letter."
    )
    prefill_queue_slots: int = option(4, "Prompts that a prefill engine has at a time.")
    prefill_queue_timeout_s: float = option(
        30.0,
        "How long a decode engine waits for a prompt's blocks; then it computes the prompt itself.",
    )
    max_local_prefill_length: int | None = option(
        None,
        "Decode engines compute prompts themselves of which they have at most this many tokens to"
        " compute. A key in the store counts more. Not given: the router's word, or 1000 without a"
        " router that decides.",
        "--max-local-prefill-length",
    )
    max_prefill_queue_size: int | None = option(
        None,
        "Decode engines compute prompts themselves while the queue has this many. A key in the"
        " store counts more. Not given: the router's word, or 3 without a router that decides.",
        "--max-prefill-queue-size",
    )

    def __post_init__(self) -> None:
        for key, known in (("prefill_queue_scope", SCOPES), ("prefill_queue_storage", STORAGES)):
            if getattr(self, key) not in known:
                raise bad_setting(key, f"{getattr(self, key)!r} is not one of {', '.join(known)}")
        require_at_least(
            self, 1, "prefill_queue_max_messages", "prefill_queue_max_deliver",
            "prefill_queue_slots",
        )  # fmt: skip
        require_at_least(self, 0, "max_local_prefill_length", "max_prefill_queue_size")
        require_positive(
            self, "prefill_queue_max_age_s", "prefill_queue_ack_wait_s", "prefill_queue_timeout_s"
        )
