"""Who observes the requests of a server's HTTP connections."""

from typing import Protocol

from ...base.request_record import RequestRecord


class AnswerObserver(Protocol):
    """Observer of a server's requests. Called on the event loop, for each of them: be quick."""

    def on_request(self, record: RequestRecord) -> None:
        """Its head was read, and its turn has come."""

    def on_end(self, record: RequestRecord) -> None:
        """It was answered, or its connection has ended. Once for each whose first byte came."""


class NoAnswerObserver:
    """Observes nothing."""

    def on_request(self, record: RequestRecord) -> None: ...
    def on_end(self, record: RequestRecord) -> None: ...
