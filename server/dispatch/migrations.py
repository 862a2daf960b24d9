"""Migrations: streams that lost their worker in mid-stream, taken on to another one."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from ...base.errors import InvalidRequestError
from ...workers.health import HealthMonitor
from ..migration import CarriedStream, EndedEarlyError, RefusedMove, failure_moves, why_fixed
from .generate_request import GenerateFacts
from .reply import Change
from .request import Flight
from .request_reader import RequestReader

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _First:
    """A flight before it moved."""

    facts: GenerateFacts
    messages: int = 0
    """of earlier attempts"""


class Migrations:
    """At most `limit` moves of each stream; 0: a stream ends with its worker.

    What a request asks is decided in server/migration; here is what the dispatcher does with it.
    """

    def __init__(self, limit: int, monitor: HealthMonitor, reader: RequestReader) -> None:
        self.limit = limit
        self._monitor = monitor
        self._reader = reader
        self._first: dict[str, _First] = {}
        self.moved: Counter[str] = Counter()
        """streams that went on elsewhere, by the cause of the failure"""
        self.refused: Counter[RefusedMove] = Counter()
        """streams that ended with a worker while migration was on, and why"""

    def follow(self, flight: Flight) -> Change | None:
        """Note what the client gets of a stream that may move, as each of its messages comes."""
        facts = flight.facts
        if not self.limit or not facts.streaming or facts.sequences > 1 or flight.pinned:
            return None
        stream = flight.stream = CarriedStream(flight.body, flight.request_id)

        def noted(message: bytes) -> bytes:
            try:
                return stream.take(message)
            except EndedEarlyError:
                if not flight.aborted:
                    raise
                return message

        return noted

    async def next_request(
        self, flight: Flight, stops_held: bool, has_budget: Callable[[Flight], bool]
    ) -> bool:
        """After a failure in mid-stream: let the flight ask for the rest of its answer. False if
        it cannot; where nothing is left to ask for, its body is empty.
        """
        refusal, stream = self._refusal(flight, stops_held), flight.stream
        if refusal is not None or stream is None:
            self.refused[refusal or RefusedMove.REQUEST] += 1
            return False
        body = stream.move()
        if body is not None and not has_budget(flight):
            self.refused[RefusedMove.BUDGET] += 1
            return False
        facts, unfit = flight.facts, flight.unfit
        if body is not None:
            try:
                facts = await self._reader.generate(body)
            except InvalidRequestError:  # it has become too long
                self.refused[RefusedMove.REQUEST] += 1
                return False
            unfit, why_not = self._monitor.limits.check(facts.prompt.isl, facts.largest_token)
            if why_not is not None:
                self.refused[RefusedMove.REQUEST] += 1
                return False
        first = self._first.setdefault(flight.request_id, _First(flight.facts))
        first.messages += flight.messages
        last = flight.attempts.last
        self.moved[last.verdict.cause] += 1
        log.info(
            "a stream goes on at another worker",
            request_id=flight.request_id[:200],
            worker_id=last.worker_id,
            cause=last.verdict.cause,
            tokens=stream.delivered,
        )
        flight.moves += 1
        flight.messages, flight.facts, flight.body = 0, facts, body or b""
        flight.unfit = unfit | flight.attempts.begin_anew()
        return True

    def on_no_worker(self, flight: Flight) -> None:
        """Nobody else is there for a further attempt."""
        self._on_stuck(flight, RefusedMove.NO_WORKER)

    def on_given_up(self, flight: Flight) -> None:
        """There is no further attempt: of its last failure's kind, or for want of budget."""
        may_go_on = flight.attempts.may_go_on
        self._on_stuck(flight, RefusedMove.BUDGET if may_go_on else RefusedMove.FAILURE)

    def _on_stuck(self, flight: Flight, why: RefusedMove) -> None:
        """A stream that moved ends before its next worker has said anything of it."""
        if flight.moves and not flight.messages:
            self.refused[why] += 1

    def settle(self, flight: Flight) -> None:
        """The request ended: let what is told of it be of the whole of it."""
        first = self._first.pop(flight.request_id, None)
        if first is None:
            return
        flight.facts = first.facts
        flight.messages += first.messages
        if flight.stream is not None and flight.stream.last:
            flight.last_message = flight.stream.last

    def _refusal(self, flight: Flight, stops_held: bool) -> RefusedMove | None:
        stream = flight.stream
        if stream is None or not failure_moves([each.verdict for each in flight.attempts]):
            return RefusedMove.FAILURE
        if flight.moves >= self.limit:
            return RefusedMove.LIMIT
        _ = stream.delivered  # reads what was not read yet
        if not stream.is_readable or why_fixed(stream.read_request(), stops_held=stops_held):
            return RefusedMove.REQUEST
        return None
