"""Exchange: one request and its answer, as ASGI's `receive` and `send`; what it needs."""

from typing import Protocol

from ._exchange import Exchange, refusal

__all__ = ["Carrier", "Exchange", "refusal"]


class Carrier(Protocol):
    """What an exchange needs of its connection."""

    async def drained(self) -> None: ...

    def want_body(self) -> None: ...

    def on_answered(self, exchange: Exchange) -> None: ...
