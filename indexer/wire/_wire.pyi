from typing import final

from .codec import Bytes, Row

@final
class EventDecoder:
    """One batch of decoded events. Not for two threads at once."""

    topic: int
    envelope: tuple[int, int] | None
    def decode_message(self, data: Bytes) -> int: ...
    def decode_cache_event(self, worker_id: int, data: Bytes) -> int: ...
    def rows(self) -> list[Row]: ...
