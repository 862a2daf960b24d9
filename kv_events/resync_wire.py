"""The recovery protocol's request, as routers send it and publishers read it.

Subject `...kv-resync`, a msgpack map. The answer comes as ordinary messages on `...kv-events`.
"""

import msgspec


class ResyncRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A router asks a worker for what it missed.

    With a publisher and a first event id: for its events from there on, as they were sent. Without
    them, or to a publisher that does not know these fields: for an announcement of its cache.
    """

    worker_id: int | None
    """None: any worker"""
    dp_rank: int | None = None
    """None: any rank"""
    publisher_id: int | None = None
    """whose events were missed; another one announces its cache"""
    from_event_id: int | None = None
    """the first one that is missing"""
    until_event_id: int | None = None
    """the last one that is missing; None: the newest"""

    def __post_init__(self) -> None:
        for name in ("publisher_id", "from_event_id", "until_event_id"):
            number = getattr(self, name)
            if number is not None and number < 0:
                raise ValueError(f"{name} {number} is negative")
        if self.from_event_id is not None and self.publisher_id is None:
            raise ValueError("from_event_id without a publisher_id")
        if self.until_event_id is not None and (
            self.from_event_id is None or self.until_event_id < self.from_event_id
        ):
            raise ValueError(f"until_event_id {self.until_event_id} is before from_event_id")

    def names(self, worker_id: int, dp_rank: int) -> bool:
        return self.worker_id in (None, worker_id) and self.dp_rank in (None, dp_rank)


def encode_request(request: ResyncRequest) -> bytes:
    return msgspec.msgpack.encode(request)


def decode_request(payload: bytes) -> ResyncRequest:
    """msgspec.DecodeError if it is no request, or asks for an impossible range."""
    return msgspec.msgpack.decode(payload, type=ResyncRequest)
