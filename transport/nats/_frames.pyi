"""Types of the kernel that finds messages in bytes. Calls go through nats_shortcut.py."""

from collections.abc import Callable

def read_frame(data: bytes, start: int) -> tuple[int, bytes, bytes, int] | None:
    """The message that begins there: subscription, subject, payload, and where the next one
    begins. None if it is none, has headers, or has not come whole."""

def read_run(
    data: bytes, start: int, sinks: dict[int, Callable[[list[bytes]], None]]
) -> tuple[Callable[[list[bytes]], None], list[bytes], int] | None:
    """The messages in a row from there on whose subscriptions have the same sink: the sink, their
    payloads, and where they end. None if the first has none, or is none."""

def count_missing(data: bytes, start: int, sinks: dict[int, Callable[[list[bytes]], None]]) -> int:
    """How many bytes are missing at least until the message that begins there is whole, if it may
    be one of those with a sink; 0 if it is whole, or is none of those."""
